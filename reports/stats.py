"""Estimates, intervals and tests over a seeds x prompts table. Pure functions; randomness is fixed.

Shapes: S seeds (rows), P held-out prompts (columns). Every trial answers the same prompts, so the two
factors are crossed, and all functions resample or swap a prompt in all seeds at once.

A quantity may be a ratio per seed (nats / tokens): it is then given as a numerator and a denominator, and
the value of an arm is the mean over seeds of ``sum_p numerator / sum_p denominator``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline import intervals

Array = NDArray[np.float64]
Method = Literal["bootstrap", "student", "wilson", "none"]
Outcome = Literal["better", "worse", "no detectable difference", "not estimable"]

LEVEL = 0.95
ALPHA = 0.05
RESAMPLES = 4_000
SWAPS = 10_000
RNG_SEED = 20_170_720
_CHUNK = 1_000


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, in the unit of what was given; `low` and `high` are None where no interval can be made."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    prompts: int
    """0 where the quantity exists once per trial."""
    method: Method

    def clipped(self, low: float, high: float) -> Estimate:
        """The interval cut to what the quantity can be at all."""
        if self.low is None or self.high is None:
            return self
        return Estimate(self.value, max(self.low, low), min(self.high, high), self.seeds, self.prompts, self.method)


def mean(numerator: Array, denominator: Array | None = None, level: float = LEVEL) -> Estimate:
    """Mean over seeds and prompts with a two-level bootstrap interval.

    Each of `RESAMPLES` replicates draws S seeds and P prompts with replacement, one draw of prompts for all
    seeds (the pigeonhole bootstrap of crossed factors, Owen 2007, Annals of Applied Statistics 1:386). The
    deviation of the drawn seeds is stretched by sqrt(S / (S - 1)): resampling S things understates their
    variance by (S - 1) / S, which matters at S = 3. Percentile interval. With one seed the interval speaks
    of prompts alone. In simulation with S = 3 a 95 % interval covers 97-99 % when prompts or completions
    vary most and about 85 % when seeds vary most (three seeds cannot tell more).

    `numerator`, `denominator`: (S, P), same unit in every cell. Raises `ValueError` on empty or non-finite input.
    """
    numerator, denominator = _checked(numerator, denominator)
    seeds, prompts = numerator.shape
    per_seed = numerator.sum(1) / denominator.sum(1)
    replicates = _ratio_replicates(numerator, denominator)
    low, high = _percentile(replicates, per_seed, level)
    return Estimate(float(per_seed.mean()), low, high, seeds, prompts, "bootstrap")


def difference(
    arm: Array, base: Array, arm_denominator: Array | None = None, base_denominator: Array | None = None, level: float = LEVEL
) -> Estimate:
    """Mean of ``arm - base``, paired by seed and prompt, with the same bootstrap as `mean`.

    Shapes (S, P) throughout; row s is the same seed and column p the same prompt in both.
    """
    arm, arm_denominator = _checked(arm, arm_denominator)
    base, base_denominator = _checked(base, base_denominator)
    if arm.shape != base.shape:
        raise ValueError(f"unpaired: {arm.shape} and {base.shape}")
    seeds, prompts = arm.shape
    per_seed = arm.sum(1) / arm_denominator.sum(1) - base.sum(1) / base_denominator.sum(1)
    replicates = _ratio_replicates(arm, arm_denominator) - _ratio_replicates(base, base_denominator)
    low, high = _percentile(replicates, per_seed, level)
    return Estimate(float(per_seed.mean()), low, high, seeds, prompts, "bootstrap")


def swap_test(
    arm: Array, base: Array, arm_denominator: Array | None = None, base_denominator: Array | None = None, swaps: int = SWAPS
) -> float:
    """Two-sided p-value of a paired permutation test with the prompt as the unit.

    Under the null hypothesis the labels `arm` and `base` of a prompt may be swapped, in all seeds at once;
    for plain means this is the sign-flip test on the prompts' mean paired differences. Flipping seeds
    instead could not go below 2 / 2^S = 0.25 with three seeds. The price: p speaks of new prompts for *these*
    seeds; that the effect also stands above the variation of seeds is what the interval of `difference` says,
    and `verdict` asks for both. p = (1 + swaps at least as extreme) / (1 + swaps), never 0 (Phipson and Smyth 2010).
    """
    arm, arm_denominator = _checked(arm, arm_denominator)
    base, base_denominator = _checked(base, base_denominator)
    if arm.shape != base.shape:
        raise ValueError(f"unpaired: {arm.shape} and {base.shape}")
    observed = float((arm.sum(1) / arm_denominator.sum(1) - base.sum(1) / base_denominator.sum(1)).mean())
    spread = float(np.abs(arm).sum() / arm_denominator.sum() + np.abs(base).sum() / base_denominator.sum())
    tolerance = 1e-12 * max(spread, 1e-300)
    rng = np.random.default_rng([RNG_SEED, *arm.shape])
    ratio = bool((arm_denominator != base_denominator).any())
    extreme = 0
    for start in range(0, swaps, _CHUNK):
        flip = rng.integers(0, 2, size=(min(_CHUNK, swaps - start), arm.shape[1])).astype(np.float64)
        moved = flip @ (base - arm).T
        moved_denominator = flip @ (base_denominator - arm_denominator).T if ratio else 0.0
        first = (arm.sum(1) + moved) / (arm_denominator.sum(1) + moved_denominator)
        second = (base.sum(1) - moved) / (base_denominator.sum(1) - moved_denominator)
        extreme += int((np.abs((first - second).mean(1)) >= abs(observed) - tolerance).sum())
    return (1 + extreme) / (1 + swaps)


def over_seeds(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean of one value per seed with Student's interval, S - 1 degrees of freedom; none with a single seed."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("needs at least one value, all finite")
    centre = float(array.mean())
    if array.size < 2:
        return Estimate(centre, None, None, 1, 0, "none")
    from scipy.stats import t

    half = float(t.ppf((1 + level) / 2, array.size - 1)) * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Estimate(centre, centre - half, centre + half, array.size, 0, "student")


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
    """A rate with the score interval of Wilson (1927); never empty, not even at 0 or 1. `n` counts independent trials."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} of {n} is no rate")
    rate = successes / n
    low, high = intervals.wilson(rate, n, level)
    return Estimate(rate, low, high, n, 0, "wilson")


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
        raise ValueError(f"needs a non-empty (seeds, prompts) table and an equal denominator, not {numerator.shape}, {denominator.shape}")
    if not (np.isfinite(numerator).all() and np.isfinite(denominator).all()):
        raise ValueError("non-finite values; a diverged trial is counted by its status, not averaged")
    return numerator, denominator


