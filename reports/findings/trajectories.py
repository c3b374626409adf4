"""Training trajectories of a study over drift: comparisons at matched KL, the law of Gao et al., alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from reports.records.load import StudyRecords
from reports.statistics import two_level as stats
from reports.statistics.drift import Alarm, KLCurve, Law, alarm, common_range, fit_law, kl_curve
from reports.statistics.series import Aligned, align, grid_of
from reports.statistics.two_level import Array, Estimate, Outcome

REWARDS = ("objective/gold", "objective/scores")
"""Compared at matched KL: what the judge says, and what was trained on."""
Place = Literal["half way", "farthest"]
PLACES: dict[Place, float] = {"half way": 0.25, "farthest": 1.0}
"""Share of the largest common KL at which arms are compared; half the distance sqrt(KL) is a quarter of the KL."""
POOLED = "all arms"
KL = "objective/kl"
EXACT = "objective/kl_exact_per_token"
LENGTH = "objective/length"

Curves = dict[tuple[str, int], KLCurve]


@dataclass(frozen=True)
class MatchedKL:
    """One arm against the baseline where both had drifted equally far along their training."""

    metric: str
    arm: str
    place: Place
    kl: float
    """Nats per sequence at which they are compared."""
    low: float
    high: float
    """The KL range that all trials of both went through; `high` is where the first of them stopped."""
    arm_step: float
    base_step: float
    """Mean gradient step at which the seeds stood there: equal drift is not equal training."""
    arm_value: Estimate
    base_value: Estimate
    difference: Estimate
    """Arm minus baseline, paired by seed; Student over seeds."""
    per_seed: dict[int, float]
    p: float | None
    """Of Student's test over seeds; none with one seed."""
    p_holm: float | None
    """Corrected over the arms compared at this place on this metric."""
    outcome: Outcome


@dataclass(frozen=True)
class RewardLaw:
    """R(d) = d (a - b log d) fitted to the gain of one arm, or of all, over the reference."""

    arm: str
    """`POOLED` for the fit to all arms."""
    metric: str
    reference: float
    """What the reference scores: R is the metric minus this."""
    law: Law
    trials: int


@dataclass(frozen=True)
class ArmAlarm:
    """In how many trials of an arm gold turned down while the proxy went on rising, and at which KL."""

    arm: str
    alarms: dict[int, Alarm]
    """Seed -> alarm, of the trials that raised one."""
    trials: int
    kl: Estimate | None
    """Mean over the trials that raised one; Student over seeds."""


def curves(records: StudyRecords) -> Curves:
    """(arm, seed) -> rewards over KL, of every trial that recorded a trajectory; a failed one is going to run again."""
    found: Curves = {}
    for trial, frame in _trajectories(records).items():
        curve = kl_curve(
            frame["step"].to_numpy(float),
            frame["kl"].to_numpy(float),
            {key: frame[key].to_numpy(float) for key in _rewards(frame)},
        )
        if curve is not None:
            found[trial] = curve
    return found


def kl_source(records: StudyRecords) -> str:
    """How the KL of the trajectories was measured, for captions."""
    exact = {EXACT, LENGTH} <= set(records.curves.columns) and bool(records.curves[EXACT].notna().any())
    return "exact KL per token × tokens" if exact else "k1 estimate"


def matched(records: StudyRecords, found: Curves) -> tuple[MatchedKL, ...]:
    """Every arm against the baseline at equal KL, by place and metric; only where the seeds of both shared a range."""
    base = records.study.baseline
    metrics = [key for key in REWARDS if any(key in curve.values for curve in found.values())]
    rows = []
    for metric in metrics:
        for place in PLACES:
            raw = [
                row
                for arm in records.arms
                if arm != base and (row := _matched(found, metric, arm, base, place)) is not None
            ]
            rows += _corrected(raw)
    return tuple(rows)


def laws(records: StudyRecords, found: Curves) -> tuple[RewardLaw, ...]:
    """Fits of the gold reward (else of the proxy), pooled over all trials first, then arm by arm."""
    metric = next((key for key in REWARDS if any(key in curve.values for curve in found.values())), None)
    if metric is None:
        return ()
    reference = _reference(records, metric)
    if reference is None:
        return ()
    groups = {POOLED: list(found)} | {arm: [trial for trial in found if trial[0] == arm] for arm in records.arms}
    result = []
    for name, trials in groups.items():
        chosen = [found[trial] for trial in trials if metric in found[trial].values]
        law = (
            fit_law([c.kl for c in chosen], [c.values[metric] - reference for c in chosen], [c.weights for c in chosen])
            if chosen
            else None
        )
        if law is not None and (name != POOLED or len({arm for arm, _ in trials}) > 1):
            result.append(RewardLaw(name, metric, reference, law, len(chosen)))
    return tuple(result)


