"""The MLflow runs of a study folder, and the file that lists what MLflow has, so that nothing is sent twice.

The process may die, and an answer may be lost, between any two calls. Then the file is behind: a run is looked up in
MLflow before it is made, and MLflow ignores a point that it has, since a point is always sent with the same time.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.config.trial import canonical_json
from pipeline.errors import Damaged
from pipeline.run.layout import Layout, StudyFolder, read_sealed, sealed, write_atomic
from studies.tracking import store

STUDY = "study"
"""Key of the parent run."""
RUNNING, INTERRUPTED = "running", "interrupted"
ENDS = {"complete": "FINISHED", "budget": "FINISHED", "diverged": "FINISHED", "failed": "FAILED"}
"""MLflow's word for the end of a run; any other end is KILLED. A diverged trial is a result."""
MAX_METRICS, MAX_PARAMS, MAX_VALUE = 1000, 100, 6000
DENSE = {"policy/entropy", "policy/kl_ref_per_token"}
"""Series of gradient steps of which MLflow has every step."""
STRIDE = 7
"""It has every seventh of the others; the records have all. A value costs it a tenth of a millisecond, those of a study
of 25 small trials a minute, and its charts show 320 of a curve. An update has a number of steps that 7 seldom divides,
so that no place in an update is preferred."""


@dataclass
class Run:
    """The content of a run in MLflow."""

    id: str
    began_ms: int
    """A point of a series has this time plus its step in ms."""
    shown: str = ""
    """`RUNNING`, `INTERRUPTED`, or the fingerprint of the record that the run shows in full."""
    sent_bytes: int = 0
    """Bytes of the metrics file that were sent."""
    step: int = 0
    """Step of the last row that was sent."""


class Runs:
    """The runs by key: ``study``, or ARM__seedSEED__IDENTITY. Raises whatever MLflow raises."""

    def __init__(self, layout: Layout, folder: StudyFolder, warn: Callable[[str], None]) -> None:
        self._layout, self._folder, self.warn = layout, folder, warn
        self._server = store.public(store.server() or "")
        self.metrics_sent = 0
        self._on_file: dict[str, Any] = {}
        with suppress(Damaged):  # or none
            self._on_file = read_sealed(folder.mlflow_state)
        known = self._on_file if self._on_file.get("server") == self._server else {}
        self.experiment: str = known.get("experiment", "")
        self.states = {key: Run(**run) for key, run in known.get("runs", {}).items()}
        parent = self.states[STUDY].id if STUDY in self.states else ""
        if not store.has_run(layout, self.experiment, parent):
            self.states.clear()

    def save(self) -> None:
        """Write the file. Without it nothing is lost, but runs are looked up, and points are sent again."""
        runs = {key: asdict(run) for key, run in self.states.items()}
        content = {"server": self._server, "experiment": self.experiment, "runs": runs}
        if self.states and content != self._on_file:
            write_atomic(self._folder.mlflow_state, sealed(content))

    @cached_property
    def client(self) -> Any:
        """MLflow, from the first time that something has to be sent."""
        return store.connect(self._layout)

    @cached_property
    def _origin(self) -> str:
        """A random name of the folder, which sets its runs apart from those of others in a server's store."""
        file = self._folder.path / "origin.txt"
        if self._server and not file.exists():
            write_atomic(file, f"{uuid.uuid4().hex}\n")
        return file.read_text("ascii").strip() if self._server else ""

    def open(self, key: str, name: str, tags: Mapping[str, str], params: Mapping[str, Any]) -> None:
        """Find or make a run, a trial's below the parent run. Of several runs of one trial, which lost answers may have
        left, one stays: every mean over seeds would count the seed twice."""
        from mlflow.entities import Param

        own = {"identity": key.rpartition("__")[2]} | ({"origin": self._origin} if self._origin else {})
        query = " AND ".join([f"attributes.run_name = '{name}'", *(f"tags.{tag} = '{own[tag]}'" for tag in own)])
        own |= {"mlflow.parentRunId": self.states[STUDY].id} if key != STUDY else {}
        texts = {name: text[:MAX_VALUE] for name, text in {**tags, **own, "mlflow.source.name": "ablate"}.items()}
        found = self.client.search_runs([self.experiment], query)
        known = _tags(texts) if found else []  # a new run has them
        if not found:
            found = [self.client.create_run(self.experiment, run_name=name, tags=texts)]
            if self._server:  # the client repeats a request whose answer is lost
                found = self.client.search_runs([self.experiment], query)
        first, *others = (run.info for run in found)
        for other in others:
            self.client.delete_run(other.run_id)
        content = [Param(name, str(value)[:MAX_VALUE]) for name, value in params.items()]
        for start in range(0, len(content) or 1, MAX_PARAMS):
            self.client.log_batch(first.run_id, params=content[start : start + MAX_PARAMS], tags=known)
        self.states[key] = Run(first.run_id, first.start_time, RUNNING if first.status == "RUNNING" else "")

    def attempt(self, key: str, send: Callable[[], None]) -> None:
        """Send something of a trial's run. A run that MLflow refuses is looked up again: it may have been deleted. One
        that a failure of the server or the network stopped goes on where it was."""
        try:
            send()
        except Exception as error:
            if getattr(error, "error_code", "") != "INTERNAL_ERROR":
                self.states.pop(key, None)
            raise

    def mark(self, key: str, status: str) -> None:
        """Show a run as running or interrupted."""
        run = self.states[key]
        if run.shown != status:
            self.client.set_tag(run.id, "status", status)
            if status == RUNNING:
                self.client.update_run(run.id, status="RUNNING")
            else:
                self.client.set_terminated(run.id, status="KILLED")
            run.shown = status

    def send_rows(self, key: str, metrics: Path, stride: int) -> None:
        """Send the complete new lines of a metrics file; of series of gradient steps but `DENSE`, one in `stride`.
        A resumed trial first writes again lines that were sent."""
        run = self.states[key]
        for end, points in _batches(metrics, run.sent_bytes, stride):
            from mlflow.entities import Metric

            batch = [Metric(name, value, run.began_ms + step, step) for name, value, step in points]
            self.client.log_batch(run.id, metrics=batch)
            self.metrics_sent += len(batch)
            run.sent_bytes, run.step = end, max(run.step, batch[-1].step)

    def finish(
        self,
        key: str,
        shown: str,
        status: str,
        summary: Mapping[str, float],
        step: int,
        tags: Mapping[str, str],
        artifacts: Sequence[tuple[str, Path]],
    ) -> None:
        """Send the end of a run. The summary stands at `step`, or at the last row where that is later; `artifacts` are
        (folder within the run, file)."""
        from mlflow.entities import Metric

        run = self.states[key]
        ended = run.shown not in (RUNNING, INTERRUPTED)  # before: its summary may be there, with other values
        has = self.client.get_run(run.id).data.metrics if ended else {}
        at, now = max(step, run.step), int(time.time() * 1000)
        new = {name: value for name, value in summary.items() if math.isfinite(value) and has.get(name) != value}
        points = [Metric(name, value, now if name in has else run.began_ms + at, at) for name, value in new.items()]
        self.client.log_batch(run.id, metrics=points, tags=_tags({**tags, "status": status}))
        self.metrics_sent += len(points)
        for folder, file in artifacts:
            upload(self.client, run.id, folder, file)
        self.client.set_terminated(run.id, status=ENDS.get(status, "KILLED"))
        run.shown = shown


