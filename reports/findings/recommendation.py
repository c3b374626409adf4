"""The setting that a study recommends: the best arm within its constraints, its cost, and how bad a seed can be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.run.metrics import METRICS
from reports.findings.pairs import shared, smallest_of
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.two_level import Estimate
from studies.definition.space import Constraint

if TYPE_CHECKING:
    from reports.findings.findings import ArmResult

ONE_IN = 10
"""A new seed in so many is expected to be worse than `Recommendation.bad_seed`."""
LEAST_SEEDS = 3
"""Fewest seeds that allow a prediction of the next one."""


@dataclass(frozen=True)
class Recommendation:
    """The arm with the best mean of the objective among those whose means keep all constraints."""

    arm: str
    value: Estimate
    compared: int
    """Arms that keep the constraints, this one included."""
    rivals: tuple[str, ...]
    """Arms among them that it does not beat on the seeds they share (Holm's correction over all pairs of arms)."""
    lead: float | None
    """Its paired mean difference to the arm with the second-best mean, positive where it is ahead; None without one."""
    smallest: float | None
    """The smallest difference that matters."""
    excluded: tuple[str, ...]
    """Arms that break a constraint."""
    constraints: tuple[Constraint, ...]
    worst_seed: tuple[int, float]
    bad_seed: float | None
    """One-sided prediction bound for the value of one more seed; None with fewer than `LEAST_SEEDS`."""
    seconds: float | None
    """Mean wall clock of its trials."""

    @property
    def named(self) -> bool:
        """True where it is called the best setting: it is better than some other arm, or the only one to choose."""
        return self.compared == 1 or len(self.rivals) < self.compared - 1


def recommend(records: StudyRecords, arms: tuple[ArmResult, ...], maximize: bool) -> Recommendation | None:
    """The best arm on the baseline's task; None where fewer than two arms of it were evaluated on the objective, or
    none may be used."""
    study, metric = records.study, records.study.objective.metric
    bounds = study.constraints or (study.search.constraints if study.search else ())
    alike = [arm for arm in arms if arm.arm not in records.other_tasks]
    evaluated = [arm for arm in alike if metric in arm.estimates and arm.per_seed.get(metric)]
    kept = [arm for arm in evaluated if all(_keeps(arm, bound) for bound in bounds)]
    if len(evaluated) < 2 or not kept:
        return None
    best = (max if maximize else min)(kept, key=lambda arm: arm.estimates[metric].value)
    others = sorted((arm for arm in kept if arm is not best), key=lambda arm: arm.estimates[metric].value)
    second = others[-1 if maximize else 0] if others else None
    pair = shared(records, metric, [best.arm, second.arm]) if second else None
    lead = pair.difference().value if pair else None
    seeds = best.per_seed[metric]
    bad = prediction_bound(list(seeds.values()), lower=maximize)
    worst = (min if maximize else max)(seeds.items(), key=lambda item: item[1])
    return Recommendation(
        arm=best.arm,
        value=best.estimates[metric],
        compared=len(kept),
        rivals=_rivals(records, metric, best.arm, [arm.arm for arm in kept if arm is not best], maximize),
        lead=lead if lead is None or maximize else -lead,
        smallest=smallest_of(records, metric, pair) if pair else None,
        excluded=tuple(arm.arm for arm in evaluated if arm not in kept),
        constraints=bounds,
        worst_seed=worst,
        bad_seed=None if bad is None else min(max(bad, METRICS[metric].low), METRICS[metric].high),
        seconds=records.cost(best.arm, "cost/wall_s"),
    )


def prediction_bound(values: list[float], *, lower: bool, one_in: int = ONE_IN) -> float | None:
    """The bound that the value of one more seed is worse than with probability ``1 / one_in``.

    ``mean -+ t(1 - 1 / one_in, S - 1) s sqrt(1 + 1 / S)`` for S values of which the standard deviation is s, if seeds
    are normal (Student's prediction interval; Whitmore 1986, The American Statistician 40:141).

    >>> round(prediction_bound([0.8, 0.9, 1.0], lower=True), 3)
    0.682
    """
    if len(values) < LEAST_SEEDS:
        return None
    from scipy.special import stdtrit

    array = np.asarray(values, dtype=np.float64)
    count = len(array)
    reach = float(stdtrit(count - 1, 1 - 1 / one_in)) * float(array.std(ddof=1)) * math.sqrt(1 + 1 / count)
    return float(array.mean()) + (-reach if lower else reach)


def _keeps(arm: ArmResult, bound: Constraint) -> bool:
    estimate = arm.estimates.get(bound.metric)
    return estimate is not None and bound.violation(estimate.value) <= 0


def _rivals(records: StudyRecords, metric: str, best: str, others: list[str], maximize: bool) -> tuple[str, ...]:
    """Return the arms that the best one does not beat. The data chose the best, so any pair could have been tested:
    Holm's correction counts all pairs, of which those without the best count as undecided."""
    pairs = [shared(records, metric, [best, other]) for other in others]
    effects = [pair.difference() if pair else None for pair in pairs]
    raw = [two_level.two_level_p(effect) if effect else None for effect in effects]
    elsewhere = [1.0] * (len(others) * (len(others) - 1) // 2)
    corrected = two_level.holm([*raw, *elsewhere])[: len(others)]
    return tuple(
        other
        for other, effect, p in zip(others, effects, corrected, strict=True)
        if effect is None or p is None or p >= two_level.ALPHA or (effect.value > 0) != maximize
    )
