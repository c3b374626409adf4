"""Verdicts on a series, against the definition of each aggregation written out naively."""

from __future__ import annotations

import json
import math
import operator
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.claims.falsifiers import EXIT_CODES, Outcome, evaluate, overall, untested
from studies.definition.falsifier import Falsifier

BEFORE = 100
OPS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
SERIES = st.lists(st.tuples(st.integers(0, 150), st.floats(-1, 1) | st.just(math.nan)), max_size=40)
AGGREGATIONS = st.sampled_from(["any", "mean", {"consecutive": 2}, {"consecutive": 3}])
Series = list[tuple[int, float]]


def falsifier(aggregation: Any = "any", op: Any = ">", threshold: float = 0.25) -> Falsifier:
    return Falsifier(
        name="drift", claim="stays", metric="objective/kl_per_token", op=op, threshold=threshold, before_step=BEFORE,
        aggregation=aggregation,
    )  # fmt: skip


@given(SERIES, AGGREGATIONS, st.sampled_from([*OPS]), st.integers(90, 110), st.randoms(use_true_random=False))
def test_a_verdict_follows_its_definition(series: Series, aggregation: Any, op: str, steps: int, random: Any) -> None:
    """The last of two values at one step counts, NaN never, and nothing at or after the step; order does not matter."""
    records = sorted({step: value for step, value in series if not math.isnan(value) and step < BEFORE}.items())
    breaks = [OPS[op](value, 0.25) for _, value in records]
    n = aggregation["consecutive"] if isinstance(aggregation, dict) else 1
    rows = [end for end in range(n, len(records) + 1) if all(breaks[end - n : end])]
    mean = math.fsum(value for _, value in records) / max(len(records), 1)
    enough = len(records) >= n and steps >= BEFORE and bool(records)
    found = evaluate(falsifier(aggregation, op), series, steps)
    assert (found.n, found.broken, found.last_step) == (len(records), sum(breaks), records[-1][0] if records else None)
    if aggregation == "mean":
        outcome = "NOT TESTED" if not enough else "FALSIFIED" if OPS[op](mean, 0.25) else "SURVIVED"
        assert (found.outcome, found.evidence, found.step) == (outcome, (), None)
        assert found.value is None or found.value == pytest.approx(mean)
    elif rows:
        assert (found.outcome, found.evidence) == ("FALSIFIED", tuple(records[rows[0] - n : rows[0]]))
        assert (found.step, found.value) == records[rows[0] - 1]
    else:
        assert (found.outcome, found.evidence) == ("SURVIVED" if enough else "NOT TESTED", ())
    unique = list(dict(series).items())
    shuffled = random.sample(unique, len(unique))
    assert evaluate(falsifier(aggregation, op), shuffled, steps) == evaluate(falsifier(aggregation, op), unique, steps)
    assert json.loads(json.dumps(asdict(found), allow_nan=False))


@pytest.mark.parametrize(
    ("series", "steps", "outcome"),
    [
        ([], 2000, "NOT TESTED"),
        ([(100, 0.9)], 2000, "NOT TESTED"),
        ([(0, 0.0)], 99, "NOT TESTED"),
        ([(0, 0.25)], 100, "SURVIVED"),
        ([(16, 0.26)], 17, "FALSIFIED"),
    ],
)
def test_edges(series: Series, steps: int, outcome: str) -> None:
    assert evaluate(falsifier(), series, steps).outcome == outcome


def test_a_step_that_the_target_kl_left_out_leaves_a_claim_open() -> None:
    series = [(step, 0.1) for step in range(BEFORE)]
    assert [evaluate(falsifier(), series, BEFORE, gap=gap).outcome for gap in (99, 100, None)] == [
        "NOT TESTED", "SURVIVED", "SURVIVED",
    ]  # fmt: skip
    assert evaluate(falsifier(), [(1, 0.9)], BEFORE, gap=0).outcome == "FALSIFIED"


@pytest.mark.parametrize(
    ("outcomes", "expected", "code"),
    [
        (["SURVIVED", "SURVIVED"], "SURVIVED", 0),
        (["SURVIVED", "FALSIFIED", "NOT TESTED"], "FALSIFIED", 1),
        (["SURVIVED", "NOT TESTED"], "NOT TESTED", 3),
        ([], "NOT TESTED", 3),
    ],
)
def test_overall(outcomes: list[Outcome], expected: Outcome, code: int) -> None:
    verdict = overall([replace(untested(falsifier(), "x"), outcome=outcome) for outcome in outcomes])
    assert (verdict, EXIT_CODES[verdict]) == (expected, code)
