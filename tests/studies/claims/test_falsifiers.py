from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.run.stopping import OPERATORS
from studies.claims.falsifiers import EXIT_CODES, Outcome, evaluate, overall, untested
from studies.definition.falsifier import Falsifier

BEFORE = 100
VALUES = st.floats(-1, 1) | st.just(math.nan)
SERIES = st.lists(st.tuples(st.integers(0, 150), VALUES), max_size=40)


def falsifier(aggregation: Any = "any", op: Any = ">", threshold: float = 0.25) -> Falsifier:
    metric = "objective/kl_per_token"
    return Falsifier(
        name="drift",
        claim="stays",
        metric=metric,
        op=op,
        threshold=threshold,
        before_step=BEFORE,
        aggregation=aggregation,
    )


AGGREGATIONS = st.sampled_from(["any", "mean", {"consecutive": 2}, {"consecutive": 3}])


@given(SERIES, AGGREGATIONS, st.integers(0, 150), st.randoms(use_true_random=False))
def test_order_does_not_matter(series: list[tuple[int, float]], aggregation: Any, steps: int, random: Any) -> None:
    unique = list(dict(series).items())
    shuffled = unique[:]
    random.shuffle(shuffled)
    assert evaluate(falsifier(aggregation), unique, steps) == evaluate(falsifier(aggregation), shuffled, steps)


@given(SERIES, AGGREGATIONS, st.integers(0, 150))
def test_nan_counts_as_not_recorded(series: list[tuple[int, float]], aggregation: Any, steps: int) -> None:
    clean = [(step, value) for step, value in series if not math.isnan(value)]
    assert evaluate(falsifier(aggregation), series, steps) == evaluate(falsifier(aggregation), clean, steps)


@given(SERIES, AGGREGATIONS, st.integers(0, 150), st.integers(0, 40))
def test_what_a_resume_writes_again_changes_nothing(
    series: list[tuple[int, float]], aggregation: Any, steps: int, back: int
) -> None:
    """A resumed trial repeats its last records, step by step with the same values."""
    unique = list(dict(series).items())
    assert evaluate(falsifier(aggregation), [*unique, *unique[back:]], steps) == evaluate(
        falsifier(aggregation), unique, steps
    )


@given(SERIES, AGGREGATIONS, st.integers(0, 150), st.data())
def test_a_gap_never_saves_a_claim_from_evidence_that_is_there(
    series: list[tuple[int, float]], aggregation: Any, steps: int, data: st.DataObject
) -> None:
    """Without any of the records that do not refute it, a fallen claim is fallen, at the same step at the latest."""
    unique = list(dict(series).items())
    whole = evaluate(falsifier(aggregation), unique, steps)
    if not whole.evidence:
        return
    kept = [one for one in unique if one in whole.evidence or data.draw(st.booleans())]
    gappy = evaluate(falsifier(aggregation), kept, steps)
    assert gappy.outcome == "FALSIFIED"
    assert gappy.step is not None
    assert whole.step is not None
    assert gappy.step <= whole.step


@given(SERIES, AGGREGATIONS, st.sampled_from([">", ">=", "<", "<="]), st.integers(0, 150))
def test_the_evidence_proves_the_verdict(
    series: list[tuple[int, float]], aggregation: Any, op: str, steps: int
) -> None:
    one = falsifier(aggregation, op=op)
    verdict = evaluate(one, series, steps, arm="a", seed=3, run="k")
    records = {step: value for step, value in series if not math.isnan(value) and step < BEFORE}
    breaks = {">": lambda x: x > 0.25, ">=": lambda x: x >= 0.25, "<": lambda x: x < 0.25, "<=": lambda x: x <= 0.25}[
        op
    ]
    assert (verdict.arm, verdict.seed, verdict.run) == ("a", 3, "k")
    assert verdict.broken == sum(map(breaks, records.values()))
    assert verdict.last_step == max(records, default=None)
    assert all(records[step] == value and breaks(value) for step, value in verdict.evidence)
    if aggregation == "mean" or verdict.outcome != "FALSIFIED":
        assert verdict.evidence == ()
    else:
        steps_in_order = sorted(records)
        first = steps_in_order.index(verdict.evidence[0][0])
        assert [step for step, _ in verdict.evidence] == steps_in_order[first : first + one.consecutive]
        assert verdict.evidence[-1] == (verdict.step, verdict.value)
    assert json.loads(json.dumps(asdict(verdict), allow_nan=False))


