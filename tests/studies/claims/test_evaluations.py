"""Claims on the evaluation: the estimate or an end of the interval over prompts, alone or against the baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.intervals import grouped, student
from studies.claims.evaluations import Evaluation, Outcomes, difference, interval, judge
from studies.definition.falsifier import Falsifier

RNG = np.random.default_rng(5)


def claim(metric: str = "eval/win_rate", op: Any = "<", threshold: float = 0.7, **keys: Any) -> Falsifier:
    return Falsifier(name="wins", claim="it wins", metric=metric, op=op, threshold=threshold, **keys)


def outcomes(top: Any, bottom: Any = None, prompts: Any = None) -> Outcomes:
    values = np.asarray(top, dtype=np.float64)
    under = np.ones_like(values) if bottom is None else np.asarray(bottom, dtype=np.float64)
    return Outcomes(np.arange(len(values)) if prompts is None else np.asarray(prompts), values, under)


def test_the_estimate_is_compared_and_none_of_it_has_a_step() -> None:
    found = judge(claim(), Evaluation(0.65))
    assert (found.outcome, found.value, found.step, found.n, found.broken) == ("FALSIFIED", 0.65, None, 1, 1)
    assert found.reason == "0.65"
    assert judge(claim(), Evaluation(0.7)).outcome == "SURVIVED"
    early = judge(claim(), Evaluation(0.8, ended="a cap ended the trial after 40 gradient steps"))
    assert early.reason == "0.8; a cap ended the trial after 40 gradient steps"


def test_the_ends_of_the_interval_decide_apart() -> None:
    wins = outcomes([1.0] * 72 + [0.0] * 28)
    _, low, high = grouped(wins.top, np.ones(100, dtype=np.int64))
    own = Evaluation(0.72, wins)
    found = judge(claim(bound="low"), own)
    assert (found.outcome, found.value, found.interval) == ("FALSIFIED", low, (low, high))
    assert found.reason == f"0.72, 95 % interval {low:.4g} to {high:.4g} over 100 prompts"
    assert judge(claim(), own).outcome == judge(claim(bound="high"), own).outcome == "SURVIVED"
    assert judge(claim(threshold=high + 0.001, bound="high"), own).value == high
    stated = judge(claim(bound="low"), Evaluation(0.72, wins, stated=(0.71, 0.73)))
    assert (stated.outcome, stated.interval) == ("SURVIVED", (0.71, 0.73)), "the interval of the record"


def test_intervals_of_rates_means_and_ratios() -> None:
    wins = outcomes(RNG.random(60))
    assert interval("eval/win_rate", wins) == grouped(wins.top, np.ones(60, dtype=np.int64))
    assert interval("eval/gold", wins) == pytest.approx(student(wins.top))
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
    found = judge(claim(threshold=0.2, **relative), own, base)
    assert (found.outcome, found.value) == ("FALSIFIED", pytest.approx(0.1))
    assert found.reason == "difference 0.1; 0.6 against the baseline's 0.5"
    assert (found.arm_value, found.baseline_value) == (0.6, 0.5)
    assert judge(claim(threshold=0.0, **relative), base, own).outcome == "FALSIFIED", "worse than the baseline"
    ratio = judge(claim(threshold=1.1, relative="ratio", **relative), own, base)
    assert (ratio.outcome, ratio.value) == ("SURVIVED", pytest.approx(1.2))
    none = judge(claim("eval/gold", relative="ratio", **relative), Evaluation(1.0), Evaluation(-0.5))
    assert (none.outcome, none.value) == ("NOT TESTED", None)
    assert none.reason == "no ratio of eval/gold is defined: 1 against the baseline's -0.5"
    early = judge(claim(**relative), own, Evaluation(0.5, ended="the trial diverged after 9 gradient steps"))
    assert early.reason.endswith("; baseline: the trial diverged after 9 gradient steps")


def test_the_bound_of_a_difference() -> None:
    wins, others = outcomes(RNG.random(50)), outcomes(RNG.random(50))
    own, base = (Evaluation(float(one.top.mean()), one) for one in (wins, others))
    (value, low, high), _ = difference(wins, others)
    for bound, end in (("low", low), ("high", high)):
        found = judge(claim(threshold=end, op="<=", bound=bound, relative_to="baseline"), own, base)
        assert (found.outcome, found.value, found.interval) == ("FALSIFIED", end, (low, high))
    assert f"difference {value:.4g}, 95 % interval {low:.4g} to {high:.4g} over 50 prompts" in found.reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("few", [0, 1])
def test_an_interval_needs_two_prompts(few: int) -> None:
    scant, many = (Evaluation(0.9, outcomes([0.9] * n)) for n in (few, 30))
    for own, base in ((scant, None), (scant, many), (many, scant)):
        found = judge(claim(bound="low", relative_to="baseline" if base else None), own, base)
        shared = " shared with the baseline" if base else ""
        assert (found.outcome, found.interval) == ("NOT TESTED", None)
        assert found.reason == f"no interval: {few} evaluated prompts{shared}, and 2 are needed"
