"""All records of a study as tidy frames. Missing and failed trials are kept and counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pipeline.config.trial import TrialConfig, flatten
from pipeline.errors import Gone, UserError
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, read_json, read_sealed
from pipeline.run.metrics import known
from pipeline.run.store import file_in
from reports.records.trial_tables import (
    ANSWER_COLUMNS,
    PROMPT_COLUMNS,
    read_answers,
    read_curves,
    read_samples,
    together,
)
from reports.text.words import setting
from studies.claims.badges import Standing, standing
from studies.definition.arms import BASELINE, short_names
from studies.definition.design import Cell, Foreign, Planned, design_digest, planned
from studies.definition.schema import Study, load_study
from studies.definition.search import SEARCH, Tried, confirmation
from studies.execution.recorded import refuse_lost
from studies.hints import command

FOREIGN = (
    "These trials were run by another program and are known from its logs: how they were sampled and judged, and how"
    " their KL was estimated, is not known here. Where a metric was not evaluated, the end of each trial's training"
    " records stands in its place: the mean of the last tenth, unless the objective has another window. Rewards are in"
    " the units of the logs, unless the map converts them."
)
"""Note on trials of other programs."""
MISSING = "missing"
STALE = "stale"
STAGES = ("prompts", "judge", "sft", "reward", "reference", "values", "train", "evaluate")
STATUSES = ("complete", "budget", "diverged", "pruned", "failed", STALE, MISSING)
TASK = (
    "data.source", "data.builtin.clauses", "data.chains.group", "data.chains.lengths", "data.local.", "data.hub.",
    "data.prompt_", "judge.kind",
)  # fmt: skip
"""Settings, or how they begin, of what kind the held-out prompts are, and of their judge."""


@dataclass(frozen=True)
class StudyRecords:
    """One study on one profile, as recorded."""

    study: Study
    """The study as compared: of a search, its confirmation (`studies.definition.search`)."""
    profile: str
    folder: StudyFolder
    started: dict[str, Any]
    """study.json as the driver wrote it."""
    plan: tuple[Planned, ...]
    """Trials that the design gives now, seed by seed."""
    records: dict[tuple[str, int], TrialRecord]
    trials: pd.DataFrame
    """One row per planned cell: arm, seed, status (a record's, or `missing` or `stale`), reason, steps, planned_steps,
    evaluated, finished, config_digest, eval/*, cost/*; of trials that were never evaluated here also where each
    series ended. A stale record is of another configuration than the design gives now; it is counted,
    never averaged."""
    curves: pd.DataFrame
    """arm, seed, step and one column per metric of pipeline/run/metrics.py that was recorded; non-finite values are
    NaN."""
    prompts: pd.DataFrame
    """arm, seed, `ANSWER_COLUMNS`, as far as they were recorded `PROXY_COLUMNS`, and the parts of the reward of every
    prompt; `win` and `tie` are shares of the reference's draws."""
    samples: pd.DataFrame
    """The fixed sample table of every evaluated trial: arm, seed and `PROMPT_COLUMNS`."""
    upstream: tuple[dict[str, Any], ...]
    """stage, key, path, trials that used it, and its summary."""
    notes: tuple[str, ...]
    """Warnings that a reader needs before trusting the page."""
    standing: Standing
    """Registration of each claim, before or after the data."""

    @property
    def arms(self) -> list[str]:
        return list(self.study.arm_overrides())

    @property
    def baseline(self) -> str:
        """The baseline in words: its name, or if it has none of its own, its values of the knobs that others change."""
        values = ", ".join(f"{key} {setting(value)}" for key, value in self.baseline_values.items())
        return (
            f"the baseline ({values})" if values else f"the baseline {self.study.baseline}".removesuffix(f" {BASELINE}")
        )

    @cached_property
    def baseline_values(self) -> dict[str, Any]:
        """Short name -> value of every knob that the other arms change, of a baseline without a name of its own; else
        empty."""
        if self.study.baseline != BASELINE or not self.configs:
            return {}
        labels = short_names(
            dict.fromkeys(key for changed in self.study.arm_overrides().values() for key, _ in flatten(changed))
        )
        own = dict(flatten(self.configs[BASELINE].model_dump(mode="json")))
        return {label: own[key] for key, label in labels.items() if key in own}

    @cached_property
    def other_tasks(self) -> tuple[str, ...]:
        """Arms with other kinds of prompts, or another judge, than the baseline: their scores are of another task."""
        arms = self.study.arm_overrides()
        tasks = {arm: {key: v for key, v in flatten(own) if key.startswith(TASK)} for arm, own in arms.items()}
        return tuple(arm for arm, task in tasks.items() if task != tasks[self.study.baseline])

    @cached_property
    def configs(self) -> dict[str, TrialConfig]:
        """Arm -> configuration of its trial with the first seed; empty for trials of other programs."""
        first = self.plan[0].seed
        return {cell.arm: cell.config for cell in self.plan if isinstance(cell, Cell) and cell.seed == first}

    def reported(self, evaluation: Sequence[str], ends: Sequence[str]) -> tuple[str, ...]:
        """Return the metrics to report: those of the evaluation, or of another program those of either list that some
        trial has, since the end of a series can stand for an evaluation."""
        if not self.study.foreign:
            return tuple(evaluation)
        return tuple(key for key in (*evaluation, *ends) if key in self.trials.columns)

    def answered(self, arm: str, columns: Sequence[str]) -> list[int]:
        """Return the evaluated seeds of an arm with a value of these per-prompt columns."""
        return [
            seed for seed in self.evaluated(arm) if all((arm, seed) in self._answered.get(key, ()) for key in columns)
        ]

    def by_prompt(self, metric: str, columns: Sequence[str]) -> bool:
        """Return whether these per-prompt columns are known of every evaluated trial that recorded the metric."""
        known = [self._answered.get(key, set()) for key in columns]
        recorded = {(arm, seed) for arm in self.arms for seed in self.recorded(arm, metric)}
        return all(known) and recorded <= set.intersection(*known)

    @property
    def seeds(self) -> list[int]:
        return list(self.study.seeds)

    @property
    def digest(self) -> str:
        """The digest of the design: arms, seeds and every configuration."""
        return design_digest(self.plan)

    def counts(self, arm: str | None = None) -> dict[str, int]:
        """Count trials by status, in the order of `STATUSES`."""
        chosen = self.trials if arm is None else self.trials[self.trials["arm"] == arm]
        found = chosen["status"].value_counts()
        return {status: int(found[status]) for status in STATUSES if status in found}

    def cost(self, arm: str, key: str) -> float | None:
        """Return the mean of a cost over the ended trials of an arm; None where it is not known."""
        ended = self.trials[(self.trials["arm"] == arm) & ~self.trials["status"].isin([MISSING, STALE])]
        known = ended.get(key, pd.Series(dtype=float)).dropna()
        return float(known.mean()) if len(known) else None

    def evaluated(self, arm: str) -> list[int]:
        """Return the seeds of an arm that have per-prompt results, or of imported trials ended soundly."""
        rows = self._recorded.get(arm)
        return [] if rows is None else [int(seed) for seed in rows["seed"]]

    def recorded(self, arm: str, metric: str) -> dict[int, float]:
        """Return a metric of the evaluation of an arm, by seed."""
        if metric not in self.trials.columns:
            return {}
        rows = self._recorded.get(arm)
        pairs = [] if rows is None else zip(rows["seed"], rows[metric], strict=True)
        return {int(seed): float(value) for seed, value in pairs if pd.notna(value)}

    def series(self, arm: str, metric: str) -> dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Map a seed to the gradient steps and finite values of a metric, where it was recorded."""
        if metric not in self.curves.columns:
            return {}
        steps, values = (self.curves[key].to_numpy(dtype=np.float64) for key in ("step", metric))
        by_seed = {}
        for seed in self.seeds:
            rows = self._rows.get((arm, seed), np.zeros(0, dtype=np.intp))
            known = rows[np.isfinite(values[rows])]
            if len(known):
                by_seed[seed] = steps[known], values[known]
        return by_seed

    @cached_property
    def update_length(self) -> int:
        """The most common number of gradient steps between two rollouts; 1 where it cannot be derived."""
        if "objective/kl" not in self.curves.columns:
            return 1
        steps = np.unique(self.curves.loc[self.curves["objective/kl"].notna(), "step"].to_numpy(dtype=np.int64))
        gaps = np.diff(steps)
        return int(np.bincount(gaps).argmax()) if len(gaps) else 1

    def answers(self, arm: str, column: str, seeds: Sequence[int], prompt_ids: pd.Index) -> NDArray[np.float64]:
        """Return a per-prompt column of an arm as (seeds, prompts), both in the order given; NaN where a trial lacks a
        prompt."""
        rows = []
        for seed in seeds:
            table = self._of_seed[arm, seed]
            own = table if table.index.equals(prompt_ids) else table.reindex(prompt_ids)
            rows.append(own[column].to_numpy(dtype=np.float64))
        return np.stack(rows)

    def reference_gold(self) -> tuple[float, float] | None:
        """Return mean and standard deviation of the judge's score over single answers of the reference, judge points;
        None where imported outcomes do not hold them."""
        columns = ["reference_gold", "reference_gold_std"]
        rows = self.prompts.drop_duplicates(["seed", "prompt_id"]).dropna(subset=columns)
        if rows.empty:
            return None
        means, within = (rows[column].to_numpy(dtype=np.float64) for column in columns)
        return float(means.mean()), math.sqrt(float(means.var() + (within**2).mean()))

    def shared_prompts(self, rows: Sequence[tuple[str, int]], columns: Sequence[str]) -> pd.Index:
        """Return the prompts that the trials of these arms and seeds all answered, with a value in each of `columns`,
        ascending; all prompts unless configurations were mixed or imported outcomes have gaps."""
        indices = [self._of_seed[row].dropna(subset=list(columns)).index for row in rows]
        return reduce(pd.Index.intersection, indices).sort_values() if indices else pd.Index([])

    @cached_property
    def _recorded(self) -> dict[str, pd.DataFrame]:
        """The evaluated trials of each arm."""
        groups = self.trials[self.trials["evaluated"].astype(bool)].groupby("arm", sort=False)
        return {str(arm): rows for arm, rows in groups}

    @cached_property
    def _answered(self) -> dict[str, set[tuple[str, int]]]:
        """Per-prompt column -> arm and seed of the study with a value of it."""
        counts = self.prompts.groupby(["arm", "seed"], sort=False).count()
        return {
            str(column): {(str(arm), int(seed)) for arm, seed in counts.index[counts[column] > 0]} for column in counts
        }

    @cached_property
    def _rows(self) -> dict[tuple[str, int], NDArray[np.intp]]:
        """The rows of each trial in `curves`: looked for once, since every figure needs every arm."""
        groups: Mapping[Any, Any] = self.curves.groupby(["arm", "seed"], sort=False).indices
        return {(str(arm), int(seed)): np.asarray(rows, dtype=np.intp) for (arm, seed), rows in groups.items()}

    @cached_property
    def _of_seed(self) -> dict[tuple[str, int], pd.DataFrame]:
        """The rows of each arm and seed under their prompts: grouped once, since every estimate needs some of them."""
        groups: Iterable[tuple[Any, pd.DataFrame]] = self.prompts.groupby(["arm", "seed"], sort=False)
        return {(str(arm), int(seed)): rows.set_index("prompt_id") for (arm, seed), rows in groups}


def find_study(layout: Layout, name_or_path: str, profile: str | None = None) -> tuple[StudyFolder, Study]:
    """Find the study as its YAML is now, and its folder; `profile` replaces the study's own.

    Raises `UserError` when there is no such study, or when it has never been run on that profile, and `Damaged` for one
    whose file is not as written.
    """
    study = load_study(name_or_path)
    folder = layout.study(study.name, profile or study.profile)
    if folder.started():
        return folder, study
    if study.imported is not None:
        raise UserError(
            f"study '{study.name}' has no records here (no {folder.study_file}); import them: ablate import FOLDER"
            f" --name {study.name} --map MAP"
        )
    on = folder.path.name
    others = sorted(path.parent.name for path in folder.path.parent.glob("*/study.json"))
    seen = f"; it has been run on: {', '.join(others)}" if others else ""
    how = command("study", study.argument, None if on == study.profile else on)
    raise UserError(
        f"study '{study.name}' has not been run on profile '{on}' (no {folder.study_file}){seen}; run it first: {how}"
    )


@dataclass
class _Gathered:
    notes: list[str] = field(default_factory=list)
    curves: list[pd.DataFrame] = field(default_factory=list)
    prompts: list[pd.DataFrame] = field(default_factory=list)
    samples: list[pd.DataFrame] = field(default_factory=list)
    stages: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


def load_records(folder: StudyFolder, study: Study) -> StudyRecords:
    """Read study.json, all trial records and the tables of their artifacts.

    Raises `UserError` where nothing of it can be shown, `Damaged` for a file that is not what was written, and `Gone`
    where results are no longer on disk.
    """
    started = folder.started()
    profile, overrides = str(started["profile"]), started["overrides"]
    claims = standing(study, folder, profile, overrides)
    study = confirmation(study, folder)
    plan = planned(study, profile, overrides)
    gathered = _Gathered()
    digests = {(cell.arm, cell.seed): cell.digest for cell in plan}
    found = {(record.arm, record.seed): record for record in folder.records()}
    records = {cell: record for cell, record in found.items() if cell in digests}
    for arm, seed in found:
        if (arm, seed) not in records and not arm.startswith(SEARCH):  # a search has a file of its own
            gathered.notes.append(f"Arm {arm} seed {seed} is recorded but no longer part of the study; it is left out.")
    current = [record for cell, record in records.items() if record.config_digest == digests[cell]]
    refuse_lost(folder, current, kept=folder.report / "index.html")
    order = list(study.arm_overrides())  # the plan goes seed by seed
    ordered = sorted(plan, key=lambda cell: order.index(cell.arm))
    rows = [_trial(folder, cell, records.get((cell.arm, cell.seed)), gathered) for cell in ordered]
    for row in rows if study.objective.worst is not None else ():
        row |= {"evaluated": True, study.objective.metric: study.objective.worst} if row["status"] == "diverged" else {}
    _refuse_empty(folder, rows)
    gathered.notes += [*[FOREIGN] * study.foreign, *started.get("notes", [])]
    return StudyRecords(
        study=study,
        profile=profile,
        folder=folder,
        started=started,
        plan=tuple(plan),
        records=records,
        trials=pd.DataFrame(rows),
        curves=together(gathered.curves, ["step"]),
        prompts=together(gathered.prompts, ANSWER_COLUMNS),
        samples=together(gathered.samples, PROMPT_COLUMNS),
        upstream=tuple(_stages(folder, gathered)),
        notes=tuple(gathered.notes),
        standing=claims,
    )


def _trial(folder: StudyFolder, cell: Planned, record: TrialRecord | None, gathered: _Gathered) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": cell.arm, "seed": cell.seed, "status": MISSING, "reason": None, "steps": 0}
    row |= {"planned_steps": cell.steps, "evaluated": False, "finished": None, "config_digest": None}
    if record is None:
        return row
    row |= {"status": record.status, "reason": record.reason, "steps": record.steps, "finished": record.finished}
    row |= {"config_digest": record.config_digest}
    row |= {f"cost/{key}": value for key, value in record.cost.items() if math.isfinite(value)}
    if record.config_digest != cell.digest:
        gathered.notes.append(
            f"Arm {cell.arm} seed {cell.seed} was run with another configuration; it is left out until it has run"
            " again."
        )
        return row | {"status": STALE}
    for stage, where in record.stages.items():
        entry = gathered.stages.setdefault((stage, where.key), {"path": where.path, "trials": 0})
        entry["trials"] += 1
    curves = read_curves(folder, record, gathered.notes)
    if curves is not None:
        gathered.curves.append(curves)
    # Trials of other programs may have no planned length, and no evaluation: where their training ended stands for it.
    row |= {"planned_steps": cell.steps or record.steps, **record.ends}
    row |= {"evaluated": isinstance(cell, Foreign) and record.status == "complete"}
    # A failed trial is going to be retried, so whatever it left is no result.
    answers = read_answers(folder, record, gathered.notes) if record.status != "failed" else None
    if answers is not None:
        gathered.prompts.append(answers)
        samples = None if isinstance(cell, Foreign) else read_samples(folder, record, gathered.notes)
        if samples is not None:
            gathered.samples.append(samples)
        row |= {"evaluated": True}
    return row | {key: value for key, value in record.summary.items() if known(key) and math.isfinite(value)}


def _stages(folder: StudyFolder, gathered: _Gathered) -> Iterable[dict[str, Any]]:
    """Yield the stages in the order of the chain; rounds come before the last one, which has the plain name."""

    def place(item: tuple[tuple[str, str], Any]) -> tuple[int, bool, str, str]:
        (stage, key), _ = item
        name = stage.partition("-")[0]
        return STAGES.index(name) if name in STAGES else len(STAGES), "-" not in stage, stage, key

    for (stage, key), entry in sorted(gathered.stages.items(), key=place):
        shared = stage.partition("-")[0] not in ("train", "evaluate")
        yield {"stage": stage, "key": key, **entry, "summary": _summary(folder, entry["path"]) if shared else {}}


def _summary(folder: StudyFolder, where: str) -> dict[str, float]:
    """Return the numbers that a stage stated of itself; none where it is no longer in the store."""
    try:
        content = read_json(file_in(folder, where, "summary.json"))
    except Gone:
        return {}
    return {
        key: float(value) for key, value in content.items() if isinstance(value, int | float) and math.isfinite(value)
    }


def _refuse_empty(folder: StudyFolder, rows: list[dict[str, Any]]) -> None:
    """Raise `UserError` where a page without a single number would replace one that had them."""
    page = folder.report / "index.html"
    if page.exists() and not folder.trial_files():
        raise UserError(
            f"{folder.path / 'trials'}: no trial is recorded; {page} is unchanged. Restore the folder, or"
            f" {folder.remedy}"
        )
    recorded = [row for row in rows if row["status"] != MISSING]
    if recorded and all(row["status"] == STALE for row in recorded):
        raise UserError(
            f"{folder.path / 'trials'}: all {len(recorded)} records were run with another configuration than the study"
            " gives now; run the study again, or restore its file and profile"
        )


@dataclass(frozen=True)
class SearchResult:
    """All trials of a search, its front, and its confirmation."""

    trials: tuple[Tried, ...]
    pareto: tuple[int, ...]
    """Numbers of the trials that no other one beats on all objectives."""
    confirmed: dict[str, int]
    """Arm of the confirmation -> number of the trial it repeats."""

    @property
    def metrics(self) -> list[str]:
        """Metrics that some trial has, in the order of first appearance."""
        return list(dict.fromkeys(key for trial in self.trials for key in trial.values))

    @property
    def knobs(self) -> list[str]:
        """Knobs that were searched."""
        return list(dict.fromkeys(key for trial in self.trials for key in trial.overrides))


def load_search(folder: StudyFolder, study: Study) -> SearchResult | None:
    """Read the search of a study; None where it has none or the file is of another search than the study gives now.

    Raises `Damaged`.
    """
    if study.search is None or not folder.search_file.exists():
        return None
    with folder.naming_remedy():
        content = read_sealed(folder.search_file)
    if content["search"] != study.search.model_dump(mode="json"):
        return None
    return SearchResult(
        trials=TypeAdapter(tuple[Tried, ...]).validate_python(content["trials"]),
        pareto=tuple(int(number) for number in content["pareto"]),
        confirmed={str(entry["arm"]): int(entry["number"]) for entry in content["confirmed"]},
    )
