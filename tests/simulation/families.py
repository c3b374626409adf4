"""How often a page says anything false of its arms or hypotheses, by simulation with known truth.

Tests and corrections are those of the reports: `two_level.verdicts` of arms,
`contrast.conjunction` and `contrast.decide` of hypotheses. The truth lies on a bound of each test, where false verdicts
are most frequent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from simulation.intervals import KINDS, SPREADS, Scenario, tables

from reports.statistics import two_level
from reports.statistics.contrast import Expected, against, conjunction, decide
from reports.statistics.coverage import Family
from reports.statistics.hierarchical import Posterior, posterior
from reports.statistics.two_level import ALPHA, LEVEL, Array, Estimate

MARGINS = {"rate 0.5": 0.05, "rate 0.95": 0.05, "score": 0.2}
"""Smallest differences that matter, as in the reports: five points of a rate, 0.2 standard deviations over prompts."""
_CLEAR = 20.0
"""A difference that every test finds."""
_TABLES, _CHUNK = 20, 25
_DECIDED = ("SUPPORTED", "REFUTED")

Item = Sequence[Estimate]
"""The difference of an arm to the baseline, or the steps of a hypothesis."""


def designs() -> list[Scenario]:
    """Rates and scores of seeds that are equal, that differ little, or as much as prompts do."""
    spreads = ("equal", "sd 0.05", "sd 0.2", "sd 1")
    return [Scenario(kind, spread, seeds, 512) for kind in MARGINS for spread in spreads for seeds in (3, 5, 10)]


def simulate(design: Scenario, replicates: int) -> list[Family]:
    """All families on the same tables."""
    numbers = (KINDS.index(design.kind), list(SPREADS).index(design.spread), design.seeds, design.prompts)
    rng = np.random.default_rng([20_260_202, *numbers])
    counts: dict[str, Array] = {}
    for start in range(0, replicates, _CHUNK):
        lines = two_level.linear(*tables(rng, design, min(_CHUNK, replicates - start), _TABLES - 1))
        arms, pairs = _differences(lines[:, 1:12], lines[:, :1]), _differences(lines[:, 1::2], lines[:, ::2])
        rows = [lines[:, place:18:3] for place in range(3)]
        steps = [_differences(after, before) for before, after in pairwise(rows)]
        for own, apart, *ordered in zip(arms, pairs, *steps, strict=True):
            for name, items, judge, false in _families(own, apart, ordered, MARGINS[design.kind]):
                alone = [verdict for item in items for verdict in judge([item])]
                found = (_any(alone, false), _any(judge(items), false))
                counts[name] = counts.get(name, np.zeros(2)) + found
    design_of = (design.kind, design.spread, design.seeds, design.prompts, replicates)
    return [
        Family(name, *design_of, *(round(float(share), 4) for share in found / replicates))
        for name, found in counts.items()
    ]


def _differences(arm: Array, base: Array) -> list[list[Estimate]]:
    """`two_level.difference` of many tables (R, K, S, P) at once: R lists of K."""
    given = two_level.contrast(arm, base)
    deviation, (_, _, seeds, prompts) = posterior(given), arm.shape
    half = deviation.half_width(LEVEL)
    return [
        [
            Estimate(
                float(value), float(value - reach), float(value + reach), seeds, prompts, "hierarchical",
                posterior=Posterior(weights, sds),
            )
            for value, reach, weights, sds in zip(*rows, strict=True)
        ]
        for rows in zip(given.mean, half, deviation.weights, deviation.sds, strict=True)
    ]  # fmt: skip


def _families(
    arms: Sequence[Estimate], pairs: Sequence[Estimate], steps: Sequence[Sequence[Estimate]], margin: float
) -> Iterator[tuple[str, Sequence[Item], Callable[[Sequence[Item]], list[set[str]]], Sequence[Sequence[str]]]]:
    """Name, items, what judges them, and the verdicts on each that are false."""
    compare, expect = partial(_of_arms, margin), partial(_of_hypotheses, "higher", 0.0)
    same, far = [(one,) for one in arms], [(_moved(one, margin),) for one in arms]
    for size in (4, 11):
        yield f"{size} arms at the margin", far[:size], compare, [("equivalent",)] * size
    mixed = [("better", "worse")] * 2 + [("equivalent",)] * 2
    yield "2 arms at 0, 2 at the margin", same[:2] + far[2:4], compare, mixed
    parts = [(one,) for one in pairs]
    yield "10 higher, no effect", parts, expect, [_DECIDED] * 10
    holding = [(_moved(one, _CLEAR),) for one in pairs[:5]]
    yield "10 higher, half hold", holding + parts[5:], expect, [("REFUTED",)] * 5 + [_DECIDED] * 5
    outer = [(_moved(one, margin),) for one in pairs]
    yield "10 equal, at the margin", outer, partial(_of_hypotheses, "equal", margin), [("SUPPORTED",)] * 10
    orders = list(zip(*steps, strict=True))
    yield "6 orders of 3, no effect", orders, expect, [_DECIDED] * 6


def _moved(effect: Estimate, by: float) -> Estimate:
    """The estimate from tables of which the arm's has a constant added."""
    assert effect.low is not None
    assert effect.high is not None
    return replace(effect, value=effect.value + by, low=effect.low + by, high=effect.high + by)


def _of_arms(margin: float, items: Sequence[Item]) -> list[set[str]]:
    """Outcomes, and `equivalent` also of arms that are better or worse by too little to matter."""
    tested = two_level.verdicts([effect for (effect,) in items], [margin] * len(items), maximize=True)
    return [
        {one.outcome, "equivalent" if one.p_equivalence is not None and one.p_equivalence < ALPHA else one.outcome}
        for one in tested
    ]


def _of_hypotheses(expect: Expected, margin: float, items: Sequence[Item]) -> list[set[str]]:
    tests = [conjunction([against(step, expect, margin) for step in item]) for item in items]
    return [{outcome} for outcome, _ in decide(tests)]


def _any(verdicts: Sequence[set[str]], false: Sequence[Sequence[str]]) -> bool:
    return any(verdict.intersection(wrong) for verdict, wrong in zip(verdicts, false, strict=True))
