"""Estimates, intervals and tests over a seeds x prompts table. Pure functions without random numbers.

Shapes: S seeds (rows), P held-out prompts (columns). Every trial answers the same prompts, so the two factors are
crossed. Intervals and p-values are those of `reports.statistics.hierarchical`; `make coverage` measures how often they
are right.

A quantity may be a ratio per seed (nats / tokens): it is then given as a numerator and a denominator, and
the value of an arm is the mean over seeds of ``sum_p numerator / sum_p denominator``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline import intervals
from reports.statistics.hierarchical import Moments, Posterior, moments, posterior

Array = NDArray[np.float64]
Method = Literal["hierarchical", "student", "jackknife", "wilson", "none"]
Outcome = Literal["better", "worse", "equivalent", "undecided", "not estimable"]

LEVEL = 0.95
ALPHA = 0.05
_ROUNDING = 1e-12
"""Share of the value: a table that varies by less does not vary."""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, in the unit of the data; `low` and `high` are None where no interval can be made."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    prompts: int
    """0 where the quantity exists once per trial."""
    method: Method
    se: float | None = None
    """Standard error, where the interval is Student's."""
    df: float | None = None
    """Its degrees of freedom."""
    posterior: Posterior | None = field(default=None, compare=False, repr=False)
    """Deviation of the truth from `value`, where the interval is `hierarchical`."""

    def beyond(self, distance: float) -> float | None:
        """Probability of a deviation from the truth by more than `distance` >= 0, both sides together; None where the
        interval has no distribution behind it."""
        if self.posterior is not None:
            return float(self.posterior.beyond(distance))
        if self.se is None or self.df is None:
            return None
        if self.se == 0.0:
            return 1.0 if distance == 0.0 else 0.0
        from scipy.special import stdtr

        return float(2 * stdtr(self.df, -distance / self.se))

    def clipped(self, low: float, high: float) -> Estimate:
        """The interval cut to the possible range of the quantity."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    @property
    def excludes_zero(self) -> bool:
        """True where there is an interval and 0 lies outside of it."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)


def mean(numerator: Array, denominator: Array | None = None) -> Estimate:
    """Mean over seeds and prompts, with the posterior interval over new seeds and new prompts.

    `numerator`, `denominator`: (S, P), same unit in every cell. Raises `ValueError` on empty or non-finite input.
    """
    return of_moments(moments(linear(*_checked(numerator, denominator))), np.shape(numerator)[1])


def rate(table: Array) -> Estimate:
    """`mean` of values in [0, 1], with its interval made on the scale of logits, so that it stays within [0, 1].

    A half-width h at the rate m becomes h / (m (1 - m)) logits (delta method). Where all values are 0, or all 1, the
    interval is Wilson's with n = prompts, since completions of one prompt are not independent; it has no p-value.
    """
    estimate = mean(table)
    value, low = estimate.value, estimate.low
    if value in (0.0, 1.0):
        low, high = intervals.wilson(value, estimate.prompts, LEVEL)
        return replace(estimate, low=low, high=high, method="wilson", se=None, df=None, posterior=None)
    if low is None:
        return estimate
    from scipy.special import expit, logit

    centre, reach = logit(value), (value - low) / (value * (1 - value))
    return replace(estimate, low=float(expit(centre - reach)), high=float(expit(centre + reach)))


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean of one value per seed with Student's interval, S - 1 degrees of freedom; none with a single seed."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("needs at least one value, all finite")
    centre = float(array.mean())
    if array.size < 2:
        return Estimate(centre, None, None, 1, 0, "none")
    from scipy.special import stdtrit

    se = float(array.std(ddof=1)) / math.sqrt(array.size)
    half = float(stdtrit(array.size - 1, (1 + LEVEL) / 2)) * se
    return Estimate(centre, centre - half, centre + half, array.size, 0, "student", se, float(array.size - 1))


def two_level_p(effect: Estimate) -> float | None:
    """Two-sided p-value of no effect: the probability of a deviation from the truth as large as the effect.

    It holds for new seeds *and* new prompts, and is below 1 - level where the interval of that level excludes 0.
    None without a distribution behind the interval; 1 for no difference at all.
    """
    if effect.se == 0.0 and effect.value != 0.0:
        return None
    return effect.beyond(abs(effect.value))


