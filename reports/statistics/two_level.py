"""Estimates, intervals and tests over a seeds x prompts table. Pure functions; randomness is fixed.

Shapes: S seeds (rows), P held-out prompts (columns). Every trial answers the same prompts, so the two
factors are crossed, and all functions resample or swap a prompt in all seeds at once.

A quantity may be a ratio per seed (nats / tokens): it is then given as a numerator and a denominator, and
the value of an arm is the mean over seeds of ``sum_p numerator / sum_p denominator``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline import intervals

Array = NDArray[np.float64]
Method = Literal["bootstrap", "student", "jackknife", "wilson", "none"]
Outcome = Literal["better", "worse", "no detectable difference", "not estimable"]

LEVEL = 0.95
ALPHA = 0.05
RESAMPLES = 4_000
SWAPS = 10_000
RNG_SEED = 20_170_720
_CHUNK = 1_000


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, in the unit of what was given; `low` and `high` are None where no interval can be
    made."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    prompts: int
    """0 where the quantity exists once per trial."""
    method: Method
    se: float | None = None
    """Standard error over both seeds and prompts."""
    df: float | None = None
    """Its degrees of freedom."""

    def clipped(self, low: float, high: float) -> Estimate:
        """The interval cut to what the quantity can be at all."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and 0 lies outside of it."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)


def mean(numerator: Array, denominator: Array | None = None, level: float = LEVEL) -> Estimate:
    """Mean over seeds and prompts with a two-level bootstrap interval.

    Each of `RESAMPLES` replicates draws S seeds and P prompts with replacement, one draw of prompts for all
    seeds (the pigeonhole bootstrap of crossed factors, Owen 2007, Annals of Applied Statistics 1:386). The
    percentile interval is expanded (Hesterberg 2015, The American Statistician 69:371) for what resampling a
    few things understates: to the standard error with its small-sample divisors, and by t / z with the degrees of
    freedom of Satterthwaite (1946) for the sum of the variances between seeds and between prompts. That sum
    counts the interaction twice, so the interval errs on the wide side where completions vary most.

    In simulation a 95 % interval covers, with 3 seeds, 96-99.8 % when prompts or completions vary most and 92-95 %
    when seeds vary most; with 2 seeds 86-97 %; with 5 or more 94-99 %. With one seed it speaks of prompts alone.

    `numerator`, `denominator`: (S, P), same unit in every cell. Raises `ValueError` on empty or non-finite input.
    """
    numerator, denominator = _checked(numerator, denominator)
    return _two_level(_ratio_replicates(numerator, denominator), linear(numerator, denominator), level)


def difference(
    arm: Array,
    base: Array,
    arm_denominator: Array | None = None,
    base_denominator: Array | None = None,
    level: float = LEVEL,
) -> Estimate:
    """Mean of ``arm - base``, paired by seed and prompt, with the same bootstrap as `mean`.

    Shapes (S, P) throughout; row s is the same seed and column p the same prompt in both.
    """
    arm, arm_denominator, base, base_denominator = _paired(arm, base, arm_denominator, base_denominator)
    if bool((arm_denominator == 1.0).all() and (base_denominator == 1.0).all()):
        replicates = _ratio_replicates(arm - base, arm_denominator)
    else:
        replicates = _ratio_replicates(arm, arm_denominator) - _ratio_replicates(base, base_denominator)
    return _two_level(replicates, linear(arm, arm_denominator) - linear(base, base_denominator), level)


def improvement(arm: Array, base: Array, maximize: bool = True, level: float = LEVEL) -> Estimate:
    """Probability that the arm beats the baseline on the same seed and prompt, ties counting half, with the bootstrap
    of `mean`.

    The paired form of the probability of improvement (Agarwal et al. 2021, who compare all pairs of runs): 0.5 says no
    difference, and it knows nothing of how large a win is. A constant table gets a Wilson interval with
    n = prompts, since the bootstrap of a constant has no width. Shapes (S, P).
    """
    arm, _, base, _ = _paired(arm, base, None, None)
    wins = np.where(arm == base, 0.5, ((arm > base) == maximize).astype(np.float64))
    return rate(wins, level)


def rate(table: Array, level: float = LEVEL) -> Estimate:
    """`mean` of values in [0, 1], where a constant table of 0 or 1 gets a Wilson interval with n = prompts."""
    found = mean(table, level=level)
    if found.low == found.high and found.value in (0.0, 1.0):
        # Completions of one prompt are not independent, so n is not seeds x prompts.
        bounds = wilson(found.value * found.prompts, found.prompts, level)
        return replace(found, low=bounds.low, high=bounds.high, method="wilson", se=None, df=None)
    return found.clipped(0.0, 1.0)


