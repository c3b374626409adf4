from __future__ import annotations

import json
import math
import operator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.intervals import grouped, student
from studies.claims.evaluations import Evaluation, Outcomes, difference, interval, judge
from studies.claims.falsifiers import EXIT_CODES, Outcome, Series, Verdict, compare, evaluate, overall, untested
from studies.definition.falsifier import Falsifier

BEFORE = 100
OPS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
SERIES = st.lists(st.tuples(st.integers(0, 150), st.floats(-1, 1) | st.just(math.nan)), max_size=40)
AGGREGATIONS = st.sampled_from(["any", "mean", {"consecutive": 2}, {"consecutive": 3}])
Records = list[tuple[int, float]]
SHARED = st.dictionaries(st.integers(0, 150), st.floats(-1, 1) | st.just(math.nan), max_size=30)
RNG = np.random.default_rng(5)


def falsifier(aggregation: Any = "any", op: Any = ">", threshold: float = 0.25, **keys: Any) -> Falsifier:
    return Falsifier(
        name="drift", claim="stays", metric="objective/kl_per_token", op=op, threshold=threshold, before_step=BEFORE,
        aggregation=aggregation, **keys,
    )  # fmt: skip


def further(op: Any = ">", threshold: float = 0.1, aggregation: Any = "any") -> Falsifier:
    return falsifier(aggregation, op, threshold, relative_to="baseline")


@given(SERIES, AGGREGATIONS, st.sampled_from([*OPS]), st.integers(90, 110), st.randoms(use_true_random=False))
def test_a_verdict_follows_its_definition(series: Records, aggregation: Any, op: str, steps: int, random: Any) -> None:
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
def test_edges(series: Records, steps: int, outcome: str) -> None:
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


def judged(
    one: Falsifier, own: dict[int, float], base: dict[int, float], steps: int = BEFORE, last: int = BEFORE
) -> Verdict:
    return compare(one, Series([*own.items()], steps), Series([*base.items()], last))


def test_the_baseline_is_subtracted_at_the_same_step() -> None:
    own, base = {0: 0.0, 8: 0.9, 16: 0.30, 32: 0.45, 48: 0.9}, {0: 0.0, 16: 0.25, 32: 0.30, 64: 0.0}
    found = judged(further(), own, base)
    assert (found.outcome, found.step, found.value) == ("FALSIFIED", 32, pytest.approx(0.15))
    assert (found.arm_value, found.baseline_value, found.n) == (0.45, 0.30, 3)
    assert found.reason.startswith("difference 0.15 at step 32; 0.45 against the baseline's 0.3; left out: 1 record ")
    assert judged(further("<", -0.1), own, base).outcome == "SURVIVED", "the arm lies above the baseline, not below"
    assert judged(further("<", -0.1), base, own).outcome == "FALSIFIED"


def test_a_claim_does_not_survive_on_fewer_than_half_of_the_records() -> None:
    own = dict.fromkeys((0, 16, 32, 48, 64), 0.2)
    assert judged(further(), own, dict.fromkeys((0, 16, 32), 0.2)).outcome == "SURVIVED"
    found = judged(further(), own, {0: 0.2, 32: 0.2})
    assert found.outcome == "NOT TESTED"
    assert found.reason.startswith("only 2 of 5 records before step 100 could be compared")
    assert judged(further(), dict.fromkeys(own, 0.9), {32: 0.2}).outcome == "FALSIFIED", "one record is enough for that"


@pytest.mark.parametrize(("level", "outcome"), [(0.9, "FALSIFIED"), (0.2, "SURVIVED")])
@pytest.mark.parametrize(("count", "enough"), [(50, True), (49, False)])
def test_a_mean_is_decided_by_half_of_the_records_of_either_trial(
    level: float, outcome: str, count: int, enough: bool
) -> None:
    mean, own, few = further(aggregation="mean"), dict.fromkeys(range(100), level), dict.fromkeys(range(count), 0.2)
    expected = outcome if enough else "NOT TESTED"
    found = judged(mean, own, few)
    assert (found.outcome, found.n, found.value) == (expected, count, pytest.approx(level - 0.2))
    assert judged(mean, few, dict.fromkeys(own, 0.4 - level)).outcome == expected, "of the baseline's"