@given(SERIES, AGGREGATIONS)
def test_a_longer_run_never_takes_a_refutation_by_records_back(
    series: list[tuple[int, float]], aggregation: Any
) -> None:
    unique = sorted(dict(series).items())
    for cut in range(len(unique)):
        if evaluate(falsifier(aggregation), unique[:cut], 0).outcome == "FALSIFIED":
            assert evaluate(falsifier(aggregation), unique, 0).outcome == "FALSIFIED"


@given(SERIES, st.integers(0, 99), st.floats(-1, 1), AGGREGATIONS)
def test_the_last_of_two_values_at_a_step_counts(
    series: list[tuple[int, float]], step: int, value: float, aggregation: Any
) -> None:
    others = [(at, one) for at, one in series if at != step]
    expected = evaluate(falsifier(aggregation), [*others, (step, value)], BEFORE)
    assert evaluate(falsifier(aggregation), [(step, 0.9), *others, (step, value)], BEFORE) == expected


@given(SERIES, AGGREGATIONS, st.integers(0, 150))
def test_records_at_or_after_the_step_never_count(
    series: list[tuple[int, float]], aggregation: Any, steps: int
) -> None:
    before = [(step, value) for step, value in series if step < BEFORE]
    assert evaluate(falsifier(aggregation), series, steps) == evaluate(falsifier(aggregation), before, steps)


@given(SERIES, st.sampled_from([">", ">=", "<", "<="]), st.integers(0, 150))
def test_any_agrees_with_its_definition(series: list[tuple[int, float]], op: str, steps: int) -> None:
    records = {step: value for step, value in series if not math.isnan(value)}
    breaks = {">": lambda x: x > 0.25, ">=": lambda x: x >= 0.25, "<": lambda x: x < 0.25, "<=": lambda x: x <= 0.25}[
        op
    ]
    counted = {step: value for step, value in records.items() if step < BEFORE}
    fallen = [step for step, value in counted.items() if breaks(value)]
    verdict = evaluate(falsifier(op=op), series, steps)
    expected = "FALSIFIED" if fallen else "SURVIVED" if counted and steps >= BEFORE else "NOT TESTED"
    assert verdict.outcome == expected
    assert verdict.n == len(counted)
    if fallen:
        assert (verdict.step, verdict.value) == (min(fallen), counted[min(fallen)])


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 5), st.integers(1, 7))
def test_consecutive_counts_records_whatever_the_gaps(pattern: list[bool], needed: int, gap: int) -> None:
    series = [(index * gap, 0.9 if broken else 0.1) for index, broken in enumerate(pattern) if index * gap < BEFORE]
    runs = "".join("x" if value > 0.25 else "." for _, value in series)
    at = runs.find("x" * needed)
    verdict = evaluate(falsifier({"consecutive": needed}), series, BEFORE)
    assert (verdict.outcome == "FALSIFIED") == (at >= 0)
    if at >= 0:
        assert verdict.step == series[at + needed - 1][0]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_mean_needs_the_whole_run(values: list[float]) -> None:
    series = list(enumerate(values))
    mean = math.fsum(values) / len(values)
    verdict = evaluate(falsifier("mean"), series, BEFORE)
    assert verdict.outcome == ("FALSIFIED" if mean > 0.25 else "SURVIVED")
    assert verdict.value == pytest.approx(mean)
    assert evaluate(falsifier("mean"), series, BEFORE - 1).outcome == "NOT TESTED"


