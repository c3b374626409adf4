"""Accuracy of comparisons at equal drift (`reports.statistics.matched_kl`), by simulation with known truth.

Draws the arms of a baseline's method, whose win rate follows a law of the KL, and an arm of another
method on the same law, so that the true difference is 0. Half of the variance of log KL is
shared by all arms of a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.statistics.matched_kl import curve_at, enough, refusal
from reports.statistics.two_level import ALPHA, mean, two_level_p

Array = NDArray[np.float64]
Design = tuple[int, str, float, int]
"""Arms of the method, law, scatter, seeds."""
SEEDS = (3, 5, 10)
LAWS: dict[str, Callable[[Array], Array]] = {
    "peaks": lambda d: 0.5 + 0.356 * d - 0.0743 * d**2,
    "rises": lambda d: 1 / (1 + np.exp(-2.6 * (1 - np.exp(-d)))),
}
"""Win rate over sqrt(KL): with a maximum within the range of the arms, and without."""
SCATTERS = (0.1, 0.4, 0.6)
"""Standard deviations over seeds of the log KL of the compared arm: of a fixed beta, of GRPO, of DPO."""
METHODS = {5: ((2.24, 3.3, 4.7, 6.83, 9.5), 5.0), 2: ((3.94, 7.88), 5.74)}
"""Arms of the method -> their mean KLs in nats per sequence, and that of the compared arm. Five: those of `critic_free`
in reports/example and one more, so that neighbours lie less than a factor of 2 apart. Two: as far apart as the reports
bridge, at equal distances in sqrt(KL) from the maximum of the first law, at which the compared arm ends."""
CURVE_SCATTER = 0.08
"""Standard deviation of the method's arms."""
PROMPTS = 128
_SEED, _TRIAL, _PROMPT, _ANSWER = 0.05, 0.01, 0.1, 0.2
"""Standard deviations: of a seed's rise, as a fraction of it; of a trial's win rate; of a prompt; of an answer."""


def designs() -> list[Design]:
    """Every law, scatter and number of seeds with five arms, and two arms around a maximum."""
    return [*product((5,), LAWS, SCATTERS, SEEDS), *product((2,), ("peaks",), (0.1,), (5, 10))]


def simulate(design: Design, replicates: int) -> dict[str, Any]:
    """The comparison of the reports on so many studies of one design: the share of studies with a comparison, and of
    these the seeds compared, the bias in win rate with its standard error by Monte Carlo, the coverage, and the share
    with an uncorrected p below 0.05."""
    method, law, scatter, seeds = design
    places = [list(METHODS).index(method), list(LAWS).index(law), SCATTERS.index(scatter), SEEDS.index(seeds)]
    rng = np.random.default_rng([20_260_102, *places])
    found = [estimate for _ in range(replicates) if (estimate := _study(rng, design)) is not None]
    values, sizes, covered, called = map(np.array, zip(*found, strict=True))
    return {
        "arms": method, "law": law, "scatter": scatter, "seeds": seeds, "replicates": replicates,
        "compared": round(len(found) / replicates, 4), "seeds_compared": round(float(sizes.mean()), 2),
        "bias": round(float(values.mean()), 5),
        "bias_error": round(float(values.std(ddof=1) / len(values) ** 0.5), 5),
        "coverage": round(float(covered.mean()), 4), "called": round(float(called.mean()), 4),
    }  # fmt: skip


def _study(rng: np.random.Generator, design: Design) -> tuple[float, int, bool, bool] | None:
    """Difference, seeds, whether its interval covers 0 and whether it is called one; None without a comparison."""
    kl, values, reference = trials(rng, design)
    apart = []
    for own_kl, own_values, scores in zip(kl, values, reference, strict=True):
        order = np.argsort(own_kl[:-1].mean(1))
        if not refusal(own_kl[order].mean(1), float(own_kl[-1].mean()), reference=True):
            apart.append(own_values[-1] - curve_at(own_kl[order], own_values[order], scores, own_kl[-1]))
    if not enough(len(apart), design[-1]):
        return None
    found = mean(np.stack(apart))
    p = two_level_p(found)
    return found.value, len(apart), not found.excludes_zero, p < ALPHA


def trials(rng: np.random.Generator, design: Design) -> tuple[Array, Array, Array]:
    """KL and win rate, (S, K + 1, P), of the method's K arms and the compared one, and win rate of the reference,
    (S, P)."""
    method, law, scatter, seeds = design
    ends, arms = np.append(*METHODS[method]), method + 1
    sd = np.append(np.full(method, CURVE_SCATTER), scatter)
    moved = np.sqrt(0.5) * (rng.standard_normal((seeds, 1)) + rng.standard_normal((seeds, arms)))
    kl = ends * np.exp(sd * moved - sd**2 / 2)
    rise = (LAWS[law](np.sqrt(kl)) - 0.5) * (1 + _SEED * rng.standard_normal((seeds, 1)))
    values = 0.5 + rise + _TRIAL * rng.standard_normal((seeds, arms))
    answers = _PROMPT * rng.standard_normal(PROMPTS) + _ANSWER * rng.standard_normal((seeds, arms, PROMPTS))
    return (
        kl[:, :, None] * rng.gamma(4, 0.25, answers.shape),
        values[:, :, None] + answers,
        np.full((seeds, PROMPTS), 0.5),
    )