@pytest.mark.parametrize(
    ("own", "base", "counts"), [({0: 1.0, 16: 1.0}, {8: 1.0, 24: 1.0}, (2, 2)), ({0: math.inf}, {0: math.inf}, (1, 1))]
)
def test_without_a_shared_record_nothing_is_tested(
    own: dict[int, float], base: dict[int, float], counts: tuple[int, int]
) -> None:
    found = judged(further(), own, base)
    assert (found.outcome, found.value, found.n) == ("NOT TESTED", None, 0)
    assert f"{counts[0]} records of this trial before step 100, {counts[1]} of the baseline" in found.reason


def test_both_runs_have_to_come_to_the_step() -> None:
    flat = {0: 0.0, 16: 0.1}
    assert judged(further(), flat, flat, last=40).reason.startswith(
        "the baseline's run came to 40 of 100 gradient steps"
    )
    assert judged(further(), flat, flat, steps=40).reason.startswith("the run came to 40 of 100 gradient steps")
    assert judged(further(), {16: 0.9}, flat, 17, 17).outcome == "FALSIFIED", "however early the runs ended"
    assert judged(further(aggregation="mean"), {16: 0.9}, flat, last=99).outcome == "NOT TESTED"


@given(SHARED, SHARED, AGGREGATIONS, st.sampled_from([*OPS]))
def test_a_difference_has_the_verdict_on_the_series_of_differences(
    own: dict[int, float], base: dict[int, float], aggregation: Any, op: str
) -> None:
    one = further(op, 0.25, aggregation)
    values = [(step, own[step] - base[step]) for step in own if step in base and not math.isnan(own[step] - base[step])]
    found, plain = judged(one, own, base), evaluate(one, values, BEFORE)
    assert (found.step, found.value, found.n, found.evidence) == (plain.step, plain.value, plain.n, plain.evidence)
    assert found.outcome == plain.outcome or found.reason.startswith(f"only {found.n} of ")
    assert "NaN" not in json.dumps(asdict(found))


def wins(metric: str = "eval/win_rate", op: Any = "<", threshold: float = 0.7, **keys: Any) -> Falsifier:
    return Falsifier(name="wins", claim="it wins", metric=metric, op=op, threshold=threshold, **keys)


def outcomes(top: Any, bottom: Any = None, prompts: Any = None) -> Outcomes:
    values = np.asarray(top, dtype=np.float64)
    under = np.ones_like(values) if bottom is None else np.asarray(bottom, dtype=np.float64)
    return Outcomes(np.arange(len(values)) if prompts is None else np.asarray(prompts), values, under)


def test_the_estimate_is_compared_and_none_of_it_has_a_step() -> None:
    found = judge(wins(), Evaluation(0.65))
    assert (found.outcome, found.value, found.step, found.n, found.broken) == ("FALSIFIED", 0.65, None, 1, 1)
    assert found.reason == "0.65"
    assert judge(wins(), Evaluation(0.7)).outcome == "SURVIVED"
    early = judge(wins(), Evaluation(0.8, ended="a cap ended the trial after 40 gradient steps"))
    assert early.reason == "0.8; a cap ended the trial after 40 gradient steps"


def test_the_ends_of_the_interval_decide_apart() -> None:
    won = outcomes([1.0] * 72 + [0.0] * 28)
    _, low, high = grouped(won.top, np.ones(100, dtype=np.int64))
    own = Evaluation(0.72, won)
    found = judge(wins(bound="low"), own)
    assert (found.outcome, found.value, found.interval) == ("FALSIFIED", low, (low, high))
    assert found.reason == f"0.72, 95 % interval {low:.4g} to {high:.4g} over 100 prompts"
    assert judge(wins(), own).outcome == judge(wins(bound="high"), own).outcome == "SURVIVED"
    assert judge(wins(threshold=high + 0.001, bound="high"), own).value == high
    stated = judge(wins(bound="low"), Evaluation(0.72, won, stated=(0.71, 0.73)))
    assert (stated.outcome, stated.interval) == ("SURVIVED", (0.71, 0.73)), "the interval of the record"


