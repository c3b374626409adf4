from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.layout import Layout
from pipeline.run.metrics_log import MetricsLog
from studies.tracking.trial_run import MAX_METRICS, MlflowSink, experiments, prepare_store

Client = Any


@pytest.fixture(scope="module", autouse=True)
def _impatient_sqlite() -> Iterator[None]:
    """Databases of tests need not survive a power cut; waiting for the disk would be most of their time."""
    from sqlalchemy import Engine, event

    def hurry(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", hurry)
    yield
    event.remove(Engine, "connect", hurry)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = Layout(tmp_path_factory.mktemp("store"))
    prepare_store(layout)
    return layout.root / "mlflow.db"


@pytest.fixture
def layout(tmp_path: Path, empty_store: Path) -> Layout:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Layout(tmp_path)


@pytest.fixture
def client(layout: Layout) -> Client:
    from mlflow.tracking import MlflowClient

    return MlflowClient(layout.mlflow_uri)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def sink(layout: Layout, **changes: Any) -> MlflowSink:
    values: dict[str, Any] = {
        "uri": layout.mlflow_uri,
        "artifact_location": layout.mlflow_artifacts.as_uri(),
        "experiment": "small",
        "state_file": layout.root / "state.json",
        "run_name": "weak seed 0",
        "parent_run_id": None,
        "tags": {"arm": "weak"},
        "params": {"optimiser.lr": 1e-4},
        "identity": "key1",
        "interval": 0.05,
    }
    return MlflowSink(**{**values, **changes})


def write(log: Path, steps: range) -> None:
    with MetricsLog(log) as metrics:
        for step in steps:
            metrics.append(step, {"objective/kl": step / 7, "policy/entropy": 1.0})


def series(client: Client, run_id: str | None, key: str = "objective/kl") -> list[tuple[int, float]]:
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run_id, key))


def wait_for(run: MlflowSink, sent: int) -> None:
    deadline = time.monotonic() + 60
    while run.state.sent_bytes < sent:
        assert time.monotonic() < deadline, run.state
        time.sleep(0.02)


def test_store_is_complete_and_alone(empty_store: Path) -> None:
    assert [path.name for path in empty_store.parent.iterdir() if path.name != ".mlflow.lock"] == ["mlflow.db"]


def test_studies_are_listed_by_their_latest_run_and_other_experiments_are_not(layout: Layout, client: Client) -> None:
    assert experiments(layout.mlflow_uri) == []
    for start, name in enumerate(("older", "newer", "somebody's own"), 1):
        client.create_run(client.create_experiment(name), start_time=start, tags={"study": name} if start < 3 else {})
    assert [(one.name, one.run_tags["study"]) for one in experiments(layout.mlflow_uri)] == [
        ("newer", "newer"),
        ("older", "older"),
    ]


def test_a_run_arrives_whole_and_is_never_sent_twice(layout: Layout, client: Client, log: Path) -> None:
    write(log, range(700))
    artifact = layout.root / "trial.json"
    artifact.write_text("{}")
    run = sink(layout, params={f"key{i}": "x" * 7000 for i in range(150)})
    assert run.finish(log, "complete", {"eval/win_rate": 0.7}, {"seed": "0"}, [("", artifact)], 7)
    assert run.metrics_sent == 1401
    found = client.get_run(run.state.run_id)
    assert found.info.status == "FINISHED"
    assert (found.data.tags["arm"], found.data.tags["seed"], found.data.tags["status"]) == ("weak", "0", "complete")
    assert len(found.data.params) == 150
    assert {len(value) for value in found.data.params.values()} == {6000}
    assert series(client, run.state.run_id) == [(step, step / 7) for step in range(700)]
    assert series(client, run.state.run_id, "eval/win_rate") == [(699, 0.7)], "at the last record"
    assert [one.path for one in client.list_artifacts(run.state.run_id)] == ["trial.json"]
    again = sink(layout)
    assert again.knows(log, "complete", {"eval/win_rate": 0.7}, {"seed": "0"})
    assert again.finish(log, "complete", {"eval/win_rate": 0.7}, {"seed": "0"})
    assert again.metrics_sent == 0
    assert not again.knows(log, "complete", {"eval/win_rate": 0.8}, {"seed": "0"})


def test_following_sends_whole_lines_only_and_survives_a_resume(layout: Layout, client: Client, log: Path) -> None:
    write(log, range(10))
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:5]) + lines[5][:9])
    run = sink(layout)
    run.follow(log)
    wait_for(run, len(b"".join(lines[:5])))
    log.write_bytes(b"".join(lines[:2]))
    time.sleep(0.2)
    assert run.state.sent_bytes == len(b"".join(lines[:5]))
    log.write_bytes(whole)
    wait_for(run, len(whole))
    run.stop()
    assert series(client, run.state.run_id) == [(step, step / 7) for step in range(10)]
    assert client.get_run(run.state.run_id).info.status == "KILLED"
    other = sink(layout)
    assert other.finish(log, "diverged", {}, {})
    assert other.metrics_sent == 0
    assert client.get_run(run.state.run_id).info.status == "FINISHED"
    assert len(client.search_runs([client.get_experiment_by_name("small").experiment_id])) == 1


def test_a_file_that_moves_to_its_final_place_while_mlflow_answers_is_sent(
    layout: Layout, client: Client, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, range(5))
    run = sink(layout)
    opened = run._open

    def moves() -> None:
        log.rename(log.with_name("published.jsonl"))
        opened()

    monkeypatch.setattr(run, "_open", moves)
    run._send_file(log)
    assert series(client, run.state.run_id) == [(step, step / 7) for step in range(5)]
    run._send_file(log)


