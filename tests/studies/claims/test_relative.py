"""Claims relative to the baseline: the same step, the same sign, and nothing that is not a number."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.claims.falsifiers import Series, Verdict, compare, evaluate
from studies.definition.falsifier import Falsifier

BEFORE = 100
SERIES = st.dictionaries(st.integers(0, 150), st.floats(-1, 1) | st.just(math.nan), max_size=30)
AGGREGATIONS = st.sampled_from(["any", "mean", {"consecutive": 2}, {"consecutive": 3}])
RELATIONS = st.sampled_from(["difference", "ratio"])


def claim(op: Any = ">", threshold: float = 0.1, aggregation: Any = "any", relative: Any = None) -> Falsifier:
    return Falsifier(
        name="further", claim="no further", metric="objective/kl", op=op, threshold=threshold, before_step=BEFORE,
        aggregation=aggregation, relative_to="baseline", relative=relative,
    )  # fmt: skip


def judged(
    one: Falsifier, own: dict[int, float], base: dict[int, float], steps: int = BEFORE, last: int = BEFORE
) -> Verdict:
    return compare(one, Series([*own.items()], steps), Series([*base.items()], last))


def test_the_baseline_is_subtracted_at_the_same_step() -> None:
    own, base = {0: 0.0, 8: 0.9, 16: 0.30, 32: 0.45, 48: 0.9}, {0: 0.0, 16: 0.25, 32: 0.30, 64: 0.0}
    found = judged(claim(), own, base)
    assert (found.outcome, found.step, found.value) == ("FALSIFIED", 32, pytest.approx(0.15))
    assert (found.arm_value, found.baseline_value, found.n) == (0.45, 0.30, 3)
    assert found.reason.startswith("difference 0.15 at step 32; 0.45 against the baseline's 0.3; left out: 1 record ")
    assert judged(claim("<", -0.1), own, base).outcome == "SURVIVED", "the arm lies above the baseline, not below"
    assert judged(claim("<", -0.1), base, own).outcome == "FALSIFIED"


def test_a_ratio_divides_by_the_baseline_where_that_is_above_0() -> None:
    own, base = {0: 0.0, 16: 0.3, 32: 0.3, 48: 0.8}, {0: 0.0, 16: 0.2, 32: -0.1, 48: 0.2}
    found = judged(claim(threshold=2.0, relative="ratio"), own, base)
    assert (found.outcome, found.step, found.value, found.n) == ("FALSIFIED", 48, 4.0, 2)
    assert found.reason.startswith("ratio 4 at step 48; 0.8 against the baseline's 0.2; left out: 2 records ")
    assert judged(claim(threshold=5.0, relative="ratio"), own, base).outcome == "SURVIVED"


def test_a_claim_does_not_survive_on_fewer_than_half_of_the_records() -> None:
    own = dict.fromkeys((0, 16, 32, 48, 64), 0.2)
    assert judged(claim(), own, dict.fromkeys((0, 16, 32), 0.2)).outcome == "SURVIVED"
    found = judged(claim(), own, {0: 0.2, 32: 0.2})
    assert found.outcome == "NOT TESTED"
    assert found.reason.startswith("only 2 of 5 records before step 100 could be compared")
    assert judged(claim(), dict.fromkeys(own, 0.9), {32: 0.2}).outcome == "FALSIFIED", "one record is enough for that"


@pytest.mark.parametrize(("level", "outcome"), [(0.9, "FALSIFIED"), (0.2, "SURVIVED")])
@pytest.mark.parametrize(("count", "enough"), [(50, True), (49, False)])
def test_a_mean_is_decided_by_half_of_the_records_of_either_trial(
    level: float, outcome: str, count: int, enough: bool
) -> None:
    mean, own, few = claim(aggregation="mean"), dict.fromkeys(range(100), level), dict.fromkeys(range(count), 0.2)
    expected = outcome if enough else "NOT TESTED"
    found = judged(mean, own, few)
    assert (found.outcome, found.n, found.value) == (expected, count, pytest.approx(level - 0.2))
    assert judged(mean, few, dict.fromkeys(own, 0.4 - level)).outcome == expected, "of the baseline's"


@pytest.mark.parametrize(
    ("own", "base", "relative", "counts"),
    [
        ({0: 1.0, 16: 1.0}, {8: 1.0, 24: 1.0}, None, (2, 2)),
        ({0: 1.0, 16: 1.0}, {0: 0.0, 16: -2.0}, "ratio", (2, 2)),
        ({0: math.inf}, {0: math.inf}, None, (1, 1)),
    ],
)
def test_without_a_shared_record_nothing_is_tested(
    own: dict[int, float], base: dict[int, float], relative: Any, counts: tuple[int, int]
) -> None:
    found = judged(claim(relative=relative), own, base)
    assert (found.outcome, found.value, found.n) == ("NOT TESTED", None, 0)
    assert f"{counts[0]} records of this trial before step 100, {counts[1]} of the baseline" in found.reason


def test_both_runs_have_to_come_to_the_step() -> None:
    flat = {0: 0.0, 16: 0.1}
    assert judged(claim(), flat, flat, last=40).reason.startswith("the baseline's run came to 40 of 100 gradient steps")
    assert judged(claim(), flat, flat, steps=40).reason.startswith("the run came to 40 of 100 gradient steps")
    assert judged(claim(), {16: 0.9}, flat, 17, 17).outcome == "FALSIFIED", "however early the runs ended"
    assert judged(claim(aggregation="mean"), {16: 0.9}, flat, last=99).outcome == "NOT TESTED"


@given(SERIES, SERIES, AGGREGATIONS, RELATIONS, st.sampled_from([">", ">=", "<", "<="]))
def test_it_is_the_verdict_on_the_series_of_differences(
    own: dict[int, float], base: dict[int, float], aggregation: Any, relative: str, op: str
) -> None:
    one = claim(op, 0.25, aggregation, relative)
    shared = [step for step in own if step in base and not math.isnan(own[step]) and not math.isnan(base[step])]
    values = [
        (step, own[step] - base[step] if relative == "difference" else own[step] / base[step])
        for step in shared
        if relative == "difference" or base[step] > 0
    ]
    found, plain = judged(one, own, base), evaluate(one, values, BEFORE)
    assert (found.step, found.value, found.n, found.evidence) == (plain.step, plain.value, plain.n, plain.evidence)
    assert found.outcome == plain.outcome or found.reason.startswith(f"only {found.n} of ")
    assert "NaN" not in json.dumps(asdict(found))
