"""MLflow as a sink: a run that follows one `metrics.jsonl` and never disturbs what writes it.

Whatever MLflow missed (it was away, it was slow, the process was killed) is sent later from the same file by
the same code, and nothing is sent twice.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from pipeline.config.trial import canonical_json
from pipeline.errors import Damaged
from pipeline.run.layout import Layout, read_sealed, sealed, write_atomic
from pipeline.run.metrics_log import read_rows

SQLITE = "sqlite:///"
IDENTITY = "identity"
"""Tag of what a run is about."""
ORIGIN = "origin"
"""Tag of the study folder that a run is of, in a store that others use too."""
SOURCE = "mlflow.source.name"
PROGRAM = "ablate"
MAX_METRICS = 1000
MAX_PARAMS = 100
MAX_VALUE = 6000
STATUS = {"complete": "FINISHED", "budget": "FINISHED", "diverged": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}
"""A diverged trial is a result and so FINISHED; its `status` tag says which. Anything else ends as KILLED."""


def tracking_uri(layout: Layout) -> str:
    """MLflow's own ``MLFLOW_TRACKING_URI`` where the user set it, else the database under the output root."""
    return os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri


def prepare_store(layout: Layout) -> None:
    """Create the MLflow database once, complete or not at all; later calls cost one look at the file.

    Two processes that open a fresh database would both migrate it, and one would fail: so the driver does
    it before anything else, beside the final name and under a lock.
    """
    database = layout.root / "mlflow.db"
    if database.exists() or tracking_uri(layout) != layout.mlflow_uri:
        return
    layout.root.mkdir(parents=True, exist_ok=True)
    with FileLock(layout.root / ".mlflow.lock"):
        if database.exists():
            return
        beside = layout.root / ".mlflow-new"  # with SQLite's journal; what a killed process left is removed
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            _client(f"sqlite:///{beside / database.name}").search_experiments(max_results=1)
            (beside / database.name).replace(database)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


@dataclass(frozen=True)
class Experiment:
    """An experiment with runs of ours."""

    name: str
    id: str
    run_tags: Mapping[str, str]
    """Of its latest run."""


def experiments(uri: str, query: str | None = None) -> list[Experiment]:
    """The studies in a store, the one with the latest run first; `query` is one of MLflow's, on experiments."""
    client, dated = _client(uri), list[tuple[int, Experiment]]()
    for experiment in client.search_experiments(filter_string=query):
        for run in client.search_runs(
            [experiment.experiment_id], "tags.study != ''", order_by=["start_time DESC"], max_results=1
        ):
            dated.append((run.info.start_time, Experiment(experiment.name, experiment.experiment_id, run.data.tags)))
    return [experiment for _, experiment in sorted(dated, key=lambda pair: pair[0], reverse=True)]


def public(text: str) -> str:
    """A text without the names and passwords in its addresses."""
    return re.sub(r"//[^/\s]*@", "//", text)


def tag_experiment(uri: str, name: str, tags: Mapping[str, str]) -> None:
    """Set the tags that an experiment lacks or has with other values. Raises whatever MLflow raises."""
    client = _client(uri)
    experiment = client.get_experiment_by_name(name)
    for key, value in tags.items():
        if experiment.tags.get(key) != value:
            client.set_experiment_tag(experiment.experiment_id, key, value)


def _client(uri: str) -> Any:
    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    # It logs, with its SQL, what it raises as well.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return MlflowClient(uri)


