from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from fake_trial import SHORT
from filelock import FileLock
from helpers import wait_until
from tracked_study import Tracked

from pipeline.errors import Damaged
from pipeline.run.metrics import MetricsLog
from studies.claims.registration import read_chain
from studies.definition.schema import load_study
from studies.tracking import store, sync
from studies.tracking.runs import Runs, upload
from studies.tracking.store import TAG, saved_view
from studies.tracking.sync import Background, Running, Synced

WHOLE = 4 * (20 + 4 + 1) + 1
"""Points of the study: series, evaluations and a claim of each trial, and the count of verdicts."""


def client(tracked: Tracked) -> Any:
    return store.client_of(tracked.layout.mlflow_uri)


def content(client: Any, name: str = "small") -> dict[str, Any]:
    """The content of an experiment by run, without ids and times: every point as often as it is there."""
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id], "")
    names = {run.info.run_id: run.info.run_name for run in runs}
    found: dict[str, Any] = {}
    for run in runs:
        tags = {key: value for key, value in run.data.tags.items() if key not in ("origin", "mlflow.user")}
        tags["mlflow.parentRunId"] = names.get(tags.get("mlflow.parentRunId", ""), "none")
        histories = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        points = Counter((key, point.step, point.value) for key, history in histories.items() for point in history)
        key = f"{run.info.run_name} {tags['identity']}"
        assert key not in found, f"{key} is double"
        found[key] = (run.info.status, tags, dict(run.data.params), points)
    return found


def runs(
    tracked: Tracked, arm: str
) -> list[tuple[str, dict[str, str], dict[str, str], Counter[tuple[str, int, float]]]]:
    return [run for run in content(client(tracked)).values() if run[1].get("arm") == arm]


class Killed(BaseException):
    """The process ends here."""


class Dying:
    """A client that dies after one of its calls."""

    def __init__(self, inner: Any, after: int) -> None:
        self.inner, self.after, self.calls = inner, after, 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            result = getattr(self.inner, name)(*args, **named)
            self.calls += 1
            if self.calls == self.after:
                raise Killed
            return result

        return call


def whole(tracked: Tracked) -> dict[str, Any]:
    tracked.record(*range(len(tracked.plan)))
    assert tracked.sync(status="complete") is not None
    return content(client(tracked))


def test_a_study_in_mlflow(make: Callable[..., Tracked]) -> None:
    sqlite = make()
    (sqlite.folder.path / "report").mkdir()
    (sqlite.folder.path / "report" / "index.html").write_text("the page")
    sqlite.record(0, 1, 2, 3)
    assert sqlite.sync(status="complete") == Synced(True, WHOLE)
    found = {name.rpartition(" ")[0]: run for name, run in content(client(sqlite)).items()}
    assert sorted(found) == ["strong seed 0", "strong seed 1", "study small", "weak seed 0", "weak seed 1"]
    assert {status for status, *_ in found.values()} == {"FINISHED"}
    _, tags, params, points = found["strong seed 1"]
    record = sqlite.folder.record("strong", 1)
    assert record is not None
    key = record.stages["train"].key
    expected = {
        "arm": "strong", "seed": "1", "status": "complete", "study": "small", "identity": key, "health": "not judged",
        "verdict": "SURVIVED", "device": "abacus", "mlflow.parentRunId": "study small",
    }  # fmt: skip
    assert expected.items() <= tags.items()
    assert tags["falsifier.drift"].startswith("SURVIVED: ")
    assert tags["mlflow.note.content"] == "`kl.beta` = 0.2"
    assert params["kl.beta"] == "0.2"
    assert points["policy/entropy", 49, 2.0 - 0.48] == points["eval/win_rate", 64, 0.6] == 1
    assert set(points.values()) == {1}
    _, tags, params, points = found["study small"]
    assert (params, dict(points)) == ({}, {("falsifier/survived", 0, 4.0): 1})
    assert "**Question.** Does it work?" in tags["mlflow.note.content"]
    assert tags["badge.drift"] == "registered before the data"
    assert tags["registration"] == read_chain(sqlite.folder)[-1].digest
    assert (tags["verdict"], tags["falsifier.drift"]) == ("SURVIVED", "SURVIVED: 4 SURVIVED")
    at = client(sqlite)
    runs = {run.info.run_name: run.info.run_id for run in at.search_runs(["1"])}
    assert [one.path for one in at.list_artifacts(runs["study small"], "report")] == ["report/index.html"]
    assert {one.path for one in at.list_artifacts(runs["weak seed 0"])} == {"evaluate", "weak__seed0.json"}
    assert at.get_experiment("1").tags[TAG] == saved_view()