def alarms(records: StudyRecords) -> tuple[ArmAlarm, ...]:
    """Where over-optimisation began in each arm."""
    raised: dict[str, dict[int, Alarm]] = {}
    tried: dict[str, int] = {}
    for (arm, seed), frame in _trajectories(records).items():
        if not {"objective/gold", "objective/scores"} <= set(frame.columns):
            continue
        tried[arm] = tried.get(arm, 0) + 1
        kl, gold, proxy = (_numbers(frame, key) for key in ("kl", *REWARDS))
        found = alarm(_numbers(frame, "step"), kl, gold, proxy)
        if found is not None:
            raised.setdefault(arm, {})[seed] = found
    result = []
    for arm in records.arms:
        if arm in tried:
            own = raised.get(arm, {})
            at = stats.over_seeds([one.kl for one in own.values()]).clipped(0.0, np.inf) if own else None
            result.append(ArmAlarm(arm, own, tried[arm], at))
    return tuple(result)


def aligned(
    records: StudyRecords, metric: str, arm: str, grid: Array | None = None, points: int = 256
) -> tuple[list[int], Aligned]:
    """The seeds of an arm and their series of one metric on one grid (`reports.statistics.series.align`); its own grid
    by default.

    Cells hold whole updates, since within one the clip fraction rises from epoch to epoch, and a cell that cut
    an update would show that saw-tooth as if it were noise.
    """
    series = records.series(arm, metric)
    steps, values = [at for at, _ in series.values()], [value for _, value in series.values()]
    return list(series), align(steps, values, grid_of(steps, points, records.update_length) if grid is None else grid)


def _trajectories(records: StudyRecords) -> dict[tuple[str, int], pd.DataFrame]:
    """(arm, seed) -> step, kl (nats per sequence) and the rewards recorded, in the order of the study."""
    frame = records.curves
    keys = [key for key in REWARDS if key in frame.columns]
    exact = {EXACT, LENGTH} <= set(frame.columns)
    if frame.empty or not keys or not (exact or KL in frame.columns):
        return {}
    kl = frame[EXACT] * frame[LENGTH] if exact else pd.Series(np.nan, index=frame.index)
    kl = kl.fillna(frame[KL]) if KL in frame.columns else kl
    chosen = frame[["arm", "seed", "step", *keys]].assign(kl=kl).dropna(subset=["kl"])
    status = records.trials.set_index(["arm", "seed"])["status"].to_dict()
    groups = dict(iter(chosen.groupby(["arm", "seed"], sort=False)))
    planned = [(arm, seed) for arm in records.arms for seed in records.seeds]
    return {trial: groups[trial] for trial in planned if trial in groups and status.get(trial) != "failed"}


def _numbers(frame: pd.DataFrame, key: str) -> Array:
    return frame[key].to_numpy(dtype=np.float64)


def _rewards(frame: pd.DataFrame) -> list[str]:
    return [key for key in REWARDS if key in frame.columns and frame[key].notna().any()]


def _matched(found: Curves, metric: str, arm: str, base: str, place: Place) -> MatchedKL | None:
    seeds = [seed for name, seed in found if name == arm and (base, seed) in found]
    seeds = [seed for seed in seeds if metric in found[arm, seed].values and metric in found[base, seed].values]
    both = common_range([found[name, seed] for name in (arm, base) for seed in seeds])
    if both is None:
        return None
    low, high = both
    kl = max(low, high * PLACES[place])
    first, second = ([found[name, seed].at(metric, kl) for seed in seeds] for name in (arm, base))
    differences = [a - b for a, b in zip(first, second, strict=True)]
    estimate = stats.over_seeds(differences)
    values = stats.over_seeds(first), stats.over_seeds(second)
    when = [
        float(np.mean([np.interp(kl, found[name, seed].kl, found[name, seed].steps) for seed in seeds]))
        for name in (arm, base)
    ]
    per_seed = dict(zip(seeds, differences, strict=True))
    p = stats.two_level_p(estimate)
    found_at = (kl, low, high, when[0], when[1], *values, estimate, per_seed, p, None)
    return MatchedKL(metric, arm, place, *found_at, "not estimable")


def _corrected(rows: Sequence[MatchedKL]) -> list[MatchedKL]:
    tested = [index for index, row in enumerate(rows) if row.p is not None]
    corrected = dict(zip(tested, stats.holm([p for row in rows if (p := row.p) is not None]), strict=True))
    return [
        replace(
            row, p_holm=corrected.get(index), outcome=stats.verdict(row.difference, corrected.get(index), maximize=True)
        )
        for index, row in enumerate(rows)
    ]


def _reference(records: StudyRecords, metric: str) -> float | None:
    """What the reference scores on the judge's or the proxy's scale: on held-out prompts, else at step 0 of the
    trajectories."""
    column = {"objective/gold": "reference_gold", "objective/scores": "reference_proxy"}[metric]
    if len(records.prompts):
        return float(records.prompts.drop_duplicates("prompt_id")[column].astype(float).mean())
    first = records.curves[records.curves["step"] == 0]
    values = first[metric].dropna() if metric in first.columns else first.iloc[:0]["step"]
    return float(values.mean()) if len(values) else None
