"""A study in MLflow: the experiment, one parent run per study folder, one nested run per trial.

Only the driver speaks to MLflow, from threads of its own: trials do not wait for a slow server. Whatever does not
arrive is sent by `StudySinks.sync`, from the records, at the end of this or a later call.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config.trial import TrialConfig, flatten
from pipeline.errors import Fault, Gone
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, read_json, write_atomic
from pipeline.run.store import file_of
from studies.claims.badges import standing
from studies.claims.falsifiers import Verdict, overall, tally
from studies.claims.symptoms import health_of
from studies.claims.verdicts import of_record
from studies.definition.design import Planned
from studies.definition.schema import IMPORTED, Study
from studies.definition.search import SEARCH, violations
from studies.tracking import describe
from studies.tracking.post import Post
from studies.tracking.repair import repair_states, repair_store
from studies.tracking.trial_run import MlflowSink, prepare_store, tag_experiment, tracking_uri
from studies.tracking.view import experiment_tags

GIT = "mlflow.source.git.commit"
NOTE = "mlflow.note.content"
HEALTH = "health"
"""Tag of a trial: ok, or the series that left their healthy band."""
PATIENCE_S = 10.0
"""How long an interrupted study waits for MLflow to hear of it [s]."""
AGAIN_S = 60.0
"""How long after a failure MLflow is tried again [s]."""
SHOWN = ("device", "precision")
"""Facts of the environment that have a tag of their own; the others are one tag together."""


class StudySinks:
    """All MLflow runs of one study folder. Never raises for MLflow's sake."""

    def __init__(
        self,
        study: Study,
        profile: str,
        layout: Layout,
        folder: StudyFolder,
        environment: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        self._study, self._profile, self._layout, self._folder = study, profile, layout, folder
        self._environment = dict(environment)
        self._warn, self._warn_once = warn, _Once(warn)
        self._post = Post()
        self._opening: threading.Thread | None = None
        self._opens = threading.Lock()
        self._parent_id: str | None = None
        self.plan: Sequence[Planned] = ()
        """The trials of the study as it is now; what is relative to the baseline is judged by its trials among them."""
        self.metrics_sent = 0
        """Metrics that `finish` sent, apart from those sent while following."""
        self._running: dict[tuple[str, int], MlflowSink] = {}
        if tracking_uri(layout) == layout.mlflow_uri:
            repair_store(layout, warn)
        repair_states(folder, warn)
        self._parent = self._sink(
            folder.path / "mlflow" / "study.json", f"study {study.name}", None, self._parent_tags(), {}, "study"
        )

    @property
    def experiment(self) -> str:
        """Name of the experiment in MLflow."""
        return self._study.name if self._profile == self._study.profile else f"{self._study.name} ({self._profile})"

    def open(self) -> None:
        """Create the store and open the parent run, beside whatever the caller does next."""
        with self._opens:
            failed = self._opening is not None and not self._opening.is_alive() and self._parent_id is None
            if self._opening is None or (failed and self._warn_once.calm()):
                self._opening = threading.Thread(target=self._open, name="mlflow study", daemon=True)
                self._opening.start()

    def follow(self, arm: str, seed: int, config: TrialConfig, path: Path) -> None:
        """Have what a running trial writes sent, and go on. `path` lies in a folder named after the artifact's key.

        Of a trial in rounds the last one is followed, whose file begins with those of the others: a run is known by the
        key of one training.
        """
        if config.rounds > 1 and path.parts[-4] != "train":  # <stage>/.partial/<key>/metrics.jsonl
            return
        self._post.put(partial(self._follow, arm, seed, config, path))

    def leave(self, arm: str, seed: int, status: str) -> None:
        """A trial stopped without a record of its own; MLflow will show how."""
        self._post.put(partial(self._leave, arm, seed, status))

    def end(self, record: TrialRecord) -> None:
        """Have the rest of a trial sent and its run ended, and go on."""
        self._post.put(partial(self.finish, record))

    def _follow(self, arm: str, seed: int, config: TrialConfig, path: Path) -> None:
        if before := self._running.pop((arm, seed), None):
            before.halt()
        if self._ready():
            sink = self._trial_sink(arm, seed, config.model_dump(mode="json"), path.parent.name, self._environment)
            self._running[arm, seed] = sink
            sink.follow(path)

    def _leave(self, arm: str, seed: int, status: str) -> None:
        sink = self._running.pop((arm, seed), None)
        if sink:
            sink.stop(status)

    def finish(self, record: TrialRecord) -> bool:
        """Send the rest of a trial and end its run. False when it failed.

        Where MLflow already knows of this ending, nothing is sent and the health is not judged."""
        sink = self._running.pop((record.arm, record.seed), None)
        key = record.stages["train"].key if "train" in record.stages else "none"
        if sink:
            sink.halt()
        else:
            sink = self._trial_sink(record.arm, record.seed, record.config, key, record.environment)
        verdicts = of_record(self._study, self._folder, record, self.plan)
        tags = self._ending_tags(record) | {
            _key("falsifier.", verdict.name): f"{verdict.outcome}: {verdict.reason}" for verdict in verdicts
        }
        tags |= {"verdict": overall(verdicts)} if verdicts else {}
        tags[NOTE] = describe.of_record(self._study, self._folder, record, verdicts)
        fallen = {
            _key("falsifier/", verdict.name): float(verdict.outcome == "FALSIFIED")
            for verdict in verdicts
            if verdict.outcome != "NOT TESTED"
        }
        summary = {**record.summary, **fallen}
        metrics = file_of(self._folder, record, "train", "metrics.jsonl") if "train" in record.stages else None
        if sink.knows(metrics, record.status, summary, tags):
            return True
        if not self._warn_once.calm() or not self._ready():
            return False
        sink.parent_run_id = self._parent_id
        health = health_of(self._folder, record)
        judged = {
            HEALTH: health.words,
            NOTE: describe.of_record(self._study, self._folder, record, verdicts, health),
        }
        files = [("", self._folder.trial_file(record.arm, record.seed))]
        for stage, name in _FILES:
            if stage in record.stages:
                with suppress(Gone):  # an imported trial has no samples
                    files.append((stage, file_of(self._folder, record, stage, name)))
        before = sink.metrics_sent
        done = sink.finish(metrics, record.status, summary, tags, files, record.steps, judged)
        self.metrics_sent += sink.metrics_sent - before
        return done

    def sync(self, records: list[TrialRecord]) -> bool:
        """Send what MLflow lacks of these records; stops at the first failure."""
        if not self._post.wait(PATIENCE_S):
            self._warn("MLflow has not taken all yet; Ctrl-C ends the wait, and `ablate sync` sends the rest later")
            self._post.wait()
        if self._parent_id is None and self._opening is not None:
            self._opening.join()
            self._opening = None
        self._warn_once.reset()
        return all(self.finish(record) for record in records)

    def close(self, status: str, verdicts: Sequence[Verdict] = (), report: Path | None = None) -> None:
        """End the parent run, with the verdicts of the whole study (and leave trials that still run), if it was opened
        at all.

        After an interruption it waits `PATIENCE_S` at most."""
        if status == "interrupted":
            self._post.drop()
        self._post.put(lambda: self._close(status, verdicts, report))
        if not self._post.wait(PATIENCE_S if status == "interrupted" else None):
            self._warn("MLflow did not hear of the interruption; the next call, or `ablate sync`, goes on there")
        self._post.end()

    def _close(self, status: str, verdicts: Sequence[Verdict], report: Path | None) -> None:
        for arm, seed in list(self._running):
            self._leave(arm, seed, "interrupted")
        if self._opening is not None and self._ready():
            tags, counts = _verdict_tags(self._study, verdicts)
            tags |= self._registration_tags()
            self._parent.finish(None, status, counts, tags, [("report", report)] if report else [])

    def _registration_tags(self) -> dict[str, str]:
        """When each claim was written down, and what the report says of each hypothesis."""
        try:
            overrides = self._folder.started().get("overrides") or {}
            claims = standing(self._study, self._folder, self._profile, overrides)
        except Fault as error:
            return {"registration": str(error)}
        tags = {_key("badge.", name): str(badge) for name, badge in claims.badges().items()}
        tags |= {"registration": claims.digest or "none", "badge": str(claims.hypothesis)}
        tags[NOTE] = describe.of_study(self._study, claims)
        with suppress(Fault, KeyError, TypeError):
            found = read_json(self._folder.claims_file)
            tags["hypothesis"] = str(found["verdict"])
            for one in found["hypotheses"]:
                tags[_key("hypothesis.", one["name"])] = f"{one['outcome']}: {one['found'] or one['reason']}"
        return tags

    def _ending_tags(self, record: TrialRecord) -> dict[str, str]:
        tags = {f"stage.{name}": stage.key for name, stage in record.stages.items()}
        if record.reason:
            tags["reason"] = record.reason
        if self._study.search is not None:
            searched = record.arm.startswith(SEARCH)
            tags["phase"] = "search" if searched else "confirmation"
            if searched:
                broken = max(violations(self._study, record.status, record.summary).values())
                tags["feasible"] = "no" if broken > 0 else "yes"
        return tags

    def _open(self) -> None:
        try:
            prepare_store(self._layout)
        except Exception as error:  # whatever a database or its migration raises
            self._warn_once(
                f"MLflow's store cannot be created ({type(error).__name__}); `ablate sync` sends everything later"
            )
            return
        self._parent_id = self._parent.start()
        if self._parent_id is not None:
            self._save_view()
            if self._parent.other_name:
                self._warn(
                    f"experiment '{self.experiment}' holds runs of another program; these runs go to"
                    f" '{self._parent.other_name}'"
                )

    def _save_view(self) -> None:
        with suppress(
            Exception
        ):  # whatever MLflow raises: the runs arrive without a view, and `ablate ui` saves it again
            tag_experiment(
                tracking_uri(self._layout),
                self._parent.other_name or self.experiment,
                experiment_tags(self._study.kind == IMPORTED),
            )

    def _ready(self) -> bool:
        self.open()
        if self._opening is not None:
            self._opening.join()
        return self._parent_id is not None

    def _trial_sink(
        self, arm: str, seed: int, config: Mapping[str, Any], key: str, environment: Mapping[str, str]
    ) -> MlflowSink:
        tags = {"arm": arm, "seed": str(seed), "status": "running", "profile": self._profile, "study": self._study.name}
        tags |= {NOTE: describe.of_trial(self._study, arm, seed, config), **_environment_tags(environment)}
        params = dict(flatten(config))
        return self._sink(self._folder.mlflow_file(arm, seed), f"{arm} seed {seed}", self._parent_id, tags, params, key)

    def _sink(
        self,
        state: Path,
        name: str,
        parent: str | None,
        tags: Mapping[str, str],
        params: Mapping[str, object],
        identity: str,
    ) -> MlflowSink:
        uri = tracking_uri(self._layout)
        local = uri == self._layout.mlflow_uri
        artifacts = self._layout.mlflow_artifacts.as_uri() if local else None
        return MlflowSink(
            uri,
            artifacts,
            self.experiment,
            state,
            name,
            parent,
            tags,
            params,
            identity=identity,
            origin="" if local else self._origin(),
            warn=self._warn_once,
        )

    def _origin(self) -> str:
        """A random name of this study's folder. A store that others use too may hold runs that a lost answer, a lost
        state file or a lost machine left behind, and this tells them from the runs of another folder."""
        file = self._folder.path / "origin.txt"
        with suppress(OSError, UnicodeDecodeError):
            if re.fullmatch("[0-9a-f]{32}", found := file.read_text("ascii").strip()):
                return found
        origin = uuid.uuid4().hex
        write_atomic(file, f"{origin}\n")
        return origin

    def _parent_tags(self) -> dict[str, str]:
        return {
            "study": self._study.name,
            "profile": self._profile,
            NOTE: describe.of_study(self._study),
            **_environment_tags(self._environment),
        }


_FILES = (
    ("train", "samples.parquet"),
    ("train", "status.json"),
    ("evaluate", "summary.json"),
    ("evaluate", "samples.parquet"),
)


class _Once:
    """Tell the first message only: when MLflow is away, every run fails alike."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._failed = tell, -AGAIN_S
        self.told = False

    def __call__(self, message: str) -> None:
        self._failed = time.monotonic()
        if not self.told:
            self.told = True
            self._tell(message)

    def reset(self) -> None:
        """Begin anew."""
        self.told, self._failed = False, -AGAIN_S

    def calm(self) -> bool:
        """Whether nothing has failed lately."""
        return not self.told or time.monotonic() - self._failed > AGAIN_S


def _verdict_tags(study: Study, verdicts: Sequence[Verdict]) -> tuple[dict[str, str], dict[str, float]]:
    """Of the parent run: the verdict on the study and on each claim, and how many trials said what."""
    if not verdicts:
        return {}, {}
    tags: dict[str, str] = {"verdict": overall(verdicts)}
    for falsifier in study.falsifiers:
        own = [verdict for verdict in verdicts if verdict.name == falsifier.name]
        counts = ", ".join(f"{n} {outcome}" for outcome, n in tally(own).items())
        tags[_key("falsifier.", falsifier.name)] = f"{overall(own)}: {counts or 'no trial'}"
    return tags, {f"falsifier/{outcome.lower().replace(' ', '_')}": float(n) for outcome, n in tally(verdicts).items()}


def _key(prefix: str, name: str) -> str:
    """A claim's name as MLflow takes it."""
    return prefix + re.sub(r"[^\w.\- ]", "_", name)


def _environment_tags(environment: Mapping[str, str]) -> dict[str, str]:
    tags = {name: environment[name] for name in SHOWN if name in environment}
    tags["versions"] = ", ".join(f"{name} {value}" for name, value in sorted(environment.items()) if name not in SHOWN)
    commit = environment.get("git_commit", "unknown").split(" ")[0]
    return {**tags, GIT: commit} if commit != "unknown" else tags
