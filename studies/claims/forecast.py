"""What a design can show, before it runs: groups without a gradient, and the difference that its seeds can detect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Values = Mapping[tuple[str, int], float]
"""(arm, seed) -> value of a metric."""


def dead_groups(scores: NDArray[np.float64], size: int) -> tuple[float, float]:
    """Bounds of the share of groups of `size` responses to one prompt that are dead: their scores are all equal.

    `scores` (P, n): those of n responses to each of P prompts, in score units. Where c_pv of a prompt's scores are v,

        1/P sum_p sum_v C(c_pv, G) / C(n, G)

    is without bias for G <= n, and both bounds are it. Of a larger group the upper bound is its value at G = n, since
    a group that grows dies no more often; the lower one is sum_v p_v^G by the shares p_v of all scores, since x^G is
    convex, so that prompts which differ have more dead groups than equal ones.

    >>> dead_groups(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), 2)
    (0.6666666666666666, 0.6666666666666666)
    """
    count = scores.shape[1]
    drawn = min(size, count)
    each = np.array([math.comb(c, drawn) / math.comb(count, drawn) for c in range(count + 1)])
    found, prompts = np.unique(scores, return_counts=True)
    upper = math.fsum(float(each[(scores == value).sum(1)].mean()) for value in found)
    equal = math.fsum((prompts / scores.size) ** size)  # of few prompts it can be above the other by chance
    return (min(equal, upper) if size > count else upper), upper


def detectable(seeds: int, level: float = 0.95, power: float = 0.8) -> float:
    """The true mean of paired differences that Student's two-sided test over `seeds`, 2 or more, finds with this power,
    in standard deviations of a difference between seeds.

    Solves P(T > t) = power for the shift d of T, noncentral t with S - 1 degrees of freedom and d sqrt(S); the other
    tail adds less than 0.001.

    >>> round(detectable(5), 2), round(detectable(20), 2)
    (1.68, 0.66)
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    barrier = float(t.ppf((1 + level) / 2, seeds - 1))
    shift = brentq(lambda mean: nct.sf(barrier, seeds - 1, mean) - power, 0.0, 1.5 * barrier + 3)
    return float(shift) / math.sqrt(seeds)


def spread(studies: Sequence[tuple[str, Values]]) -> tuple[float, int] | None:
    """The standard deviation between seeds of an arm's difference from the baseline, pooled over the arms of studies,
    and its degrees of freedom; None without two seeds of an arm. `studies`: the baseline of each, and its values."""
    total, free = 0.0, 0
    for baseline, values in studies:
        for arm in {arm for arm, _ in values} - {baseline}:
            gaps = [one - values[baseline, seed] for (name, seed), one in values.items()
                    if name == arm and (baseline, seed) in values]  # fmt: skip
            if len(gaps) > 1:
                total, free = total + float(np.var(gaps)) * len(gaps), free + len(gaps) - 1
    return (math.sqrt(total / free), free) if free else None
