"""A study in MLflow: a view of its records, which one function makes and keeps up to date.

The experiment has one parent run for each study folder, and below it one run for each trial that runs or has a record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from pipeline.config.trial import TrialConfig, flatten
from pipeline.errors import Fault, Gone
from pipeline.run.layout import Layout, StudyFolder, TrialRecord
from pipeline.run.store import file_digest, file_of
from pipeline.wording import in_words
from studies.claims.falsifiers import Verdict
from studies.claims.symptoms import health_of
from studies.claims.verdicts import of_record
from studies.definition.design import Planned
from studies.definition.schema import Study
from studies.tracking import describe, store
from studies.tracking.runs import INTERRUPTED, RUNNING, STRIDE, STUDY, Runs, digest_of

ARTIFACTS = (
    ("train", "samples.parquet"),
    ("train", "status.json"),
    ("evaluate", "summary.json"),
    ("evaluate", "samples.parquet"),
)
Status = Literal["running", "interrupted", "complete"]
EVERY_S = 5.0
AGAIN_S = 60.0
"""Seconds until MLflow is tried again after it failed."""
PATIENCE_S = 10.0
"""Seconds that an interrupted study waits for MLflow."""


@dataclass(frozen=True)
class Running:
    """A trial that runs now."""

    arm: str
    seed: int
    config: TrialConfig
    metrics: Path
    """``STAGE/.partial/KEY/metrics.jsonl``, which grows. Of a trial in rounds the last one is shown, whose stage is
    ``train`` and whose file begins with the rows of the others."""


@dataclass(frozen=True)
class Synced:
    """The result of `sync`."""

    complete: bool
    """MLflow has everything."""
    metrics_sent: int


@dataclass(frozen=True)
class View:
    """A study as MLflow is to show it."""

    study: Study
    profile: str
    layout: Layout
    folder: StudyFolder
    plan: Sequence[Planned]
    """The trials as configured now. Claims relative to the baseline are judged by its trials among these."""
    environment: Mapping[str, str]
    """Environment of the trials that run."""

    @property
    def stride(self) -> int:
        """Gradient steps from one value that MLflow gets to the next; logs of other programs are sent whole."""
        return 1 if self.study.foreign else STRIDE


def sync(
    view: View,
    warn: Callable[[str], None],
    *,
    running: Sequence[Running] = (),
    status: Status = "running",
    verdicts: Sequence[Verdict] = (),
) -> Synced | None:
    """Send the missing records and running trials of a study to MLflow; None while another process is doing so.

    With the status ``complete`` the parent run ends and shows `verdicts`. When MLflow fails, `warn` receives one line,
    and the next call sends the rest. Raises `Damaged`, or `Gone`, for a record or an artifact that is not what was
    written.
    """
    sent = 0
    try:
        with FileLock(view.folder.path / ".mlflow.lock", timeout=0):
            runs = Runs(view.layout, view.folder, warn)
            try:
                _send(view, runs, running, status, verdicts)
            finally:
                sent = runs.metrics_sent
                runs.save()
    except Timeout:
        return None
    except Fault:
        raise
    except Exception as error:  # MLflow raises whatever its store, its server or its network raise
        why = store.public(in_words(error))[:220]
        warn(f"MLflow did not take study {view.study.name} ({why}); `ablate sync` sends it later")
        return Synced(False, sent)
    return Synced(True, sent)


def _send(view: View, runs: Runs, running: Sequence[Running], status: Status, verdicts: Sequence[Verdict]) -> None:
    """Send everything that MLflow lacks. If that is nothing, not even MLflow is imported."""
    folder, live, busy = view.folder, {STUDY}, set[Path]()
    for one in running:
        busy.add(file := folder.trial_file(one.arm, one.seed))
        if one.metrics.parts[-4] == "train":
            live.add(key := f"{file.stem}__{one.metrics.parent.name}")
            runs.attempt(key, partial(_follow, view, runs, key, one))
    prints, shown = _fingerprints(view), {run.shown for run in runs.states.values()}
    for fingerprint, file in prints.items():
        if fingerprint not in shown and file not in busy:
            record = folder.read(file)
            key = f"{file.stem}__{record.stages['train'].key if 'train' in record.stages else 'none'}"
            runs.attempt(key, partial(_finish, view, runs, key, record, fingerprint))
    for key in [key for key, run in runs.states.items() if run.shown == RUNNING and key not in live]:
        runs.attempt(key, partial(runs.mark, key, INTERRUPTED))
    parent = runs.states.get(STUDY)
    if status == "complete":
        _end(view, runs, prints, verdicts)
    elif parent and (running or parent.shown == RUNNING):
        runs.mark(STUDY, RUNNING if status == "running" else INTERRUPTED)


def _fingerprints(view: View) -> dict[str, Path]:
    """The record files, by a digest of all that the end of a trial's run is made from."""
    study, folder = view.study, view.folder
    settings = digest_of(study.model_dump(mode="json", exclude={"source"}))
    compared = any(claim.relative_to for claim in study.falsifiers)
    bases = [cell for cell in view.plan if compared and cell.arm == study.baseline]
    partners = {str(cell.seed): [cell.digest, _hash(folder.trial_file(cell.arm, cell.seed))] for cell in bases}
    return {
        digest_of([settings, path.name, _hash(path), partners.get(path.stem.rpartition("__seed")[2])]): path
        for path in folder.trial_files()
    }


