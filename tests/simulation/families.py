"""Rate of pages with a false verdict on their arms or hypotheses, by simulation with known truth.

Tests and corrections are those of the reports: `two_level.verdicts` of arms,
`contrast.conjunction` and `contrast.decide` of hypotheses. The truth lies on a bound of each test, where false verdicts
are most frequent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from simulation.intervals import Scenario, drawn

from reports.statistics.contrast import Expected, against, conjunction, decide, estimate
from reports.statistics.two_level import ALPHA, Array, Estimate, verdicts

MARGINS = {"rate 0.5": 0.05, "rate 0.95": 0.05, "score": 0.2}
"""Smallest differences that matter, as in the reports: five points of a rate, 0.2 standard deviations over prompts."""
_CLEAR = 20.0
"""A difference that every test finds."""
_TABLES, _CHUNK = 20, 25
_DECIDED = ("SUPPORTED", "REFUTED")

Item = Sequence[Estimate]
"""The difference of an arm to the baseline, or the steps of a hypothesis."""
Judge = Callable[[Sequence[Item]], list[set[str]]]
"""The verdicts on each item of a family."""


def designs() -> list[Scenario]:
    """Rates and scores of seeds that are equal, that differ little, or as much as prompts do."""
    spreads = ("equal", "sd 0.05", "sd 0.2", "sd 1")
    return [Scenario(kind, spread, seeds, 512) for kind in MARGINS for spread in spreads for seeds in (3, 5, 10)]


def simulate(design: Scenario, replicates: int) -> list[dict[str, Any]]:
    """Shares of replicates with any false verdict, of all families on the same tables: rows of ``families.csv``."""
    counts: dict[str, Array] = {}
    for top, _ in drawn(design, 20_260_202, replicates, _TABLES - 1, _CHUNK):
        for name, items, judge, false in _families(top, MARGINS[design.kind]):
            alone = [verdict for item in items for verdict in judge([item])]
            counts[name] = counts.get(name, np.zeros(2)) + np.array([_any(alone, false), _any(judge(items), false)])
    shares = {name: np.round(found / replicates, 4).tolist() for name, found in counts.items()}
    return [
        {"family": name} | asdict(design) | {"replicates": replicates, "uncorrected": alone, "corrected": corrected}
        for name, (alone, corrected) in shares.items()
    ]


def _families(top: Array, margin: float) -> Iterator[tuple[str, Sequence[Item], Judge, Sequence[Sequence[str]]]]:
    """Name, items, what judges them, and the verdicts on each that are false; `top`: 20 tables without an effect."""
    compare, expect = partial(_of_arms, margin), partial(_of_hypotheses, "higher", 0.0)
    same = [(_difference(arm, top[0]),) for arm in top[1:12]]
    far = [_moved(one, margin) for one in same]
    for size in (4, 11):
        yield f"{size} arms at the margin", far[:size], compare, [("equivalent",)] * size
    mixed = [("better", "worse")] * 2 + [("equivalent",)] * 2
    yield "2 arms at 0, 2 at the margin", same[:2] + far[2:4], compare, mixed
    pairs = [(_difference(after, before),) for before, after in zip(top[::2], top[1::2], strict=True)]
    yield "10 higher, no effect", pairs, expect, [_DECIDED] * 10
    holding = [_moved(one, _CLEAR) for one in pairs[:5]]
    yield "10 higher, half hold", holding + pairs[5:], expect, [("REFUTED",)] * 5 + [_DECIDED] * 5
    outer = [_moved(one, margin) for one in pairs]
    yield "10 equal, at the margin", outer, partial(_of_hypotheses, "equal", margin), [("SUPPORTED",)] * 10
    orders = [[_difference(after, before) for before, after in pairwise(top[at : at + 3])] for at in range(0, 18, 3)]
    yield "6 orders of 3, no effect", orders, expect, [_DECIDED] * 6


def _difference(arm: Array, base: Array) -> Estimate:
    return estimate((1, -1), [(arm, None), (base, None)])


def _moved(item: Item, by: float) -> Item:
    """The estimates from tables of which the arm's has a constant added."""
    return [replace(one, value=one.value + by, low=one.low + by, high=one.high + by) for one in item]


def _of_arms(margin: float, items: Sequence[Item]) -> list[set[str]]:
    """Outcomes, and `equivalent` also of arms that are better or worse by too little to matter."""
    tested = verdicts([effect for (effect,) in items], [margin] * len(items), maximize=True)
    return [
        {one.outcome, "equivalent" if one.p_equivalence is not None and one.p_equivalence < ALPHA else one.outcome}
        for one in tested
    ]


def _of_hypotheses(expect: Expected, margin: float, items: Sequence[Item]) -> list[set[str]]:
    tests = [conjunction([against(step, expect, margin) for step in item]) for item in items]
    return [{outcome} for outcome, _ in decide(tests)]


def _any(verdicts: Sequence[set[str]], false: Sequence[Sequence[str]]) -> bool:
    return any(verdict.intersection(wrong) for verdict, wrong in zip(verdicts, false, strict=True))
