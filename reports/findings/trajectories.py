"""Training trajectories of a study over drift: where over-optimisation began, the peak of gold, and health."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.config.trial import flatten
from reports.records.load import StudyRecords
from reports.statistics import alarm, two_level
from reports.statistics.alarm import Alarm, Updates
from reports.statistics.series import Aligned, DriftPath, Peak, align, drift_path, grid_of, peak
from reports.statistics.two_level import Array, Estimate
from studies.claims.symptoms import BANDS, ArmHealth, Health, by_arm, examine

GOLD = "objective/gold"
REWARDS = (GOLD, "objective/scores")
"""The judge's score, and the reward that was trained on."""
KL = "objective/kl"
EXACT = "objective/kl_exact_per_token"
LENGTH = "objective/length"

Paths = dict[tuple[str, int], DriftPath]


@dataclass(frozen=True)
class ArmAlarm:
    """Trials of an arm whose gold turned down while the proxy went on rising, and the KL at which it did."""

    arm: str
    alarms: dict[int, Alarm]
    """Seed -> alarm, of the trials that raised one."""
    trials: int
    kl: Estimate | None
    """Mean over the trials that raised one; Student over seeds."""


def paths(records: StudyRecords) -> Paths:
    """(arm, seed) -> KL and rewards along the training of every trial that recorded them; a failed one is going to run
    again."""
    found = {
        trial: drift_path(step, kl, dict(zip(REWARDS, rewards, strict=True)))
        for trial, frame in trajectories(records).items()
        if {*REWARDS} <= set(frame.columns)
        for step, kl, *rewards in [_numbers(frame, "step", "kl", *REWARDS)]
    }
    return {trial: path for trial, path in found.items() if path is not None}


def kl_source(records: StudyRecords) -> str:
    """The KL estimate that the trajectories use, named in captions."""
    exact = {EXACT, LENGTH} <= set(records.curves.columns) and bool(records.curves[EXACT].notna().any())
    return "exact KL per token × tokens" if exact else "k1 estimate"


def alarms(records: StudyRecords) -> tuple[ArmAlarm, ...]:
    """Find where over-optimisation began in each arm; at most 5 % of studies without a trend raise any alarm."""
    tried: dict[str, dict[int, Updates]] = {}
    for (arm, seed), frame in trajectories(records).items():
        if {*REWARDS} <= set(frame.columns):
            tried.setdefault(arm, {})[seed] = Updates(*_numbers(frame, "step", "kl", *REWARDS))
    raised = alarm.alarms([list(by_seed.values()) for by_seed in tried.values()])
    result = []
    for (arm, by_seed), found in zip(tried.items(), raised, strict=True):
        own = {seed: turn for seed, turn in zip(by_seed, found, strict=True) if turn is not None}
        at = two_level.over_seeds([turn.kl for turn in own.values()]).clipped(0.0, np.inf) if own else None
        result.append(ArmAlarm(arm, own, len(by_seed), at))
    return tuple(result)


def aligned(records: StudyRecords, metric: str, arm: str) -> tuple[list[int], Aligned]:
    """The seeds of an arm and their series of one metric on one grid (`reports.statistics.series.align`).

    Cells hold whole updates, since within one the clip fraction rises from epoch to epoch, and a cell that cut
    an update would show that saw-tooth as if it were noise.
    """
    series = records.series(arm, metric)
    steps, values = [at for at, _ in series.values()], [value for _, value in series.values()]
    return list(series), align(steps, values, grid_of(steps, multiple=records.update_length))


def trajectories(records: StudyRecords) -> dict[tuple[str, int], pd.DataFrame]:
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


def _numbers(frame: pd.DataFrame, *keys: str) -> list[Array]:
    return [frame[key].to_numpy(dtype=np.float64) for key in keys]


@dataclass(frozen=True)
class ArmPeak:
    """The peaks of an arm's trials; means over seeds with Student's interval."""

    arm: str
    step: Estimate
    """Gradient steps at the peak."""
    root_kl: Estimate
    """Square root of the KL at the peak, nats per sequence."""
    gold: Estimate
    """Judge points at the peak."""
    fall: Estimate
    """Judge points from the peak to the end of training."""
    trials: dict[int, Peak]
    """Number of a trial -> its peak."""


def gold_peaks(records: StudyRecords) -> tuple[ArmPeak, ...]:
    """Peaks of every arm whose trials recorded the gold reward often enough."""
    found: dict[str, dict[int, Peak]] = {}
    for (arm, number), frame in trajectories(records).items():
        if GOLD in frame.columns:
            own = peak(*_numbers(frame, "step", "kl", GOLD))
            if own is not None:
                found.setdefault(arm, {})[number] = own
    return tuple(
        ArmPeak(
            arm,
            _over_seeds(trials, "step").clipped(0.0, np.inf),
            _over_seeds(trials, "root_kl").clipped(0.0, np.inf),
            _over_seeds(trials, "value"),
            _over_seeds(trials, "fall"),
            trials,
        )
        for arm, trials in found.items()
    )


def _over_seeds(trials: dict[int, Peak], key: str) -> Estimate:
    return two_level.over_seeds([float(getattr(own, key)) for own in trials.values()])


def healths(records: StudyRecords) -> tuple[ArmHealth, ...]:
    """Arms with a trial that could be judged; a failed trial is going to run again and does not count."""
    series = {(key, arm): records.series(arm, key) for key in BANDS for arm in records.arms}
    trials: dict[tuple[str, int], Health] = {}
    for (arm, seed), record in sorted(
        records.records.items(), key=lambda item: (records.arms.index(item[0][0]), item[0][1])
    ):
        own = {key: series[key, arm][seed] for key in BANDS if seed in series[key, arm]}
        if record.status != "failed":
            trials[arm, seed] = examine(own, dict(flatten(record.config)), record.status == "diverged")
    return tuple(one for one in by_arm(trials) if one.judged)