def test_intervals_of_rates_means_and_ratios() -> None:
    won = outcomes(RNG.random(60))
    assert interval("eval/win_rate", won) == grouped(won.top, np.ones(60, dtype=np.int64))
    assert interval("eval/gold", won) == pytest.approx(student(won.top))
    nats, tokens = RNG.gamma(2, 1, 60), RNG.integers(5, 40, 60)
    value, low, high = interval("eval/kl_per_token", outcomes(nats, tokens))
    ratio = nats.sum() / tokens.sum()
    half = student((nats - ratio * tokens) / tokens.mean())[2]
    assert (value, low, high) == pytest.approx((ratio, ratio - half, ratio + half))


def test_the_interval_of_preference_accuracy_counts_the_pairs_that_are_decided() -> None:
    agree, decided = outcomes([3, 0, 1.5, 4, 0], [4, 0, 2, 4, 1]), np.array([4, 2, 4, 1])
    assert interval("eval/preference_accuracy", agree) == grouped([3, 1.5, 4, 0], decided)
    assert interval("eval/preference_accuracy", agree)[0] == pytest.approx(8.5 / 11)


def test_differences_are_paired_by_prompt() -> None:
    hard = RNG.normal(0, 5, 80)
    own, base = outcomes(hard + 1 + RNG.normal(0, 0.1, 80)), outcomes(hard)
    (value, low, high), prompts = difference(own, base)
    assert prompts == 80
    assert value == pytest.approx((own.top - base.top).mean())
    assert high - low < 0.1, "what is hard for both cancels"
    order = RNG.permutation(80)
    shuffled = outcomes(base.top[order], prompts=order)
    assert difference(own, shuffled)[0] == pytest.approx((value, low, high)), "rows are matched by their prompt"
    part = outcomes(base.top[:30], prompts=np.arange(30))
    assert difference(own, part)[1] == 30
    (swapped, _, _), _ = difference(base, own)
    assert swapped == pytest.approx(-value)


def test_a_claim_relative_to_the_baseline() -> None:
    relative = {"relative_to": "baseline"}
    own, base = Evaluation(0.6), Evaluation(0.5)
    found = judge(wins(threshold=0.2, **relative), own, base)
    assert (found.outcome, found.value) == ("FALSIFIED", pytest.approx(0.1))
    assert found.reason == "difference 0.1; 0.6 against the baseline's 0.5"
    assert (found.arm_value, found.baseline_value) == (0.6, 0.5)
    assert judge(wins(threshold=0.0, **relative), base, own).outcome == "FALSIFIED", "worse than the baseline"
    early = judge(wins(**relative), own, Evaluation(0.5, ended="the trial diverged after 9 gradient steps"))
    assert early.reason.endswith("; baseline: the trial diverged after 9 gradient steps")


def test_the_bound_of_a_difference() -> None:
    won, others = outcomes(RNG.random(50)), outcomes(RNG.random(50))
    own, base = (Evaluation(float(one.top.mean()), one) for one in (won, others))
    (value, low, high), _ = difference(won, others)
    for bound, end in (("low", low), ("high", high)):
        found = judge(wins(threshold=end, op="<=", bound=bound, relative_to="baseline"), own, base)
        assert (found.outcome, found.value, found.interval) == ("FALSIFIED", end, (low, high))
    assert f"difference {value:.4g}, 95 % interval {low:.4g} to {high:.4g} over 50 prompts" in found.reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("few", [0, 1])
def test_an_interval_needs_two_prompts(few: int) -> None:
    scant, many = (Evaluation(0.9, outcomes([0.9] * n)) for n in (few, 30))
    for own, base in ((scant, None), (scant, many), (many, scant)):
        found = judge(wins(bound="low", relative_to="baseline" if base else None), own, base)
        shared = " shared with the baseline" if base else ""
        assert (found.outcome, found.interval) == ("NOT TESTED", None)
        assert found.reason == f"no interval: {few} evaluated prompts{shared}, and 2 are needed"