class SinkState(BaseModel):
    """What MLflow has been told of one run; kept in a file so that nothing is told twice."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)
    uri: str
    """The store, as `store_mark` names it."""
    identity: str
    experiment: str
    run_id: str | None = None
    described: bool = False
    """Parameters have been sent."""
    sent_bytes: int = 0
    pending_end: int = 0
    pending_ms: int = 0
    """Where the batch now on its way ends, and its time stamp: sent again after a kill it is the same batch, which
    MLflow ignores."""
    finished: bool = False
    told: str = ""
    """Digest of the status, summary and tags with which it finished: another ending has to be told again."""
    summary: str = ""
    summary_ms: int = 0
    """Digest and time stamp of the summary: told again, it is the same records, which MLflow ignores."""


class MlflowSink:
    """One MLflow run that follows one metrics file.

    MLflow being away never reaches the caller: a failure is remembered, told once through `warn`, and
    made up for by the next call. `identity` names what the run is about (for a trial, its artifact key):
    a state file of another identity or another store is started afresh. `origin` names the study folder in a store that
    others use too; it is empty in a store of our own.
    """

    _experiments = threading.Lock()

    def __init__(
        self,
        uri: str,
        artifact_location: str | None,
        experiment: str,
        state_file: Path,
        run_name: str,
        parent_run_id: str | None,
        tags: Mapping[str, str],
        params: Mapping[str, Any],
        *,
        identity: str = "",
        origin: str = "",
        warn: Callable[[str], None] | None = None,
        interval: float = 5.0,
    ) -> None:
        self._uri, self._artifact_location, self._experiment = uri, artifact_location, experiment
        self._state_file, self._run_name = state_file, run_name
        self.parent_run_id = parent_run_id
        self._tags, self._params, self._origin = dict(tags), dict(params), origin
        self._warn, self._interval = warn, interval
        self._client: Any = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False
        self.state = self._load(identity)
        self.metrics_sent = 0
        """Metrics that this object sent."""
        self.other_name = ""
        """Of the experiment, where one of its name belongs to another program."""

    def follow(self, path: Path) -> None:
        """Send what grows in the file, from a daemon thread; a later call follows another file instead."""
        self.halt()
        self.state.finished = False
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._tail, args=(path, self._stop), name=f"mlflow {self._run_name}", daemon=True
        )
        self._thread.start()

    def start(self) -> str | None:
        """Open (or reopen) the run and return its id; None while MLflow is away."""
        self.state.finished = False
        return self.state.run_id if self._guarded(self._open) else None

    def finish(
        self,
        path: Path | None,
        status: str,
        summary: Mapping[str, float],
        tags: Mapping[str, str],
        artifacts: Sequence[tuple[str, Path]] = (),
        step: int = 0,
        judged: Mapping[str, str] | None = None,
    ) -> bool:
        """Send the rest of the file, summary metrics, tags and artifacts, and end the run. False when MLflow failed.

        The summary stands at `step`, or at the last record where that is later: records stand at planned steps.
        `artifacts` are ``(folder within the run, file)``; tables in parquet arrive as CSV, which MLflow can show.
        `judged` are tags that follow from the rest, in place of those of `tags` with the same names; `knows` does not
        ask for them.
        """
        self.halt()
        return self._guarded(lambda: self._finish(path, status, summary, tags, artifacts, step, judged or {}))

    def stop(self, status: str = "interrupted") -> None:
        """Leave the run as it is, for a later process to go on with; MLflow shows it as killed meanwhile."""
        self.halt()
        if self.state.run_id and self._client is not None and not self.state.finished:
            self._guarded(lambda: self._terminate(status))

    def _load(self, identity: str) -> SinkState:
        fresh = self._fresh(identity)
        try:
            state = SinkState.model_validate(read_sealed(self._state_file))
        except (
            Damaged,
            ValueError,
        ):  # none, one that `studies.tracking.repair` has yet to set aside, or that of another version
            return fresh
        same = (state.uri, state.identity, state.experiment) == (fresh.uri, fresh.identity, fresh.experiment)
        return state if same and not _lost(self._uri) else fresh

    def _fresh(self, identity: str) -> SinkState:
        return SinkState(uri=store_mark(self._uri, self._state_file), identity=identity, experiment=self._experiment)

    def _save(self) -> None:
        write_atomic(self._state_file, sealed(self.state.model_dump()))

    def _guarded(self, action: Callable[[], None]) -> bool:
        with self._lock:
            try:
                action()
            except Exception as error:  # MLflow raises whatever its store, its server or its network raise
                if self._warn and not self._warned:
                    line = public((str(error).strip().splitlines() or [""])[0])[:200]
                    self._warn(
                        f"MLflow did not take {self._run_name} ({type(error).__name__}: {line}); `ablate sync` sends it"
                        " later"
                    )
                self._warned = True
                return False
            return True

    def halt(self) -> None:
        """Stop following. What is being sent is sent first."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _tail(self, path: Path, stop: threading.Event) -> None:
        pause = self._interval
        while not stop.wait(pause):
            well = self._guarded(lambda: self._send_file(path))
            pause = self._interval if well else min(2 * pause, 60.0)

    def _open(self) -> None:
        if self._client is not None:
            return
        client = _client(self._uri)
        if self.state.run_id and not _exists(client, self.state.run_id):
            self.state = self._fresh(self.state.identity)
        if self.state.run_id is None:
            parent = {"mlflow.parentRunId": self.parent_run_id} if self.parent_run_id else {}
            tags = {SOURCE: PROGRAM, IDENTITY: self.state.identity, **self._tags, **parent}
            tags |= {ORIGIN: self._origin} if self._origin else {}
            experiment = self._experiment_id(client)
            self._delete_forgotten(client, experiment)
            self.state.run_id = client.create_run(experiment, run_name=self._run_name, tags=tags).info.run_id
            self._save()
        else:
            client.update_run(self.state.run_id, status="RUNNING")
        if not self.state.described:
            self._describe(client)
        self._client = client

    def _delete_forgotten(self, client: Any, experiment: str) -> None:
        """Delete the runs of which a lost state file or a lost answer knew: beside the right one, every mean over seeds
        would count the seed twice.

        In a store that others use too, the same run may be that of another output root: there `origin` has to agree.
        """
        if not self._origin and not self._uri.startswith(SQLITE):
            return
        query = f"attributes.run_name = '{self._run_name}' AND tags.{IDENTITY} = '{self.state.identity}'"
        query += f" AND tags.{ORIGIN} = '{self._origin}'" if self._origin else ""
        for run in client.search_runs([experiment], query):
            if run.info.run_id != self.state.run_id:
                client.delete_run(run.info.run_id)

    def _experiment_id(self, client: Any) -> str:
        """Of the experiment with the study's name; where another program has runs in that one, of ``NAME (ablate)``."""
        names = (self._experiment, f"{self._experiment} ({PROGRAM})")
        with MlflowSink._experiments:
            for name in names:
                experiment = client.get_experiment_by_name(name) or self._created(client, name)
                if _is_ours(client, experiment):
                    if experiment.lifecycle_stage == "deleted":
                        client.restore_experiment(experiment.experiment_id)
                    self.other_name = name if name != self._experiment else ""
                    return str(experiment.experiment_id)
        raise RuntimeError(f"the experiments '{names[0]}' and '{names[1]}' belong to another program")

    def _created(self, client: Any, name: str) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return client.get_experiment(client.create_experiment(name, artifact_location=self._artifact_location))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another driver, just now
                raise
            return client.get_experiment_by_name(name)

    def _describe(self, client: Any) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)[:MAX_VALUE]) for key, value in self._params.items()]
        for start in range(0, len(params), MAX_PARAMS):
            client.log_batch(self.state.run_id, params=params[start : start + MAX_PARAMS])
        self.state.described = True
        self._save()

    def _send_file(self, path: Path) -> None:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # not begun, or just moved to its final place
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            if (
                size <= self.state.sent_bytes or size < self.state.pending_end
            ):  # a resumed trial writes again what was already sent
                return
            self._open()  # which starts from the first byte again when MLflow no longer has the run
            file.seek(self.state.sent_bytes)
            complete = file.read().rpartition(b"\n")[0]
        if not complete:
            return
        for end, metrics in self._batches(complete.splitlines(keepends=True)):
            self._send_batch(end, metrics)

    def _batches(self, lines: Sequence[bytes]) -> Iterator[tuple[int, list[tuple[str, float, int]]]]:
        """Yield (end offset, metrics) with whole lines only; a batch interrupted by a kill keeps its old borders."""
        offset, batch = self.state.sent_bytes, list[tuple[str, float, int]]()
        for line in lines:
            row = json.loads(line)
            step = int(row.pop("step"))
            if batch and (len(batch) + len(row) > MAX_METRICS or offset == self.state.pending_end):
                yield offset, batch
                batch = []
            batch += [(key, value, step) for key, value in row.items()]
            offset += len(line) if line.endswith(b"\n") else len(line) + 1
        if batch:
            yield offset, batch

    def _send_batch(self, end: int, metrics: Sequence[tuple[str, float, int]]) -> None:
        from mlflow.entities import Metric

        if self.state.pending_end != end:
            self.state.pending_end, self.state.pending_ms = end, int(time.time() * 1000)
            self._save()
        stamp = self.state.pending_ms
        self._client.log_batch(
            self.state.run_id, metrics=[Metric(key, value, stamp, step) for key, value, step in metrics]
        )
        self.metrics_sent += len(metrics)
        self.state.sent_bytes = end
        self._save()

    def knows(self, path: Path | None, status: str, summary: Mapping[str, float], tags: Mapping[str, str]) -> bool:
        """Whether MLflow has been told all of this already; asks only the state file."""
        size = path.stat().st_size if path is not None and path.exists() else 0
        return (
            self.state.finished and self.state.sent_bytes >= size and self.state.told == _ending(status, summary, tags)
        )

    def _finish(
        self,
        path: Path | None,
        status: str,
        summary: Mapping[str, float],
        tags: Mapping[str, str],
        artifacts: Sequence[tuple[str, Path]],
        step: int,
        judged: Mapping[str, str],
    ) -> None:
        if self.knows(path, status, summary, tags):
            return
        from mlflow.entities import Metric, RunTag

        self._open()
        if path is not None and path.exists():
            self._send_file(path)
            step = max([step, *(int(row["step"]) for row in read_rows(path))])
        digest = _ending("", summary, {})
        if self.state.summary != digest:
            self.state.summary, self.state.summary_ms = digest, int(time.time() * 1000)
            self._save()
        now = self.state.summary_ms
        finite = [Metric(key, value, now, step) for key, value in summary.items() if math.isfinite(value)]
        tagged = [RunTag(key, str(value)[:MAX_VALUE]) for key, value in {**tags, **judged, "status": status}.items()]
        self._client.log_batch(self.state.run_id, metrics=finite, tags=tagged)
        self.metrics_sent += len(finite)
        for folder, file in artifacts:
            if file.exists():
                self._upload(folder, file)
        if self._origin:  # a lost answer may have made another run
            self._delete_forgotten(self._client, self._client.get_run(self.state.run_id).info.experiment_id)
        self._terminate(status)
        self.state.finished, self.state.told = True, _ending(status, summary, tags)
        self._save()

    def _upload(self, folder: str, file: Path) -> None:
        if file.suffix != ".parquet":
            self._client.log_artifact(self.state.run_id, str(file), folder or None)
            return
        import pyarrow.csv as csv
        import pyarrow.parquet as pq

        text = io.BytesIO()
        csv.write_csv(pq.read_table(file), text)
        self._client.log_text(
            self.state.run_id, text.getvalue().decode(), "/".join(filter(None, (folder, f"{file.stem}.csv")))
        )

    def _terminate(self, status: str) -> None:
        self._client.set_terminated(self.state.run_id, status=STATUS.get(status, "KILLED"))
        self._client = None


def _ending(status: str, summary: Mapping[str, float], tags: Mapping[str, str]) -> str:
    content = [status, {key: repr(value) for key, value in summary.items()}, dict(tags)]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def store_mark(uri: str, state_file: Path) -> str:
    """How a state file names its store: a database by its place relative to the file, which outlives a move or a copy
    of both.

    A server by its address, without the user's name and password in it.
    """
    if uri.startswith(SQLITE):
        return Path(os.path.relpath(uri.removeprefix(SQLITE), state_file.parent)).as_posix()
    return public(uri)


def _lost(uri: str) -> bool:
    """A local store that was deleted: everything has to be told again."""
    return uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists()


def _is_ours(client: Any, experiment: Any) -> bool:
    """Whether an experiment has runs of ours, or none at all."""
    from mlflow.entities import ViewType

    if any(key.endswith(f".{PROGRAM}") for key in experiment.tags):  # the saved view
        return True
    first, ours = (
        client.search_runs([experiment.experiment_id], query, ViewType.ALL, max_results=1)
        for query in ("", f"tags.`{SOURCE}` = '{PROGRAM}'")
    )
    return bool(ours) or not first


def _exists(client: Any, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
