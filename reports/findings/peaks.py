"""How high the judge's score rose along the training of each arm, at which drift, and how far it fell from there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.findings.trajectories import GOLD, trajectories
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.peak import Peak, peak
from reports.statistics.two_level import Estimate


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
    """Of every arm whose trials recorded the gold reward often enough."""
    found: dict[str, dict[int, Peak]] = {}
    for (arm, number), frame in trajectories(records).items():
        if GOLD in frame.columns:
            own = peak(*(frame[key].to_numpy(dtype=np.float64) for key in ("step", "kl", GOLD)))
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
