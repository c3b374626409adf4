"""Contrasts: weighted sums of arms on the same seeds and prompts, and tests of what is expected of them. Pure.

A contrast ``sum_i w_i table_i`` with ``sum_i w_i = 0`` is itself a table of S seeds x P prompts, so the estimator of a
mean serves it: pairing by seed and prompt is in the subtraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from reports.statistics import two_level
from reports.statistics.hierarchical import moments
from reports.statistics.two_level import Array, Estimate, equivalence_p

Expected = Literal["higher", "lower", "equal"]
Judged = Literal["SUPPORTED", "REFUTED", "UNDECIDED"]
Test = tuple[bool, float | None]
"""True where the estimate is as expected, and the p-value of the opposite; None where it cannot be tested."""


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

    The interval is made on the scale of the contrast itself, for rates too: 0 is no boundary of a difference. The
    prior's scale is that of a weighted sum of independent seed effects, ``sqrt(sum_i w_i^2 scale_i^2)``: pairing by
    prompt makes the differences over prompts smaller, but not those between seeds. Raises `ValueError` as `combine`.
    """
    table = combine(weights, tables)
    if table.shape[1] == 1:
        return two_level.over_seeds(list(table[:, 0]))
    given = moments(table)
    if table.any():
        spreads = [float(moments(two_level.linear(*pair)).spread) for pair in tables]
        given = replace(given, spread=np.asarray(np.linalg.norm(np.multiply(weights, spreads))))
    return two_level.of_moments(given, table.shape[1])


def against(effect: Estimate, expect: Expected, margin: float = 0.0) -> Test:
    """Test the side of the bound on which the estimate lies against the other side.

    `higher`: the contrast exceeds `margin`; `lower`: it is below ``-margin``; `equal`: it is within ``+-margin``.
    `margin` has the metric's unit. The p-value is two-sided, so it is below 0.05 where the 95 % interval lies on one
    side of the bound. An estimate within the margins of `equal` has that of the equivalence test
    (`two_level.equivalence_p`): it is below 0.05 where the 90 % interval lies within them.
    """
    if expect == "equal":
        room = margin - abs(effect.value)
        return room > 0, equivalence_p(effect, margin) if room > 0 else effect.beyond(-room)
    room = (effect.value if expect == "higher" else -effect.value) - margin
    return room > 0, effect.beyond(abs(room))


def conjunction(steps: Sequence[Test]) -> Test:
    """Test a hypothesis of which all steps have to hold.

    If all estimates are as expected, the largest p is that of the opposite, without a correction (intersection-union
    test; Berger 1982, Technometrics 24:295). Otherwise one of n steps is enough to refute it, so the smallest p of
    those that are not as expected is multiplied by n (Bonferroni).
    """
    known = [p for _, p in steps if p is not None]
    failing = [p for holds, p in steps if not holds and p is not None]
    if len(known) < len(steps):
        return False, None
    return (False, min(1.0, len(steps) * min(failing))) if failing else (True, max(known))


def decide(tests: Sequence[Test]) -> list[tuple[Judged, float | None]]:
    """Return a verdict and the corrected p-value of each hypothesis of a study.

    The family is all hypotheses of the study. Holm's correction counts those that cannot be tested too, so that a
    verdict does not depend on which others could be. SUPPORTED and REFUTED are the two directions of one test. For
    independent tests the correction bounds the chance of any false verdict of either kind (Shaffer 1980, Annals of
    Statistics 8:1342); ``families.csv`` has the rates by simulation.
    """
    corrected = two_level.holm([1.0 if p is None else p for _, p in tests])
    found: list[tuple[Judged, float | None]] = []
    for (holds, p), p_holm in zip(tests, corrected, strict=True):
        significant = p is not None and p_holm is not None and p_holm < two_level.ALPHA
        outcome: Judged = "UNDECIDED" if not significant else "SUPPORTED" if holds else "REFUTED"
        found.append((outcome, None if p is None else p_holm))
    return found
