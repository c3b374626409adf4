"""The sentences on equal drift: true word for word, above all where nothing can be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reports.findings.matched_kl import MatchedKL, Reason
from reports.statistics.two_level import Estimate, Outcome
from reports.text.drift import at_equal_drift, not_compared

KL = Estimate(6.1, 5.9, 6.3, 5, 512, "hierarchical")
DIFFERENCE = Estimate(-0.08, -0.27, 0.12, 5, 512, "hierarchical")
ROW = MatchedKL(
    "eval/gold", "curriculum", "fixed beta", KL, ("beta_0.2", "beta_0.05", "beta_0.01"), (1.4, 6.7), "",
    between=("beta_0.05", "beta_0.01"), difference=DIFFERENCE, outcome="undecided",
)  # fmt: skip


def row(arm: str, outcome: Outcome = "undecided", reason: Reason = "") -> MatchedKL:
    return replace(ROW, arm=arm, outcome=outcome, reason=reason)


def test_the_sentence_says_which_comparison_it_is() -> None:
    assert at_equal_drift([ROW]) == (
        "At equal drift, where an arm and fixed beta both end at the same KL, on gold reward: curriculum (−0.08 [−0.27,"
        " +0.12] at 6.10 nats per sequence, interpolated between beta_0.05 and beta_0.01; 5 seeds) is not"
        " distinguishable from fixed beta."
    )


def test_each_outcome_stands_once_and_other_metrics_are_left_to_the_table() -> None:
    above = replace(row("a", "better"), difference=replace(DIFFERENCE, value=0.2))
    rows = [above, row("b", "worse"), row("c"), row("d"), replace(row("a", "worse"), metric="eval/proxy")]
    said = at_equal_drift(rows)
    assert said.count("a (") == 1
    assert "seeds) lies above fixed beta; b (" in said
    assert "seeds) lies below it; c (" in said
    assert said.endswith("are not distinguishable from it.")


def test_of_many_arms_the_two_that_differ_most_are_named() -> None:
    rows = [
        replace(row(f"arm-{i}", "better"), difference=replace(DIFFERENCE, value=i / 10, low=i / 20, high=i / 5))
        for i in range(1, 8)
    ]
    said = at_equal_drift(rows)
    assert "7 arms, from arm-1 (+0.10 " in said
    assert "to arm-7 (+0.7 " in said
    assert "arm-3" not in said


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("beyond", "ends at 6.10 nats per sequence, beyond the arms of fixed beta, 1.40 to 6.70 nats"),
        ("below", "ends at 6.10 nats per sequence, below the arms of fixed beta, 1.40 to 6.70 nats"),
        ("few arms", "no arms of fixed beta end on both sides of 6.10 nats per sequence"),
        ("no shared seed", "shares no evaluated seed with the arms of fixed beta that end next to it"),
    ],
)
def test_why_an_arm_is_not_compared(reason: Reason, words: str) -> None:
    left = row("far", reason=reason)
    assert not_compared(left) == words
    said = at_equal_drift([ROW, left, row("a", reason="beyond")])
    assert f" Not compared at equal drift: far ({words}) and a (" in said
    assert not_compared(ROW) == ""


def test_a_method_of_one_arm_is_said() -> None:
    alone = replace(row("tight", reason="few arms"), method="epsilon_0.2", arms=("epsilon_0.2",), range=(3.9, 3.9))
    assert at_equal_drift([alone, replace(alone, arm="loose")]) == (
        "Not compared at equal drift: tight and loose, since epsilon_0.2 is the only arm of its method, and a"
        " comparison needs arms of that method at a lower and at a higher KL."
    )


def test_without_another_method_nothing_is_said() -> None:
    assert at_equal_drift([]) == ""


def test_of_a_minimised_metric_the_better_arm_lies_below() -> None:
    effect = replace(DIFFERENCE, low=-0.12, high=-0.04)
    assert "tight (−0.08" in (said := at_equal_drift([replace(ROW, arm="tight", difference=effect, outcome="better")]))
    assert " lies below fixed beta." in said