def iqm(table: Array, level: float = LEVEL) -> Estimate:
    """Interquartile mean over all cells: a quarter trimmed from either end, robust to outliers (Agarwal et al. 2021).

    The point equals ``scipy.stats.trim_mean(table, 0.25, axis=None)``. Interval: the two-level bootstrap of `mean`,
    applied to the influence function of the trimmed mean (Huber 1981, 3.3), whose ends differ by a few percent of their
    distance from those of sorting every replicate anew, at a hundredth of the work. In simulation it covers 92-99 %
    with 3 seeds. Shape (S, P).
    """
    table, _ = _checked(table, None)
    ranked = np.sort(table, axis=None)
    cut = int(0.25 * ranked.size)
    kept = ranked[cut : ranked.size - cut]
    pull = np.clip(table, kept[0], kept[-1])
    linearised = kept.mean() + (pull - pull.mean()) * ranked.size / kept.size
    return _two_level(_ratio_replicates(linearised, np.ones_like(table)), linearised, level)


def swap_test(
    arm: Array,
    base: Array,
    arm_denominator: Array | None = None,
    base_denominator: Array | None = None,
    swaps: int = SWAPS,
) -> float:
    """Two-sided p-value of a paired permutation test with the prompt as the unit.

    Under the null hypothesis the labels `arm` and `base` of a prompt may be swapped, in all seeds at once;
    for plain means this is the sign-flip test on the prompts' mean paired differences. Flipping seeds
    instead could not go below 2 / 2^S = 0.25 with three seeds. The price: p speaks of new prompts for *these*
    seeds; that the effect also stands above the variation of seeds is what the interval of `difference` says,
    and `verdict` asks for both. p = (1 + swaps at least as extreme) / (1 + swaps), never 0 (Phipson and Smyth 2010).
    """
    arm, arm_denominator, base, base_denominator = _paired(arm, base, arm_denominator, base_denominator)
    observed = float((arm.sum(1) / arm_denominator.sum(1) - base.sum(1) / base_denominator.sum(1)).mean())
    spread = float(np.abs(arm).sum() / arm_denominator.sum() + np.abs(base).sum() / base_denominator.sum())
    tolerance = 1e-12 * max(spread, 1e-300)
    # Under equal denominators a swap changes the sign of the prompt's own share of the difference: one vector stands
    # for all seeds.
    plain = bool((arm_denominator == base_denominator).all())
    shares = ((arm - base) / arm_denominator.sum(1)[:, None]).mean(0)
    flips = _flips(arm.shape[1], swaps)
    extreme = 0
    for start in range(0, swaps, _CHUNK):
        flip = flips[start : start + _CHUNK].astype(np.float64)
        if plain:
            swapped = observed - 2.0 * (flip @ shares)
        else:
            moved, moved_under = flip @ (base - arm).T, flip @ (base_denominator - arm_denominator).T
            first = (arm.sum(1) + moved) / (arm_denominator.sum(1) + moved_under)
            swapped = (first - (base.sum(1) - moved) / (base_denominator.sum(1) - moved_under)).mean(1)
        extreme += int((np.abs(swapped) >= abs(observed) - tolerance).sum())
    return (1 + extreme) / (1 + swaps)


def over_seeds(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean of one value per seed with Student's interval, S - 1 degrees of freedom; none with a single seed."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("needs at least one value, all finite")
    centre = float(array.mean())
    if array.size < 2:
        return Estimate(centre, None, None, 1, 0, "none")
    from scipy.special import stdtrit

    se = float(array.std(ddof=1)) / math.sqrt(array.size)
    half = float(stdtrit(array.size - 1, (1 + level) / 2)) * se
    return Estimate(centre, centre - half, centre + half, array.size, 0, "student", se, float(array.size - 1))


def two_level_p(effect: Estimate) -> float | None:
    """Two-sided p-value of no effect from an estimate's standard error: Student's t with its degrees of freedom.

    It speaks of new seeds *and* new prompts, where `swap_test` speaks of new prompts for these seeds. In simulation
    under the null with 3 seeds, 1-4 % are below 0.05 when completions or prompts vary most and 5-8 % when seeds vary
    most; with 2 seeds 3-14 %. None without a standard error; 1 for no difference at all.
    """
    if effect.se is None or effect.df is None:
        return None
    if effect.se == 0.0:
        return 1.0 if effect.value == 0.0 else None
    from scipy.special import stdtr

    return float(2 * stdtr(effect.df, -abs(effect.value) / effect.se))


def seed_flip_test(differences: Sequence[float]) -> float:
    """Two-sided exact sign-flip p-value over S paired differences; at least 2 / 2^S. S at most 16."""
    array = np.asarray(differences, dtype=np.float64)
    if not 1 <= array.size <= 16 or not np.isfinite(array).all():
        raise ValueError("needs 1 to 16 finite differences")
    codes = np.arange(2**array.size)[:, None]
    signs = 1.0 - 2.0 * ((codes >> np.arange(array.size)) & 1)
    sums = np.abs(signs @ array)
    return float((sums >= abs(array.sum()) - 1e-12 * max(float(np.abs(array).sum()), 1e-300)).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Step-down corrected p-values in the order given (Holm 1979); they bound the chance of any false finding.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    count = len(p_values)
    corrected = [0.0] * count
    running = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (count - rank) * p_values[index]))
        corrected[index] = running
    return corrected