def digest_of(content: Any) -> str:
    """16 hexadecimal digits of a value that JSON can hold."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def upload(client: Any, run: str, folder: str, file: Path) -> None:
    """Send a file as an artifact; a table in parquet becomes CSV, which MLflow can show."""
    if file.suffix != ".parquet":
        client.log_artifact(run, str(file), folder or None)
        return
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    text = io.BytesIO()
    csv.write_csv(pq.read_table(file), text)
    client.log_text(run, text.getvalue().decode(), f"{folder}/{file.stem}.csv")


def _tags(texts: Mapping[str, str]) -> list[Any]:
    from mlflow.entities import RunTag

    return [RunTag(name, text[:MAX_VALUE]) for name, text in texts.items()]


def _sent(name: str, step: int, stride: int) -> bool:
    return name in DENSE or not name.startswith(("policy/", "value/")) or step % stride == 1 % stride


def _batches(metrics: Path, sent: int, stride: int) -> Iterator[tuple[int, list[tuple[str, float, int]]]]:
    """Yield (offset of its end, points) for each batch of whole rows after `sent` bytes; a point is (name, value,
    step)."""
    try:
        with metrics.open("rb") as file:
            if sent:
                file.seek(sent - 1)
                file.readline()  # the end of the row that was sent last
            end, lines = file.tell(), file.read().rpartition(b"\n")[0]
    except FileNotFoundError:  # moved to its final place: the trial has just ended
        return
    points = list[tuple[str, float, int]]()
    for line in lines.splitlines():
        row = json.loads(line)
        step = int(row.pop("step"))
        if points and len(points) + len(row) > MAX_METRICS:
            yield end, points
            points = []
        points += [(name, value, step) for name, value in row.items() if _sent(name, step, stride)]
        end += len(line) + 1
    if points:
        yield end, points