@pytest.mark.parametrize(
    ("series", "steps", "outcome"),
    [
        ([], 2000, "NOT TESTED"),
        ([(100, 0.9)], 2000, "NOT TESTED"),
        ([(0, 0.0)], 99, "NOT TESTED"),
        ([(0, 0.0)], 100, "SURVIVED"),
        ([(0, 0.25)], 100, "SURVIVED"),
        ([(16, 0.26)], 17, "FALSIFIED"),
        ([(0, math.inf)], 0, "FALSIFIED"),
    ],
)
def test_edges(series: list[tuple[int, float]], steps: int, outcome: str) -> None:
    assert evaluate(falsifier(), series, steps).outcome == outcome


@pytest.mark.parametrize(
    ("values", "reason", "value"),
    [
        ([0.1, 0.3, 0.4, 0.2, 0.9], "5 records to step 4; longest run beyond 0.25: 2 of 3 records", 0.2),
        ([0.1, 0.2, 0.15, 0.05], "4 records to step 3; longest run beyond 0.25: 0 of 3 records", 0.1),
    ],
)
def test_what_survives_by_a_row_of_records_tells_the_longest_run(
    values: list[float], reason: str, value: float | None
) -> None:
    verdict = evaluate(falsifier({"consecutive": 3}), list(enumerate(values)), BEFORE)
    assert (verdict.outcome, verdict.reason, verdict.value) == ("SURVIVED", reason, value)


@given(SERIES, AGGREGATIONS, st.sampled_from([">", ">=", "<", "<="]))
def test_the_value_of_a_claim_that_survived_is_not_beyond_its_threshold(
    series: list[tuple[int, float]], aggregation: Any, op: Any
) -> None:
    verdict = evaluate(falsifier(aggregation, op), series, BEFORE)
    if verdict.outcome == "SURVIVED" and verdict.value is not None:
        moved = evaluate(falsifier(aggregation, op, threshold=verdict.value), series, BEFORE)
        assert OPERATORS[op](verdict.value, 0.25) is False
        assert (moved.outcome == "FALSIFIED") == op.endswith("="), "there the claim would just have fallen"


@pytest.mark.parametrize(
    ("aggregation", "op", "reason"),
    [
        ("any", ">", "3 records to step 2; largest value: 0.2"),
        ("mean", ">", "3 records to step 2; mean: 0.1"),
        ("any", "<", "3 records to step 2; smallest value: 0.3"),
    ],
)
def test_what_survives_tells_its_margin(aggregation: Any, op: Any, reason: str) -> None:
    values = [0.0, 0.1, 0.2] if op == ">" else [0.3, 0.4, 0.5]
    assert evaluate(falsifier(aggregation, op), list(enumerate(values)), BEFORE).reason == reason


def test_infinities_of_both_signs_have_no_mean() -> None:
    assert evaluate(falsifier("mean"), [(0, math.inf), (1, -math.inf)], BEFORE).outcome == "NOT TESTED"


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
    from dataclasses import replace

    blank = untested(falsifier(), "a", 0, "x")
    verdict = overall([replace(blank, outcome=outcome) for outcome in outcomes])
    assert (verdict, EXIT_CODES[verdict]) == (expected, code)


def test_arm_patterns_are_those_of_a_shell() -> None:
    one = falsifier().model_copy(update={"arms": ("beta_*", "fixed")})
    assert [one.applies_to(arm, "base") for arm in ("beta_0", "fixed", "Beta_0", "fixed_2")] == [
        True,
        True,
        False,
        False,
    ]


def test_fewer_records_than_would_refute_a_claim_do_not_test_it() -> None:
    verdict = evaluate(falsifier({"consecutive": 4}), [(step, 9.0) for step in range(3)], BEFORE)
    assert verdict.outcome == "NOT TESTED"
    assert verdict.reason == f"3 records before step {BEFORE}, fewer than the 4 in a row that would refute the claim"
    assert evaluate(falsifier({"consecutive": 4}), [(step, 0.0) for step in range(4)], BEFORE).outcome == "SURVIVED"