def test_samples_are_sent_as_a_table_that_mlflow_hands_out_as_a_download(tmp_path: Path) -> None:
    from flask import Flask
    from mlflow.server import handlers
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    pd.DataFrame({"completion": ["<script>alert(1)</script>"]}).to_parquet(tmp_path / "samples.parquet")
    upload(sent := Mock(), "run", "train", tmp_path / "samples.parquet")
    sent.log_text.assert_called_with("run", text := '"completion"\n"<script>alert(1)</script>"\n', "train/samples.csv")
    (tmp_path / "samples.csv").write_text(text)
    with Flask("test").test_request_context():
        answer = handlers._send_artifact(LocalArtifactRepository(str(tmp_path)), "samples.csv")
        answer.close()
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_what_mlflow_has_is_not_sent_again(make: Callable[..., Tracked], monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite = make()
    before = whole(sqlite)
    with monkeypatch.context() as patch:
        patch.setattr(store, "connect", lambda layout: pytest.fail("there is nothing to send"))
        assert sqlite.sync(status="complete") == sqlite.sync() == Synced(True, 0)
        assert sqlite.moved(sqlite.layout.root.with_name("moved")).sync(status="complete") == Synced(True, 0)
    text = Path(sqlite.study.source).read_text().replace("threshold: 0.5", "threshold: 0.1")
    Path(sqlite.study.source).write_text(text)
    sqlite.study = load_study(sqlite.study.source)
    assert sqlite.sync(status="complete") == Synced(True, 4)
    after = content(client(sqlite))
    assert after.keys() == before.keys()
    tags = {name.rpartition(" ")[0]: run[1] for name, run in after.items()}
    assert tags["weak seed 1"]["falsifier.drift"] == "FALSIFIED: 0.1455 at step 16"
    assert tags["study small"]["verdict"] == "FALSIFIED"


def test_a_trial_that_runs_stops_and_ends(make: Callable[..., Tracked], empty_store: Path) -> None:
    sqlite = make()

    def shown() -> dict[str, tuple[str, str]]:
        found = content(client(sqlite))
        return {name.rpartition(" ")[0]: (run[0], run[1].get("status", "")) for name, run in found.items()}

    assert sqlite.sync(sqlite.running(0, 3, half=b'{"step": 17, "pol')) == Synced(True, 9)
    assert shown() == {"study small": ("RUNNING", ""), "weak seed 0": ("RUNNING", "running")}
    assert sqlite.sync(sqlite.running(0, 2)) == Synced(True, 0), "a resumed trial writes again what was sent"
    assert sqlite.sync(status="interrupted") == Synced(True, 0)
    assert shown() == dict.fromkeys(shown(), ("KILLED", "interrupted"))
    assert sqlite.sync(sqlite.running(0, 5)) == Synced(True, 5)
    assert shown() == dict.fromkeys(shown(), ("RUNNING", "running"))
    sqlite.record(0)
    assert sqlite.sync(sqlite.running(1, 1)) == Synced(True, 6 + 4 + 1 + 4)
    assert shown()["weak seed 0"] == ("FINISHED", "complete")
    assert whole(sqlite) == sent_at_once(sqlite, empty_store)


def sent_at_once(tracked: Tracked, empty_store: Path) -> dict[str, Any]:
    """Return the same records in a store that was empty."""
    copy = tracked.moved(tracked.layout.root.with_name("copy"))
    shutil.copy(empty_store, copy.layout.mlflow_file)
    assert copy.sync(status="complete") is not None
    return content(client(copy))


def delete_parent(tracked: Tracked) -> None:
    at = client(tracked)
    (run,) = at.search_runs(["1"], "attributes.run_name = 'study small'")
    at.delete_run(run.info.run_id)


HARMS: dict[str, Callable[[Tracked], object]] = {
    "no state": lambda tracked: tracked.folder.mlflow_state.unlink(),
    "no parent run": delete_parent,
    "no database": lambda tracked: tracked.layout.mlflow_file.unlink(),
}


@pytest.mark.parametrize("harm", ["no state", "no parent run", pytest.param("no database", marks=pytest.mark.slow)])
def test_everything_comes_back(make: Callable[..., Tracked], tmp_path: Path, harm: str) -> None:
    tracked = make(SHORT)
    before = whole(tracked)
    copy = tracked.moved(tmp_path / "copy")
    HARMS[harm](copy)
    done = copy.sync(status="complete")
    assert done is not None
    assert done.complete
    assert content(client(copy)) == before
    assert copy.sync(status="complete") == Synced(True, 0)


@pytest.mark.parametrize("taken", [1, 2])
def test_experiments_of_another_program_are_left_alone(make: Callable[..., Tracked], taken: int) -> None:
    tracked = make(SHORT)
    at = client(tracked)
    for name in ("small", "small (ablate)")[:taken]:
        at.create_run(at.create_experiment(name))
    tracked.record(0)
    assert tracked.sync() == (Synced(True, 25) if taken == 1 else Synced(False, 0))
    (warning,) = tracked.warnings
    if taken == 2:
        assert "the experiments 'small' and 'small (ablate)' belong to another program" in warning
    else:
        assert warning == "experiment 'small' holds runs of another program; these runs go to 'small (ablate)'"
        assert len(content(at, "small (ablate)")) == 2


@pytest.mark.parametrize("first", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_process_that_dies_after_any_call_loses_no_point_and_doubles_none(
    make: Callable[..., Tracked], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Nor does a lost answer: the next process has only what the file held when the pass began."""
    fresh, saved, connect = make(SHORT), Runs.save, store.connect

    def run(dies_after: int) -> tuple[dict[str, Any], int]:
        tracked = fresh.moved(fresh.layout.root.with_name(f"out{dies_after}"))
        dying = Dying(connect(tracked.layout), dies_after)
        monkeypatch.setattr(store, "connect", lambda layout: dying)
        monkeypatch.setattr(Runs, "save", lambda self: None if dying.calls == dying.after else saved(self))
        trials = [tracked.running(0, 3), tracked.running(1, 2)]
        for one in (
            lambda: tracked.sync(*trials),
            lambda: (tracked.running(0, 6), tracked.sync(*trials)),
            lambda: (tracked.record(0), tracked.sync(trials[1])),
            lambda: (tracked.record(1), tracked.sync(status="complete")),
        ):
            try:
                one()
            except Killed:
                one()
        assert tracked.warnings == []
        return content(dying.inner), dying.calls

    undisturbed, calls = run(0)
    assert calls > 30
    for call in range(first, calls + 1, 5):
        assert run(call)[0] == undisturbed, call


def test_the_limits_of_a_batch(make: Callable[..., Tracked]) -> None:
    tracked = make(SHORT)
    one = tracked.running(0, 0)
    with MetricsLog(one.metrics) as log:
        for step in range(1200):
            log.append(step, {"objective/kl": step / 7, "policy/entropy": 1.0, "policy/grad_norm": 2.0})
    norms = [("policy/grad_norm", step, 2.0) for step in range(1, 1200, 7)]
    assert tracked.sync(one) == Synced(True, 2400 + len(norms))
    ((_, _, params, points),) = runs(tracked, "weak")
    assert len(points) == points.total() == 2400 + len(norms)
    assert [point for point in points if point[0] == "policy/grad_norm"] == norms
    assert len(params) > 100


@pytest.mark.parametrize(
    ("status", "shown"), [("budget", "FINISHED"), ("diverged", "FINISHED"), ("failed", "FAILED"), ("pruned", "KILLED")]
)
def test_how_a_trial_ended(make: Callable[..., Tracked], status: str, shown: str) -> None:
    tracked = make(SHORT)
    tracked.record(0, status=status, reason="why", **({"stages": {}, "summary": {}} if status == "failed" else {}))
    tracked.sync()
    ((found, tags, _, _),) = runs(tracked, "weak")
    assert (found, tags["status"], tags["reason"]) == (shown, status, "why")
    assert (tags["identity"] == "none") == (status == "failed")


def test_a_trial_in_rounds_is_shown_in_its_last_one(make: Callable[..., Tracked]) -> None:
    tracked = make(SHORT)
    one = tracked.running(0, 3)
    earlier = one.metrics.parents[3] / "train_round" / Path(*one.metrics.parts[-3:])
    shutil.copytree(one.metrics.parent, earlier.parent)
    assert tracked.sync(sync.Running(one.arm, one.seed, one.config, earlier)) == Synced(True, 0)
    assert client(tracked).get_experiment_by_name("small") is None


def test_the_end_of_the_baseline_decides_claims_on_trials_that_ended_before(make: Callable[..., Tracked]) -> None:
    claim = 'op: ">", threshold: 0.1, before_step: 60, relative_to: baseline}'
    tracked = make(SHORT.replace("baseline: weak", "baseline: strong").partition("op:")[0] + claim + "\n")
    tracked.record(0)
    tracked.sync()
    assert runs(tracked, "weak")[0][1]["verdict"] == "NOT TESTED"
    tracked.record(1)
    assert tracked.sync(status="complete") == Synced(True, 1 + 20 + 4 + 1)
    assert runs(tracked, "weak")[0][1]["falsifier.drift"].startswith("FALSIFIED: ")
    assert "falsifier.drift" not in runs(tracked, "strong")[0][1], "the baseline is not compared with itself"
    assert tracked.sync(status="complete") == Synced(True, 0)


def test_a_server_that_is_away_is_one_warning_without_the_password(
    make: Callable[..., Tracked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    tracked = make(SHORT)
    tracked.record(0)
    assert tracked.sync(status="complete") == Synced(False, 0)
    assert len(tracked.warnings) == 1
    assert tracked.warnings[0].startswith("MLflow did not take study small (MlflowException: API request")
    assert "`ablate sync` sends it later" in tracked.warnings[0]
    files = [path for path in tracked.layout.root.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert "hunter2" not in tracked.warnings[0]


def test_one_process_at_a_time(make: Callable[..., Tracked]) -> None:
    tracked = make(SHORT)
    with FileLock(tracked.folder.path / ".mlflow.lock"):
        assert tracked.sync() is None


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "EVERY_S", 0.01)
    monkeypatch.setattr(sync, "AGAIN_S", 0.01)
    monkeypatch.setattr(sync, "PATIENCE_S", 0.2)


@pytest.fixture
def trial(make: Callable[..., Tracked]) -> Running:
    return make().running(0, 1)


def test_it_sends_what_runs_and_the_rest_at_the_end(trial: Running) -> None:
    passes: list[dict[str, Any]] = []
    answers = iter([None])  # another process sends meanwhile
    last = {"status": "complete", "verdicts": [1]}

    def send(*, warn: Callable[[str], None], **how: Any) -> Synced | None:
        passes.append(how)
        return next(answers, Synced(True, 0)) if how == last else Synced(True, 0)

    running = [trial]
    thread = Background(send, lambda: running[:], print)
    thread.begin()
    wait_until(lambda: {"running": [trial]} in passes)
    running.clear()
    wait_until(lambda: passes[-1] == {"running": []})
    thread.end("complete", verdicts=[1])
    assert passes[-2:] == [last, last]


def test_damage_is_raised_at_the_end(trial: Running) -> None:
    def send(**how: Any) -> Synced:
        raise Damaged(trial.metrics, "it is no record")

    thread = Background(send, lambda: [trial], print)
    thread.begin()
    with pytest.raises(Damaged, match="it is no record"):
        thread.end("complete")


@pytest.mark.parametrize("status", ["interrupted", "complete"])
def test_only_a_complete_study_waits_for_a_server_that_hangs(status: str) -> None:
    release, warnings = threading.Event(), list[str]()

    def send(**how: Any) -> Synced:
        release.wait(60)
        return Synced(True, 0)

    if status == "complete":
        threading.Timer(1.0, release.set).start()
    Background(send, list, warnings.append).end(status)
    assert release.is_set() == (status == "complete")
    assert len(warnings) == 1
    release.set()
