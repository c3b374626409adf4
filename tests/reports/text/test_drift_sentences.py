"""The sentences on equal drift: true word for word, above all where nothing can be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reports.findings.matched_kl import Left, MatchedKL
from reports.statistics.two_level import Estimate, Outcome
from reports.text.drift import at_equal_drift, left_out, not_compared

KL = Estimate(6.1, 5.9, 6.3, 5, 512, "hierarchical")
DIFFERENCE = Estimate(-0.08, -0.27, 0.12, 5, 512, "hierarchical")
ROW = MatchedKL(
    "eval/gold", "curriculum", "fixed beta", KL, 5, ("beta_0.2", "beta_0.05", "beta_0.01"), (), "",
    between=("beta_0.05", "beta_0.01"), difference=DIFFERENCE, per_seed=dict.fromkeys(range(5), -0.08),
    outcome="undecided",
)  # fmt: skip
FAR = replace(ROW, arm="far", reason="few seeds", difference=None, per_seed={})


def row(arm: str, outcome: Outcome = "undecided") -> MatchedKL:
    return replace(ROW, arm=arm, outcome=outcome)


def test_the_sentence_says_which_comparison_it_is_and_how_many_seeds_were_compared() -> None:
    said = at_equal_drift([ROW])
    assert "curriculum (−0.08 [−0.27, +0.12] at 6.10 nats per sequence, interpolated between" in said
    assert "beta_0.05 and beta_0.01; 5 seeds) is not distinguishable from fixed beta." in said
    left = replace(ROW, seeds=8, left={5: "beyond", 6: "not evaluated", 7: "beyond"})
    assert (
        "beta_0.01; 5 of 8 seeds; 1 not evaluated and 2 ended beyond the arms of fixed beta) is not"
        in at_equal_drift([left])
    )
    assert left_out(left) == "1 of 8 seeds not evaluated and 2 of 8 seeds ended beyond the arms of fixed beta"


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
    ("why", "words"),
    [
        ("beyond", "3 of 5 seeds ended beyond the arms of fixed beta"),
        ("below", "3 of 5 seeds ended below the arms of fixed beta"),
        ("few arms", "for 3 of 5 seeds, fixed beta has too few arms"),
        ("far apart", "3 of 5 seeds ended between arms whose KLs differ by more than a factor of 2"),
    ],
)
def test_why_an_arm_is_not_compared(why: Left, words: str) -> None:
    left = replace(FAR, left=dict.fromkeys(range(3), why))
    assert not_compared(left) == words
    said = at_equal_drift([ROW, left, replace(left, arm="a")])
    assert f" Not compared at equal drift: far ({words}) and a (" in said
    assert not_compared(ROW) == ""


def test_a_method_of_one_arm_is_said() -> None:
    alone = replace(FAR, reason="few arms", method="epsilon_0.2", arms=("epsilon_0.2",))
    said = at_equal_drift([alone, replace(alone, arm="loose")])
    assert said == "Not compared at equal drift: far and loose, since epsilon_0.2 has fewer than two arms."
    fallen = not_compared(replace(alone, collapsed=("free",)))
    assert fallen == "epsilon_0.2 has fewer than two arms left (collapsed: free)"


def test_without_another_method_nothing_is_said() -> None:
    assert at_equal_drift([]) == ""


def test_of_a_minimised_metric_the_better_arm_lies_below() -> None:
    effect = replace(DIFFERENCE, low=-0.12, high=-0.04)
    assert "tight (−0.08" in (said := at_equal_drift([replace(ROW, arm="tight", difference=effect, outcome="better")]))
    assert " lies below fixed beta." in said