def equivalence_p(effect: Estimate, smallest: float) -> float | None:
    """Return the larger p-value of the two one-sided tests of ``effect <= -smallest`` and ``effect >= smallest``
    (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657), which shows an effect to be small.

    With the symmetric distribution of the estimate's error it is half the two-sided probability of a deviation by
    ``smallest - |value|``, the distance to the nearer margin. 1 at or beyond a margin; None without a distribution. It
    is below alpha where the interval of level ``1 - 2 alpha`` (90 %) lies within ``±smallest``.
    """
    room = smallest - abs(effect.value)
    if room <= 0.0:
        return 1.0
    beyond = effect.beyond(room)
    return None if beyond is None else beyond / 2


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Step-down corrected p-values in the order given (Holm 1979, Scandinavian Journal of Statistics 6:65), which bound
    the chance of any false finding whatever the dependence between tests. None stays None and is not counted.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    ascending = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(ascending):
        corrected[index] = running = max(running, min(1.0, (len(ascending) - rank) * p))
    return corrected


def verdict(effect: Estimate | None, p: float | None, maximize: bool, p_equivalence: float | None = None) -> Outcome:
    """`better` or `worse` where the corrected p is below alpha and the interval excludes 0; else `equivalent` where the
    corrected p of the equivalence test is below alpha; else `undecided`."""
    if effect is None or p is None:
        return "not estimable"
    if p < ALPHA and effect.excludes_zero:
        return "better" if (effect.value > 0) == maximize else "worse"
    return "equivalent" if p_equivalence is not None and p_equivalence < ALPHA else "undecided"


@dataclass(frozen=True)
class Tested:
    """The tests of one effect, corrected over its family, and their verdict."""

    p: float | None
    """p-value of no effect, uncorrected (`two_level_p`)."""
    p_holm: float | None
    p_equivalence: float | None
    """p-value of an effect large enough to matter (`equivalence_p`), Holm-corrected; None without a smallest size."""
    outcome: Outcome


def verdicts(effects: Sequence[Estimate | None], smallest: Sequence[float | None], maximize: bool) -> list[Tested]:
    """Test each effect of a family against 0 and against its smallest size that matters.

    Each of the two kinds of test has Holm's correction over the family, so that at a level of 5 % any effect of 0 is
    called better or worse in at most 5 % of studies, and any that is not smaller than its size is called equivalent in
    at most 5 %. An effect of which both tests reject differs from 0 by too little to matter; its outcome is `better`
    or `worse`.
    """
    raw = [two_level_p(effect) if effect else None for effect in effects]
    too_large = [
        equivalence_p(effect, size) if effect and size is not None and p is not None else None
        for effect, size, p in zip(effects, smallest, raw, strict=True)
    ]
    return [
        Tested(p, p_holm, p_equivalence, verdict(effect, p_holm, maximize, p_equivalence))
        for effect, p, p_holm, p_equivalence in zip(effects, raw, holm(raw), holm(too_large), strict=True)
    ]


def _checked(numerator: Array, denominator: Array | None) -> tuple[Array, Array]:
    numerator = np.asarray(numerator, dtype=np.float64)
    denominator = np.ones_like(numerator) if denominator is None else np.asarray(denominator, dtype=np.float64)
    if numerator.ndim != 2 or numerator.size == 0 or numerator.shape != denominator.shape:
        raise ValueError(
            f"needs a non-empty (seeds, prompts) table and an equal denominator, not {numerator.shape},"
            f" {denominator.shape}"
        )
    if not (np.isfinite(numerator).all() and np.isfinite(denominator).all()):
        raise ValueError("non-finite values; a diverged trial is counted by its status, not averaged")
    return numerator, denominator


def linear(numerator: Array, denominator: Array | None = None) -> Array:
    """A table whose row means are the ratios and whose spread is theirs to first order (the delta method). Shapes
    (..., S, P)."""
    if denominator is None:
        return numerator
    ratio = numerator.sum(-1, keepdims=True) / denominator.sum(-1, keepdims=True)
    return np.asarray(ratio + (numerator - ratio * denominator) / denominator.mean(-1, keepdims=True))


def of_moments(given: Moments, prompts: int) -> Estimate:
    """The estimate that the posterior of these moments gives; `prompts`: P of their table."""
    value, varied = float(given.mean), math.hypot(float(given.spread), math.sqrt(float(given.between)))
    if varied <= _ROUNDING * max(1.0, abs(value)):
        if given.seeds == prompts == 1:
            return Estimate(value, None, None, 1, 1, "none")
        return Estimate(value, value, value, given.seeds, prompts, "hierarchical", 0.0, 1.0)
    deviation = posterior(given)
    half = float(deviation.half_width(LEVEL))
    return Estimate(value, value - half, value + half, given.seeds, prompts, "hierarchical", posterior=deviation)