def wilson(successes: float, n: int, level: float = LEVEL) -> Estimate:
    """A rate with the score interval of Wilson (1927); never empty, not even at 0 or 1. `n` counts independent
    trials."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no rate")
    rate = successes / n
    low, high = intervals.wilson(rate, n, level)
    return Estimate(rate, low, high, n, 0, "wilson")


def rate_difference(successes: float, n: int, base_successes: float, base_n: int, level: float = LEVEL) -> Estimate:
    """Difference of two independent rates with the hybrid score interval (Newcombe 1998, Statistics in Medicine 17:873,
    method 10).

    Like `wilson` it has a width at 0 of n against 0 of n. `seeds` of the result is the smaller n.
    """
    first, second = wilson(successes, n, level).value, wilson(base_successes, base_n, level).value
    (low, high), (base_low, base_high) = intervals.wilson(first, n, level), intervals.wilson(second, base_n, level)
    value = first - second
    low, high = value - math.hypot(first - low, base_high - second), value + math.hypot(high - first, second - base_low)
    return Estimate(value, low, high, min(n, base_n), 0, "wilson")


def verdict(effect: Estimate | None, p_corrected: float | None, maximize: bool, alpha: float = ALPHA) -> Outcome:
    """`better` or `worse` only when the corrected p is below alpha *and* the interval excludes 0."""
    if effect is None or p_corrected is None:
        return "not estimable"
    if effect.low is None or effect.high is None or p_corrected >= alpha or effect.low <= 0.0 <= effect.high:
        return "no detectable difference"
    return "better" if (effect.value > 0) == maximize else "worse"


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


def _ratio_replicates(numerator: Array, denominator: Array) -> Array:
    """The ratio of each seed on each draw of prompts: (RESAMPLES, S)."""
    _, prompts = _draws(*numerator.shape)
    plain = bool((denominator == 1.0).all())  # a mean: its denominator is the same in every draw
    under = float(numerator.shape[1]) if plain else prompts @ denominator.T
    result: Array = (prompts @ numerator.T) / under
    return result


def linear(numerator: Array, denominator: Array | None = None) -> Array:
    """A table whose row means are the ratios and whose spread is theirs to first order (the delta method)."""
    if denominator is None:
        return numerator
    ratio = (numerator.sum(1) / denominator.sum(1))[:, None]
    result: Array = ratio + (numerator - ratio * denominator) / denominator.mean(1)[:, None]
    return result


def _two_level(replicates: Array, table: Array, level: float) -> Estimate:
    """The percentile interval over drawn seeds and prompts, expanded as `mean` says.

    `replicates`: (RESAMPLES, S), each seed's value on each draw of prompts; `table`: (S, P), linear in the estimate.
    """
    value = float(table.mean(1).mean())
    replicates = (_draws(len(table), 0)[0] * replicates).sum(1)
    se, df = standard_error(table)
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2]) - value
    spread = float(replicates.std())
    if se > 0 and spread > 1e-12 * max(1.0, abs(value)):
        from scipy.special import ndtri, stdtrit

        factor = se / spread * float(stdtrit(df, (1 + level) / 2) / ndtri((1 + level) / 2))
        low, high = low * factor, high * factor
    # A skewed replicate distribution may leave the value outside by rounding alone.
    return Estimate(
        value,
        value + min(float(low), 0.0),
        value + max(float(high), 0.0),
        len(table),
        table.shape[1],
        "bootstrap",
        se,
        df,
    )


def standard_error(table: Array) -> tuple[float, float]:
    """Standard error of the mean of a crossed (S, P) table and its degrees of freedom (Satterthwaite 1946).

    Variance between seeds / S + variance between prompts / P; the smaller of two things is no evidence of the other,
    so a single seed or prompt contributes nothing. (0, 1) for a constant table.
    """
    seeds, prompts = table.shape
    between_seeds = float(table.mean(1).var(ddof=1)) / seeds if seeds > 1 else 0.0
    between_prompts = float(table.mean(0).var(ddof=1)) / prompts if prompts > 1 else 0.0
    total = between_seeds + between_prompts
    if total == 0.0:
        return 0.0, 1.0
    weighted = between_seeds**2 / max(1, seeds - 1) + between_prompts**2 / max(1, prompts - 1)
    return math.sqrt(total), total**2 / weighted


@lru_cache(maxsize=4)
def _flips(prompts: int, swaps: int) -> NDArray[np.int8]:
    """Which prompts change sides: (swaps, P) of 0 and 1, the same for every arm."""
    return np.random.default_rng([RNG_SEED, prompts, 2]).integers(0, 2, size=(swaps, prompts), dtype=np.int8)


@lru_cache(maxsize=16)
def _draws(seeds: int, prompts: int) -> tuple[Array, Array]:
    """Weights of the replicates: (RESAMPLES, S) that sum to 1, and (RESAMPLES, P) counts of each prompt."""
    rng = np.random.default_rng([RNG_SEED, seeds])
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    rng = np.random.default_rng([RNG_SEED, prompts, 1])
    counts = (
        rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES) if prompts else np.zeros((RESAMPLES, 0))
    )
    return drawn.astype(np.float64), counts.astype(np.float64)
