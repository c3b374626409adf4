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


def mean(numerator: Array, denominator: Array | None = None, level: float = LEVEL) -> Estimate:
    """Mean over seeds and prompts, with the posterior interval over new seeds and new prompts.

    `numerator`, `denominator`: (S, P), same unit in every cell. Raises `ValueError` on empty or non-finite input.
    """
    return of_moments(moments(linear(*_checked(numerator, denominator))), np.shape(numerator)[1], level)


def difference(
    arm: Array,
    base: Array,
    arm_denominator: Array | None = None,
    base_denominator: Array | None = None,
    level: float = LEVEL,
) -> Estimate:
    """Mean of ``arm - base``, paired by seed and prompt, with the interval of `mean`.

    Shapes (S, P) throughout; row s is the same seed and column p the same prompt in both. The interval is made on the
    scale of the difference itself, for rates too: 0 is no boundary of a difference. The prior's scale is that of the
    sum of two independent seed effects, hypot of the arms' own scales: pairing by prompt makes the differences over
    prompts smaller, but not the difference between seeds.
    """
    arm, arm_denominator, base, base_denominator = _paired(arm, base, arm_denominator, base_denominator)
    first, second = linear(arm, arm_denominator), linear(base, base_denominator)
    given = moments(first - second) if np.array_equal(first, second) else contrast(first, second)
    return of_moments(given, arm.shape[1], level)


def contrast(arm: Array, base: Array) -> Moments:
    """Moments of paired differences of linear tables (..., S, P), with the spread of two independent arms."""
    return replace(moments(arm - base), spread=np.hypot(moments(arm).spread, moments(base).spread))


def rate(table: Array) -> Estimate:
    """`mean` of values in [0, 1], with its interval made on the scale of logits, so that it stays within [0, 1].

    A half-width h at the rate m becomes h / (m (1 - m)) logits (delta method). Where all values are 0, or all 1, the
    interval is Wilson's with n = prompts, since completions of one prompt are not independent; it has no p-value.
    """
    estimate = mean(table)
    value, low = estimate.value, estimate.low
    if value in (0.0, 1.0):
        bounds = wilson(value * estimate.prompts, estimate.prompts)
        return replace(estimate, low=bounds.low, high=bounds.high, method="wilson", se=None, df=None, posterior=None)
    if low is None:
        return estimate
    below, above = logit_bounds(np.asarray(value), np.asarray(value - low))
    return replace(estimate, low=float(below), high=float(above))


def logit_bounds(value: Array, half: Array) -> tuple[Array, Array]:
    """Ends of an interval around rates strictly between 0 and 1, whose half-widths are `half` to first order. Shapes
    (...)."""
    from scipy.special import expit, logit

    centre, reach = logit(value), half / (value * (1 - value))
    return np.asarray(expit(centre - reach)), np.asarray(expit(centre + reach))


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


def wilson(successes: float, n: int) -> Estimate:
    """A rate with the score interval of Wilson (1927); never empty, not even at 0 or 1. `n` counts independent
    trials."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no rate")
    rate = successes / n
    low, high = intervals.wilson(rate, n, LEVEL)
    return Estimate(rate, low, high, n, 0, "wilson")


def verdict(
    effect: Estimate | None,
    p_corrected: float | None,
    maximize: bool,
    alpha: float = ALPHA,
    p_equivalence: float | None = None,
) -> Outcome:
    """`better` or `worse` where the corrected p is below alpha and the interval excludes 0; else `equivalent` where the
    corrected p of the equivalence test is below alpha; else `undecided`."""
    if effect is None or p_corrected is None:
        return "not estimable"
    if p_corrected < alpha and effect.excludes_zero:
        return "better" if (effect.value > 0) == maximize else "worse"
    return "equivalent" if p_equivalence is not None and p_equivalence < alpha else "undecided"


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
        Tested(p, p_holm, p_equivalence, verdict(effect, p_holm, maximize, p_equivalence=p_equivalence))
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


def _paired(
    arm: Array, base: Array, arm_denominator: Array | None, base_denominator: Array | None
) -> tuple[Array, Array, Array, Array]:
    arm, arm_denominator = _checked(arm, arm_denominator)
    base, base_denominator = _checked(base, base_denominator)
    if arm.shape != base.shape:
        raise ValueError(f"unpaired: {arm.shape} and {base.shape}")
    return arm, arm_denominator, base, base_denominator


def linear(numerator: Array, denominator: Array | None = None) -> Array:
    """A table whose row means are the ratios and whose spread is theirs to first order (the delta method). Shapes
    (..., S, P)."""
    if denominator is None:
        return numerator
    ratio = numerator.sum(-1, keepdims=True) / denominator.sum(-1, keepdims=True)
    result: Array = ratio + (numerator - ratio * denominator) / denominator.mean(-1, keepdims=True)
    return result


def of_moments(given: Moments, prompts: int, level: float = LEVEL) -> Estimate:
    """The estimate that the posterior of these moments gives; `prompts`: P of their table."""
    value, varied = float(given.mean), math.hypot(float(given.spread), math.sqrt(float(given.between)))
    if varied <= _ROUNDING * max(1.0, abs(value)):
        if given.seeds == prompts == 1:
            return Estimate(value, None, None, 1, 1, "none")
        return Estimate(value, value, value, given.seeds, prompts, "hierarchical", 0.0, 1.0)
    deviation = posterior(given)
    half = float(deviation.half_width(level))
    return Estimate(value, value - half, value + half, given.seeds, prompts, "hierarchical", posterior=deviation)