def _ratio_replicates(numerator: Array, denominator: Array) -> Array:
    """The ratio of each seed on each draw of prompts: (RESAMPLES, S)."""
    _, prompts = _draws(*numerator.shape)
    plain = bool((denominator == 1.0).all())  # a mean: its denominator is the same in every draw
    under = float(numerator.shape[1]) if plain else prompts @ denominator.T
    result: Array = (prompts @ numerator.T) / under
    return result


def _percentile(replicates: Array, per_seed: Array, level: float) -> tuple[float, float]:
    count = len(per_seed)
    drawn, _ = _draws(count, 0)
    stretch = math.sqrt(count / (count - 1)) if count > 1 else 1.0
    totals = (drawn * replicates).sum(1) + (stretch - 1.0) * (drawn @ (per_seed - per_seed.mean()))
    low, high = np.quantile(totals, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@lru_cache(maxsize=16)
def _draws(seeds: int, prompts: int) -> tuple[Array, Array]:
    """Weights of the replicates: (RESAMPLES, S) that sum to 1, and (RESAMPLES, P) counts of each prompt."""
    rng = np.random.default_rng([RNG_SEED, seeds])
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    rng = np.random.default_rng([RNG_SEED, prompts, 1])
    counts = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES) if prompts else np.zeros((RESAMPLES, 0))
    return drawn.astype(np.float64), counts.astype(np.float64)