def _hash(path: Path) -> str:
    """SHA-256 of a file; empty where there is none."""
    with suppress(OSError):
        return file_digest(path)
    return ""


def _follow(view: View, runs: Runs, key: str, one: Running) -> None:
    config = one.config.model_dump(mode="json")
    tags = describe.tags_of_trial(view.study, one.arm, one.seed, config, view.environment)
    _open_trial(view, runs, key, tags, config)
    runs.mark(key, RUNNING)
    runs.send_rows(key, one.metrics, view.stride)


def _finish(view: View, runs: Runs, key: str, record: TrialRecord, fingerprint: str) -> None:
    study, folder = view.study, view.folder
    verdicts = of_record(study, folder, record, view.plan)
    tags = describe.tags_of_record(study, record, verdicts, health_of(folder, record))
    metrics = file_of(folder, record, "train", "metrics.jsonl") if "train" in record.stages else None
    files = [("", folder.trial_file(record.arm, record.seed))]
    for stage, name in ARTIFACTS:
        if stage in record.stages:
            with suppress(Gone):  # an imported trial has no samples
                files.append((stage, file_of(folder, record, stage, name)))
    tested = [one for one in verdicts if one.outcome != "NOT TESTED"]
    fallen = {describe.key_of("falsifier/", one.name): float(one.outcome == "FALSIFIED") for one in tested}
    _open_trial(view, runs, key, tags, record.config)
    if metrics:
        runs.send_rows(key, metrics, view.stride)
    runs.finish(key, fingerprint, record.status, {**record.summary, **fallen}, record.steps, tags, files)


def _open_trial(view: View, runs: Runs, key: str, tags: Mapping[str, str], config: Mapping[str, Any]) -> None:
    _open_study(view, runs)
    if key not in runs.states:
        tags = {**tags, "profile": view.profile, "status": RUNNING}
        runs.open(key, f"{tags['arm']} seed {tags['seed']}", tags, dict(flatten(config)))


def _open_study(view: View, runs: Runs) -> None:
    if STUDY in runs.states:
        return
    study = view.study
    name = study.name if view.profile == study.profile else f"{study.name} ({view.profile})"
    runs.experiment, used = store.experiment_of(runs.client, name, view.layout)
    if used != name:
        runs.warn(f"experiment '{name}' holds runs of another program; these runs go to '{used}'")
    runs.client.set_experiment_tag(runs.experiment, store.TAG, store.saved_view(study.foreign))
    tags = describe.tags_of_study(study, view.folder, view.profile) | describe.tags_of_environment(view.environment)
    runs.open(STUDY, f"study {study.name}", tags, {})


def _end(view: View, runs: Runs, prints: Mapping[str, Path], verdicts: Sequence[Verdict]) -> None:
    """End the parent run, with the page of the report."""
    folder, page = view.folder, view.folder.report / "index.html"
    tags, counts = describe.tags_of_verdicts(view.study, verdicts)
    hashes = [_hash(path) for path in (folder.registration_file, folder.claims_file, page)]
    shown = digest_of([sorted(prints), hashes, tags, counts])
    if STUDY in runs.states and runs.states[STUDY].shown == shown:
        return
    _open_study(view, runs)
    tags |= describe.tags_of_study(view.study, folder, view.profile)
    runs.finish(STUDY, shown, "complete", counts, 0, tags, [("report", page)] if page.exists() else [])


class Background:
    """A thread that calls ``send(running=, warn=)`` every few seconds from `begin` on, and a last time at the end."""

    def __init__(
        self,
        send: Callable[..., Synced | None],
        running: Callable[[], Sequence[Running]],
        warn: Callable[[str], None],
    ) -> None:
        """`running` gives the trials that run now: neither they nor the report wait for MLflow."""
        self._send, self._running, self._warn = send, running, warn
        self._last: dict[str, Any] = {}
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def begin(self) -> None:
        """Show the study while it runs."""
        self._thread.start()

    def end(self, status: str, **last: Any) -> None:
        """Send the rest, however long it takes; an interrupted study waits `PATIENCE_S`. Raises what `send` raises."""
        self._last = {"status": status, **last}
        self._ended.set()
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive() and status == "interrupted":
            self._warn("MLflow did not hear of the interruption; the next call, or `ablate sync`, goes on there")
        elif self._thread.is_alive():
            self._warn("MLflow has not taken all yet; Ctrl-C ends the wait, and `ablate sync` sends the rest later")
            self._thread.join()
        if self._error:
            raise self._error

    def _work(self) -> None:
        pause, warn = 0.0, self._warn
        while not self._ended.wait(pause):
            pause = EVERY_S
            with suppress(Exception):  # of a damaged file, which the last call reports
                done = self._send(running=self._running(), warn=warn)
                failed = done is not None and not done.complete
                pause, warn = (AGAIN_S, lambda line: None) if failed else (EVERY_S, self._warn)
        try:
            while self._send(warn=self._warn, **self._last) is None:  # another process sends just now
                time.sleep(1)
        except Exception as error:
            self._error = error
