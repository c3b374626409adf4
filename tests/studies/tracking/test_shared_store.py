"""A store that others use too: whose experiment it is, and which runs are ours to delete."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.layout import Layout
from pipeline.run.metrics_log import MetricsLog
from studies.tracking.trial_run import MlflowSink, prepare_store, tag_experiment
from studies.tracking.view import TAG

Client = Any


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = Layout(tmp_path_factory.mktemp("store"))
    prepare_store(layout)
    return layout.mlflow_file


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path) -> str:
    shutil.copy(empty_store, tmp_path / "team.db")
    return f"sqlite:///{tmp_path / 'team.db'}"


@pytest.fixture
def client(uri: str) -> Client:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


@pytest.fixture
def sink(uri: str, tmp_path: Path) -> Callable[..., MlflowSink]:
    def make(**changes: Any) -> MlflowSink:
        artifacts, state = (tmp_path / "artifacts").as_uri(), tmp_path / "state.json"
        values: dict[str, Any] = {
            "parent_run_id": None,
            "tags": {},
            "params": {},
            "identity": "key",
            "origin": "a" * 32,
        }
        return MlflowSink(uri, artifacts, "small", **{"state_file": state, "run_name": "weak", **values, **changes})

    return make


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with MetricsLog(tmp_path / "metrics.jsonl") as metrics:
        for step in range(5):
            metrics.append(step, {"objective/kl": step / 7})
    return tmp_path / "metrics.jsonl"


def shown(client: Client, name: str = "small") -> list[Any]:
    return list(client.search_runs([client.get_experiment_by_name(name).experiment_id]))


@pytest.mark.parametrize("deleted", [False, True])
def test_an_experiment_of_another_program_is_left_alone(
    sink: Callable[..., MlflowSink], client: Client, deleted: bool
) -> None:
    theirs = client.create_experiment("small", tags={"team": "vision"})
    client.create_run(theirs, tags={"mlflow.source.name": "train.py"})
    if deleted:
        client.delete_experiment(theirs)
    run = sink()
    assert run.start()
    assert run.other_name == "small (ablate)"
    assert [one.info.run_id for one in shown(client, "small (ablate)")] == [run.state.run_id]
    assert client.get_experiment(theirs).lifecycle_stage == ("deleted" if deleted else "active")
    assert client.get_experiment(theirs).tags.get("team") == "vision"
    second = sink(state_file=run._state_file.with_name("second.json"), run_name="strong")
    assert second.start()
    assert len(shown(client, "small (ablate)")) == 2


def test_no_run_goes_where_both_names_belong_to_another_program(
    sink: Callable[..., MlflowSink], client: Client
) -> None:
    for name in ("small", "small (ablate)"):
        client.create_run(client.create_experiment(name))
    said: list[str] = []
    assert sink(warn=said.append).start() is None
    assert "the experiments 'small' and 'small (ablate)' belong to another program" in said[0]


@pytest.mark.parametrize("tagged", [False, True])
def test_our_deleted_experiment_is_restored(
    sink: Callable[..., MlflowSink], uri: str, client: Client, log: Path, tagged: bool
) -> None:
    first = sink()
    assert first.finish(log, "complete", {}, {})
    if tagged:
        tag_experiment(uri, "small", {TAG: "{}"})
    client.delete_experiment(client.get_experiment_by_name("small").experiment_id)
    again = sink()
    assert again.finish(log, "diverged", {}, {})
    assert again.other_name == ""
    assert [run.info.run_id for run in shown(client)] == [again.state.run_id]


def test_an_empty_experiment_is_used(sink: Callable[..., MlflowSink], client: Client) -> None:
    """An administrator may have made it, with an artifact root of its own."""
    prepared = client.create_experiment("small", artifact_location="file:///somewhere")
    run = sink()
    run.start()
    assert client.get_run(run.state.run_id).info.experiment_id == prepared


def test_an_experiment_that_another_driver_creates_at_the_same_moment_is_shared(
    sink: Callable[..., MlflowSink], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sink(state_file=Path("/nowhere"))
    asked = type(client).get_experiment_by_name
    answers = iter([None])
    monkeypatch.setattr(type(client), "get_experiment_by_name", lambda self, name: next(answers, asked(self, name)))
    theirs = client.create_experiment("small")
    assert other._experiment_id(client) == theirs


def test_a_run_whose_creation_was_not_confirmed_is_replaced(
    sink: Callable[..., MlflowSink], client: Client, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = type(client).create_run

    def loses(self: Client, *arguments: Any, **named: Any) -> Any:
        real(self, *arguments, **named)
        raise ConnectionError("the answer was lost")

    theirs = sink(origin="b" * 32, state_file=log.with_name("theirs.json"))
    assert theirs.start()
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "create_run", loses)
        assert sink().start() is None
    assert len(shown(client)) == 2
    ours = sink()
    assert ours.finish(log, "complete", {}, {})
    assert {run.info.run_id for run in shown(client)} == {ours.state.run_id, theirs.state.run_id}


def test_a_run_that_a_repeated_request_made_is_deleted_at_the_end(
    sink: Callable[..., MlflowSink], client: Client, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's client repeats a request without an answer by itself; the server then carries it out twice."""
    real = type(client).create_run
    with monkeypatch.context() as patch:
        patch.setattr(
            type(client), "create_run", lambda *every, **named: (real(*every, **named), real(*every, **named))[0]
        )
        run = sink()
        assert run.start()
    assert len(shown(client)) == 2
    assert run.finish(log, "complete", {}, {})
    assert [one.info.run_id for one in shown(client)] == [run.state.run_id]


@pytest.mark.parametrize(("then", "expected"), [(0.7, [0.7]), (0.6, [0.7, 0.6])])
def test_a_summary_told_again_is_the_same_record_and_a_new_one_is_the_latest(
    sink: Callable[..., MlflowSink],
    client: Client,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    then: float,
    expected: list[float],
) -> None:
    def fails(self: Client, *arguments: Any, **named: Any) -> None:
        raise ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(client), "set_terminated", fails)
        assert not sink().finish(log, "complete", {"eval/win_rate": 0.7}, {}, step=9)
    run = sink()
    assert run.finish(log, "complete", {"eval/win_rate": then}, {}, step=9)
    history = client.get_metric_history(run.state.run_id, "eval/win_rate")
    assert [one.value for one in history] == expected
    assert client.get_run(run.state.run_id).data.metrics["eval/win_rate"] == then
