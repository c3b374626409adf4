"""Contrasts: weighted sums of arms on the same seeds and prompts, and what their interval says of an expectation. Pure.

A contrast ``sum_i w_i table_i`` with ``sum_i w_i = 0`` is itself a table of S seeds x P prompts, so the estimator of a
mean serves it: pairing by seed and prompt is in the subtraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from reports.statistics import two_level
from reports.statistics.equivalence import equivalence_p, equivalent
from reports.statistics.hierarchical import moments
from reports.statistics.two_level import Array, Estimate

Expected = Literal["higher", "lower", "equal"]
Judged = Literal["SUPPORTED", "REFUTED", "UNDECIDED"]


def combine(weights: Sequence[float], tables: Sequence[tuple[Array, Array | None]]) -> Array:
    """``sum_i w_i table_i``, shape (S, P); row s is one seed, column p one prompt, in all tables.

    A table is given as numerator and denominator. Of a ratio (nats / tokens) its linear form counts, whose row means
    are the ratios of each seed (`two_level.linear`). Raises `ValueError` for shapes that differ, and for
    non-finite values.
    """
    shapes = {numerator.shape for numerator, _ in tables}
    if len(shapes) != 1 or len(weights) != len(tables):
        raise ValueError(f"needs one weight for each of the tables, all of one shape, not {len(weights)}, {shapes}")
    total: Array = np.zeros(shapes.pop())
    for weight, (numerator, denominator) in zip(weights, tables, strict=True):
        total = total + weight * two_level.linear(numerator, denominator)
    if not np.isfinite(total).all():
        raise ValueError("non-finite values; a diverged trial is counted by its status, not averaged")
    return total


def estimate(weights: Sequence[float], tables: Sequence[tuple[Array, Array | None]]) -> Estimate:
    """Mean of the combined table with its interval: over seeds and prompts, or over seeds alone where P = 1.

    The prior's scale is that of a weighted sum of independent seed effects, ``sqrt(sum_i w_i^2 scale_i^2)``, so the
    contrast of two arms has the interval of `two_level.difference`. Raises `ValueError` as `combine`, and for
    non-finite values.
    """
    table = combine(weights, tables)
    if table.shape[1] == 1:
        return two_level.over_seeds(list(table[:, 0]))
    given = moments(table)
    if table.any():
        spreads = [float(moments(two_level.linear(*pair)).spread) for pair in tables]
        given = replace(given, spread=np.asarray(np.linalg.norm(np.multiply(weights, spreads))))
    return two_level.of_moments(given, table.shape[1])


def judge(effect: Estimate, expect: Expected, margin: float = 0.0) -> Judged:
    """What an interval says of an expectation.

    `higher`: the contrast exceeds `margin`; `lower`: it is below ``-margin``; `equal`: it is within ``+-margin``.
    SUPPORTED where the whole interval fulfils it, REFUTED where none of the interval does, else UNDECIDED, as without
    an interval. `equal` is supported by the equivalence test that effects have (`reports.statistics.equivalence`), of
    which the interval has a level of 90 %. `margin` has the metric's unit.
    """
    if effect.low is None or effect.high is None:
        return "UNDECIDED"
    low, high = (effect.low, effect.high) if expect != "lower" else (-effect.high, -effect.low)
    if expect == "equal":
        inside, outside = equivalent(effect, margin), high < -margin or low > margin
    else:
        inside, outside = low > margin, high < margin
    return "SUPPORTED" if inside else "REFUTED" if outside else "UNDECIDED"


def p_value(effect: Estimate, expect: Expected, margin: float = 0.0) -> float | None:
    """p-value of the boundary between fulfilled and not, over new seeds and prompts; None without a distribution.

    Two-sided by `two_level.two_level_p`; of `equal` that of the equivalence test, the larger of two one-sided ones.
    """
    if expect == "equal":
        return equivalence_p(effect, margin)
    bound = margin if expect == "higher" else -margin
    return two_level.two_level_p(replace(effect, value=effect.value - bound))