def test_a_batch_whose_answer_was_lost_is_the_same_batch_again(
    layout: Layout, client: Client, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow took the batch, but the process died before it could note that."""
    write(log, range(30))
    run = sink(layout)
    run.start()
    real = run._client.log_batch

    def dies(run_id: str, **content: Any) -> None:
        real(run_id, **content)
        raise ConnectionError("gone")

    monkeypatch.setattr(run._client, "log_batch", dies)
    assert not run.finish(log, "complete", {}, {})
    assert run.state.sent_bytes == 0
    whole = log.read_bytes()
    log.write_bytes(whole[: whole.index(b"\n") + 1])  # a resumed trial starts again before the end of that batch
    waiting = sink(layout)
    waiting._send_file(log)
    assert waiting.metrics_sent == 0
    log.write_bytes(whole)
    with MetricsLog.resume(log, log.stat().st_size) as metrics:
        metrics.append(30, {"objective/kl": 30 / 7})
    assert sink(layout).finish(log, "complete", {}, {})
    assert series(client, run.state.run_id) == [(step, step / 7) for step in range(31)]


def test_batches_keep_the_limit_and_whole_lines(layout: Layout, log: Path) -> None:
    write(log, range(1200))
    lines = log.read_bytes().splitlines(keepends=True)
    batches = list(sink(layout)._batches(lines))
    assert [len(metrics) for _, metrics in batches] == [1000, 1000, 400]
    assert all(len(metrics) <= MAX_METRICS for _, metrics in batches)
    assert [end for end, _ in batches] == [
        sum(map(len, lines[:500])),
        sum(map(len, lines[:1000])),
        sum(map(len, lines)),
    ]


def test_mlflow_being_away_is_told_once_and_made_up_for(layout: Layout, client: Client, log: Path) -> None:
    write(log, range(5))
    said: list[str] = []
    database, aside = layout.root / "mlflow.db", layout.root / "aside.db"
    away = sink(layout, uri="http://127.0.0.1:9", warn=said.append)
    away.follow(log)
    time.sleep(0.3)
    assert not away.finish(log, "complete", {}, {})
    away.stop()
    assert len(said) == 1
    assert "ablate sync" in said[0]
    assert database.exists()
    assert not aside.exists()
    back = sink(layout)
    assert back.finish(log, "complete", {}, {})
    assert series(client, back.state.run_id) == [(step, step / 7) for step in range(5)]


def test_another_identity_or_a_deleted_store_starts_afresh(
    layout: Layout, client: Client, log: Path, empty_store: Path
) -> None:
    write(log, range(5))
    first, second = sink(layout), sink(layout, identity="key2")
    assert first.finish(log, "complete", {}, {})
    second = sink(layout, identity="key2")
    assert second.finish(log, "complete", {}, {})
    assert second.state.run_id != first.state.run_id
    (layout.root / "mlflow.db").unlink()
    assert not sink(layout, identity="key2").knows(log, "complete", {}, {})


def test_a_store_that_has_moved_with_its_state_files_is_told_nothing_again(
    layout: Layout, log: Path, tmp_path: Path
) -> None:
    write(log, range(5))
    first = sink(layout)
    assert first.finish(log, "complete", {}, {})
    shutil.copytree(layout.root, tmp_path / "elsewhere" / "out")
    assert sink(Layout(tmp_path / "elsewhere" / "out")).knows(log, "complete", {}, {})


@pytest.mark.parametrize("harm", ["gone", "garbage"])
def test_the_run_of_a_lost_state_file_is_replaced(layout: Layout, client: Client, log: Path, harm: str) -> None:
    write(log, range(5))
    different: list[dict[str, Any]] = [{"identity": "key2"}, {"run_name": "weak seed 1"}]
    others = [sink(layout, state_file=layout.root / f"{number}.json", **one) for number, one in enumerate(different)]
    assert all(one.finish(log, "complete", {}, {}) for one in [sink(layout), *others])
    state = layout.root / "state.json"
    state.unlink() if harm == "gone" else state.write_text("garbage")
    again = sink(layout)
    assert again.finish(log, "complete", {}, {})
    experiment = client.get_experiment_by_name("small").experiment_id
    shown = {run.info.run_id for run in client.search_runs([experiment])}
    assert shown == {again.state.run_id, *(one.state.run_id for one in others)}


def test_a_run_that_mlflow_no_longer_has_is_made_again(layout: Layout, client: Client, log: Path) -> None:
    write(log, range(5))
    first = sink(layout)
    first.follow(log)
    wait_for(first, log.stat().st_size)
    first.stop()
    client.delete_run(first.state.run_id)
    again = sink(layout)
    assert again.finish(log, "complete", {}, {})
    assert again.state.run_id != first.state.run_id
    assert len(series(client, again.state.run_id)) == 5


def test_passwords_of_a_server_stay_out_of_files(layout: Layout) -> None:
    run = sink(layout, uri="http://me:secret@127.0.0.1:9")
    run._save()
    assert "secret" not in (layout.root / "state.json").read_text()
    assert run.state.uri == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("status", "shown"), [("budget", "FINISHED"), ("failed", "FAILED"), ("pruned", "KILLED"), ("interrupted", "KILLED")]
)
def test_status(layout: Layout, client: Client, status: str, shown: str) -> None:
    run = sink(layout)
    assert run.finish(None, status, {}, {})
    assert client.get_run(run.state.run_id).info.status == shown


def test_what_a_killed_process_left_of_a_new_store_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".mlflow-new"
    left.mkdir()
    for name in ("mlflow.db", "mlflow.db-journal"):
        (left / name).write_bytes(b"half a database")
    prepare_store(Layout(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} - {".mlflow.lock"} == {"mlflow.db"}
    assert experiments(Layout(tmp_path).mlflow_uri) == []
