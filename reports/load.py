"""Everything that a study left behind, as tidy frames. What is missing or went wrong is kept and counted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import ValidationError

from pipeline.errors import UserError
from pipeline.layout import Layout, StudyFolder, TrialRecord
from pipeline.metrics import METRICS
from reports import foreign
from studies.design import Foreign, Planned, design_digest, planned
from studies.importing.problems import Problem
from studies.schema import IMPORTED, Study, load_study
from studies.search import SEARCH, confirmation

MISSING = "missing"
STALE = "stale"
PROMPT_COLUMNS = (
    "prompt_id", "prompt", "policy_completion", "reference_completion", "policy_gold", "reference_gold", "policy_proxy",
    "reference_proxy", "policy_length", "reference_length", "policy_eos", "reference_eos", "kl", "entropy", "winner",
)  # fmt: skip
_TEXTS = ("prompt", "policy_completion", "reference_completion")
ANSWER_COLUMNS = tuple(column for column in PROMPT_COLUMNS if column not in _TEXTS)
"""What is read of every prompt of every trial; texts are read of the samples alone, being most of the bytes and of no number."""
_NUMBERS = ("policy_gold", "reference_gold", "policy_proxy", "reference_proxy", "policy_length", "reference_length", "kl", "entropy")
_WIN = {"policy": 1.0, "tie": 0.5, "reference": 0.0}


@dataclass(frozen=True)
class StudyRecords:
    """One study on one profile, as recorded."""

    study: Study
    """As compared: of a search, its confirmation (`studies.search`)."""
    profile: str
    folder: StudyFolder
    started: dict[str, Any]
    """study.json as the driver wrote it."""
    plan: tuple[Planned, ...]
    """What the design gives now, seed by seed."""
    records: dict[tuple[str, int], TrialRecord]
    trials: pd.DataFrame
    """One row per planned cell: arm, seed, status (a record's, or `missing` or `stale`), reason, steps, planned_steps, evaluated, finished,
    config_digest, eval/*, cost/*; of imported trials also where each series ended (`reports.foreign`).
    A stale record is of another configuration than the design gives now; it is counted, never averaged."""
    curves: pd.DataFrame
    """arm, seed, step and one column per metric of pipeline/metrics.py that was recorded; non-finite values are NaN."""
    prompts: pd.DataFrame
    """arm, seed and `ANSWER_COLUMNS` of every prompt, with `win` in {1, 0.5, 0} and `tie` in {1, 0}."""
    samples: pd.DataFrame
    """The fixed sample table of every evaluated trial: arm, seed and `PROMPT_COLUMNS`."""
    upstream: tuple[dict[str, Any], ...]
    """stage, key, path, trials that used it, and its summary."""
    notes: tuple[str, ...]
    """What a reader has to know before trusting the page."""

    @property
    def arms(self) -> list[str]:
        return list(self.study.arm_overrides())

    @property
    def seeds(self) -> list[int]:
        return list(self.study.seeds)

    @property
    def digest(self) -> str:
        """Of the design: arms, seeds and every configuration."""
        return design_digest(self.plan)

    def counts(self, arm: str | None = None) -> dict[str, int]:
        """Trials by status, `missing` included, in the order of first appearance of the list below."""
        chosen = self.trials if arm is None else self.trials[self.trials["arm"] == arm]
        order = ["complete", "budget", "diverged", "pruned", "failed", STALE, MISSING]
        return {status: n for status in order if (n := int((chosen["status"] == status).sum()))}

    def evaluated(self, arm: str) -> list[int]:
        """Seeds of an arm that have per-prompt results; of an imported one, those that ended soundly."""
        return [int(seed) for seed in self._recorded[arm]["seed"]] if arm in self._recorded else []

    def recorded(self, arm: str, metric: str) -> dict[int, float]:
        """What the evaluation of each trial of an arm recorded, by seed."""
        if metric not in self.trials.columns:
            return {}
        rows = self._recorded.get(arm)
        pairs = [] if rows is None else zip(rows["seed"], rows[metric], strict=True)
        return {int(seed): float(value) for seed, value in pairs if pd.notna(value)}

    def series(self, arm: str, metric: str) -> dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Seed -> gradient steps and finite values of a metric, in the order of the seeds; trials that did not record it are left out."""
        if metric not in self.curves.columns:
            return {}
        steps, values = (self.curves[key].to_numpy(dtype=np.float64) for key in ("step", metric))
        found = {}
        for seed in self.seeds:
            rows = self._rows.get((arm, seed), np.zeros(0, dtype=np.intp))
            known = rows[np.isfinite(values[rows])]
            if len(known):
                found[seed] = steps[known], values[known]
        return found

    @cached_property
    def update_length(self) -> int:
        """The most common number of gradient steps between two rollouts; 1 where that cannot be seen."""
        if "objective/kl" not in self.curves.columns:
            return 1
        steps = np.unique(self.curves.loc[self.curves["objective/kl"].notna(), "step"].to_numpy(dtype=np.int64))
        gaps = np.diff(steps)
        return int(np.bincount(gaps).argmax()) if len(gaps) else 1

    def answers(self, arm: str, column: str, seeds: Sequence[int], prompt_ids: pd.Index) -> NDArray[np.float64]:
        """One per-prompt column of an arm as (seeds, prompts), both in the order given; NaN where a trial lacks a prompt."""
        rows = []
        for seed in seeds:
            own = self._by_trial[arm, seed]
            own = own if own.index.equals(prompt_ids) else own.reindex(prompt_ids)
            rows.append(own[column].to_numpy(dtype=np.float64))
        return np.stack(rows)

    def shared_prompts(self, trials: Sequence[tuple[str, int]]) -> pd.Index:
        """Prompts that all these trials answered, ascending; the same for all trials unless configurations were mixed."""
        found = [self._by_trial[trial].index for trial in trials if trial in self._by_trial]
        if len(found) < len(trials) or not found:
            return pd.Index([], dtype=np.int64)
        shared: pd.Index = found[0]
        for index in found[1:]:
            shared = shared if index.equals(shared) else shared.intersection(index)
        return shared.sort_values()

    @cached_property
    def _recorded(self) -> dict[str, pd.DataFrame]:
        """The evaluated trials of each arm."""
        groups = self.trials[self.trials["evaluated"].astype(bool)].groupby("arm", sort=False)
        return {str(arm): rows for arm, rows in groups}

    @cached_property
    def _rows(self) -> dict[tuple[str, int], NDArray[np.intp]]:
        """Where the curves of each trial stand in `curves`: looked for once, since every figure asks for every arm."""
        groups: Mapping[Any, Any] = self.curves.groupby(["arm", "seed"], sort=False).indices
        return {(str(arm), int(seed)): np.asarray(rows, dtype=np.intp) for (arm, seed), rows in groups.items()}

    @cached_property
    def _by_trial(self) -> dict[tuple[str, int], pd.DataFrame]:
        """The rows of each trial under its prompts: grouped once, since every estimate asks for some of them."""
        groups: Iterable[tuple[Any, pd.DataFrame]] = self.prompts.groupby(["arm", "seed"], sort=False)
        return {(str(arm), int(seed)): rows.set_index("prompt_id") for (arm, seed), rows in groups}


@dataclass
class _Gathered:
    notes: list[str] = field(default_factory=list)
    curves: list[pd.DataFrame] = field(default_factory=list)
    prompts: list[pd.DataFrame] = field(default_factory=list)
    samples: list[pd.DataFrame] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    stages: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


def find_study(layout: Layout, name_or_path: str, profile: str | None = None) -> tuple[StudyFolder, Study]:
    """The study as its YAML says now, and its folder; `profile` replaces the study's own.

    Raises `UserError` when there is no such study, or when it has never been run on that profile.
    """
    study = load_study(name_or_path)
    folder = layout.study(study.name, profile or study.profile)
    _require_run(folder, study)
    return folder, study


def load_records(folder: StudyFolder, study: Study) -> StudyRecords:
    """Read study.json, all trial records and the tables of their artifacts.

    Raises `UserError`, one line with the file, when the study was never run or a file is damaged.
    """
    _require_run(folder, study)
    started = _read_json(folder.study_file)
    study = confirmation(study, folder)
    profile = str(started.get("profile") or folder.path.name)
    plan = planned(study, profile, started.get("overrides") or {})
    gathered = _Gathered()
    records = _read_records(folder, plan, gathered.notes)
    rows = [_trial(folder, cell, records.get((cell.arm, cell.seed)), gathered) for cell in _by_arm(study, plan)]
    _refuse_all_stale(folder, rows)
    for stage, where in (started.get("upstream") or {}).items():
        gathered.stages.setdefault((str(stage), str(where["key"])), {"path": str(where["path"]), "trials": 0})
    prompts = _concat(gathered.prompts, ["arm", "seed", *ANSWER_COLUMNS])
    prompts["win"] = prompts["winner"].map(_WIN).astype(float)
    prompts["tie"] = (prompts["winner"] == "tie").astype(float)
    trials = pd.DataFrame(rows)
    if study.kind == IMPORTED:
        gathered.notes += foreign.caveats(records, trials, gathered.problems)
    return StudyRecords(
        study=study,
        profile=profile,
        folder=folder,
        started=started,
        plan=tuple(plan),
        records=records,
        trials=trials,
        curves=_concat(gathered.curves, ["arm", "seed", "step"]),
        prompts=prompts,
        samples=_concat(gathered.samples, ["arm", "seed", *PROMPT_COLUMNS]),
        upstream=tuple(_stages(folder, gathered)),
        notes=tuple(gathered.notes),
    )


def _require_run(folder: StudyFolder, study: Study) -> None:
    if folder.study_file.exists():
        return
    if study.kind == IMPORTED:
        raise UserError(
            f"study '{study.name}' has no records here (no {folder.study_file}); import them: ablate import FOLDER --name {study.name}"
        )
    profile = folder.path.name
    others = sorted(path.parent.name for path in folder.path.parent.glob("*/study.json"))
    seen = f"; it has been run on: {', '.join(others)}" if others else ""
    how = f"make study STUDY={study.name}" + ("" if profile == study.profile else f" PROFILE={profile}")
    raise UserError(f"study '{study.name}' has not been run on profile '{profile}' (no {folder.study_file}){seen}; run it first: {how}")


def _read_records(folder: StudyFolder, plan: Iterable[Planned], notes: list[str]) -> dict[tuple[str, int], TrialRecord]:
    expected = {(cell.arm, cell.seed) for cell in plan}
    found: dict[tuple[str, int], TrialRecord] = {}
    for path in sorted((folder.path / "trials").glob("*.json")):
        try:
            record = TrialRecord.model_validate_json(path.read_text("utf-8"))
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"])) or "content"
            raise UserError(f"{path}: damaged trial record ({where}: {fault['msg']}); remove it and run the study again") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: trial record cannot be read ({error})") from None
        if (record.arm, record.seed) in expected:
            found[record.arm, record.seed] = record
        elif not record.arm.startswith(SEARCH):  # the page speaks of a search from its own file
            notes.append(f"Arm {record.arm} seed {record.seed} is recorded but no longer part of the study; it is left out.")
    return found


def _by_arm(study: Study, plan: Iterable[Planned]) -> list[Planned]:
    order = {arm: index for index, arm in enumerate(study.arm_overrides())}
    return sorted(plan, key=lambda cell: (order[cell.arm], study.seeds.index(cell.seed)))


def _trial(folder: StudyFolder, cell: Planned, record: TrialRecord | None, gathered: _Gathered) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": cell.arm, "seed": cell.seed, "status": MISSING, "reason": None, "steps": 0}
    row |= {"planned_steps": cell.steps, "evaluated": False, "finished": None, "config_digest": None}
    if record is None:
        return row
    row |= {"status": record.status, "reason": record.reason, "steps": record.steps, "finished": record.finished}
    row |= {"config_digest": record.config_digest}
    row |= {f"cost/{key}": value for key, value in record.cost.items() if math.isfinite(value)}
    if record.config_digest != cell.digest:
        gathered.notes.append(f"Arm {cell.arm} seed {cell.seed} was run with another configuration; it is left out until it has run again.")
        return row | {"status": STALE}
    for stage, where in record.stages.items():
        entry = gathered.stages.setdefault((stage, where.key), {"path": where.path, "trials": 0})
        entry["trials"] += 1
    curves = _artifact(folder, record, "ppo", "metrics.parquet", ("step", *METRICS), gathered.notes)
    if curves is not None:
        curves = _curves(curves, folder, record)
        gathered.curves.append(_labelled(curves, cell))
    if isinstance(cell, Foreign):
        gathered.problems += (
            foreign.read_problems(_inside(folder.root, record.stages["ppo"].path, record)) if "ppo" in record.stages else []
        )
        row |= {"planned_steps": record.steps, "evaluated": curves is not None and record.status != "diverged"}
        row |= foreign.ends(curves) if curves is not None else {}
    prompts = _artifact(folder, record, "evaluate", "prompts.parquet", ANSWER_COLUMNS, gathered.notes)
    if prompts is not None and _usable(record, prompts):
        gathered.prompts.append(_labelled(_prompts(prompts, folder, record), cell))
        samples = _artifact(folder, record, "evaluate", "samples.parquet", PROMPT_COLUMNS, gathered.notes)
        if samples is not None:
            gathered.samples.append(_labelled(samples.reindex(columns=list(PROMPT_COLUMNS)), cell))
        row |= {"evaluated": True}
    return row | {key: value for key, value in record.summary.items() if key in METRICS and math.isfinite(value)}


def _usable(record: TrialRecord, prompts: pd.DataFrame | None) -> bool:
    """A failed trial is going to be retried, so whatever it left is no result."""
    return prompts is not None and len(prompts) > 0 and record.status != "failed"


def _artifact(
    folder: StudyFolder, record: TrialRecord, stage: str, name: str, columns: Sequence[str], notes: list[str]
) -> pd.DataFrame | None:
    """Those of the `columns` that the table has."""
    if stage not in record.stages:
        return None
    path = _inside(folder.root, record.stages[stage].path, record) / name
    if not path.exists():
        notes.append(f"Arm {record.arm} seed {record.seed}: {stage}/{name} is no longer in the store, so the page does without it.")
        return None
    try:
        with pq.ParquetFile(path) as file:
            present = set(file.schema_arrow.names)
            frame: pd.DataFrame = file.read([column for column in columns if column in present], use_threads=False).to_pandas()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: damaged table ({reason}); run the study again to rebuild it") from None
    return frame


def _inside(root: Path, relative: str, record: TrialRecord) -> Path:
    path = (root / relative).resolve()
    if not path.is_relative_to(root.resolve()):
        raise UserError(f"record of arm {record.arm} seed {record.seed}: the path '{relative}' leaves the output folder {root}")
    return path


def _labelled(frame: pd.DataFrame, cell: Planned) -> pd.DataFrame:
    return frame.assign(arm=cell.arm, seed=cell.seed)


def _curves(frame: pd.DataFrame, folder: StudyFolder, record: TrialRecord) -> pd.DataFrame:
    if "step" not in frame.columns:
        path = folder.root / record.stages["ppo"].path / "metrics.parquet"
        raise UserError(f"{path}: damaged table (no column step); run the study again to rebuild it")
    if not frame["step"].is_monotonic_increasing:
        frame = frame.sort_values("step", kind="stable")
    if not frame["step"].is_unique:
        frame = frame.drop_duplicates("step", keep="last")
    known = frame.columns.drop("step")
    values = frame[known].to_numpy(dtype=np.float64, copy=True)
    values[~np.isfinite(values)] = np.nan
    return pd.DataFrame(values, columns=known).assign(step=frame["step"].to_numpy())


def _prompts(frame: pd.DataFrame, folder: StudyFolder, record: TrialRecord) -> pd.DataFrame:
    path = folder.root / record.stages["evaluate"].path / "prompts.parquet"
    absent = [column for column in ANSWER_COLUMNS if column not in frame.columns]
    if absent:
        raise UserError(f"{path}: damaged table (no column {', '.join(absent)}); run the study again to rebuild it")
    for column in _NUMBERS:
        bad = int((~np.isfinite(frame[column].to_numpy(dtype=float))).sum())
        if bad:
            raise UserError(f"{path}: damaged table ({bad} values of {column} are not finite); run the study again to rebuild it")
    unknown = sorted(set(map(str, frame["winner"])) - _WIN.keys())
    if unknown:
        raise UserError(f"{path}: damaged table (winner '{unknown[0]}' is none of {', '.join(_WIN)}); run the study again to rebuild it")
    if not frame["prompt_id"].is_unique:
        raise UserError(f"{path}: damaged table (a prompt_id stands in more than one row); run the study again to rebuild it")
    return frame


def _concat(frames: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame({column: pd.Series(dtype=object) for column in columns})
    whole = pd.concat(frames, ignore_index=True)
    return whole[[*[c for c in columns if c in whole.columns], *[c for c in whole.columns if c not in columns]]]


def _stages(folder: StudyFolder, gathered: _Gathered) -> Iterable[dict[str, Any]]:
    order = {"prompts": 0, "sft": 1, "reward": 2, "ppo": 3, "evaluate": 4}
    for (stage, key), entry in sorted(gathered.stages.items(), key=lambda item: (order.get(item[0][0], 9), item[0])):
        summary_file = folder.root / entry["path"] / "summary.json"
        shared = stage not in ("ppo", "evaluate")
        yield {"stage": stage, "key": key, **entry, "summary": _summary(summary_file) if shared and summary_file.exists() else {}}


def _summary(path: Path) -> dict[str, float]:
    content = _read_json(path)
    return {key: float(value) for key, value in content.items() if isinstance(value, int | float) and math.isfinite(value)}


def _refuse_all_stale(folder: StudyFolder, rows: list[dict[str, Any]]) -> None:
    """A page without a single number would replace one that had them, so this is an error and not a note."""
    recorded = [row for row in rows if row["status"] != MISSING]
    if recorded and all(row["status"] == STALE for row in recorded):
        raise UserError(
            f"{folder.path / 'trials'}: all {len(recorded)} records were run with another configuration than the study gives now; "
            "run the study again, or restore its file and profile"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged file ({error})") from None
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: damaged file (a mapping is expected)")
    return dict(content)
