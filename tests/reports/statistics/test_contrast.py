"""Contrasts against numbers worked out by hand, and verdicts on an expectation by an interval."""

from __future__ import annotations

import numpy as np
import pytest

from reports.statistics import two_level
from reports.statistics.contrast import Expected, Judged, against, combine, conjunction, decide, estimate
from reports.statistics.two_level import Estimate


def test_a_contrast_is_the_weighted_sum_of_its_tables() -> None:
    noise = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 5.0]])  # common to all arms
    weights, given = [1, -1, -1, 1], [(noise + mean, None) for mean in (7.0, 4.0, 2.5, 1.0)]
    np.testing.assert_allclose(combine(weights, given), (7.0 - 4.0) - (2.5 - 1.0))
    assert estimate(weights, given).value == pytest.approx(1.5)
    rng = np.random.default_rng(5)
    arm, base = rng.normal(0.4, 1, (5, 40)), rng.normal(0, 1, (5, 40))
    assert estimate([1, -1], [(arm, None), (base, None)]) == two_level.difference(arm, base)
    nats, tokens = np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([[2.0, 2.0], [4.0, 1.0]])
    np.testing.assert_allclose(combine([1, -1], [(nats, tokens), (nats / 2, tokens)]).mean(1), [0.5, 0.4])
    lone = estimate([1, -1], [(np.array([[3.0], [4.0], [8.0]]), None), (np.ones((3, 1)), None)])
    assert lone == two_level.over_seeds([2.0, 3.0, 7.0])
    with pytest.raises(ValueError, match="all of one shape"):
        combine([1, -1], [(np.zeros((2, 3)), None), (np.zeros((2, 2)), None)])


def at(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high, 5, 10, "hierarchical", (high - low) / 4, 8.0)


@pytest.mark.parametrize(
    ("low", "high", "expect", "margin", "outcome"),
    [
        (0.1, 0.3, "higher", 0.0, "SUPPORTED"),
        (-0.1, 0.3, "higher", 0.0, "UNDECIDED"),
        (-0.3, -0.1, "higher", 0.0, "REFUTED"),
        (0.1, 0.3, "higher", 0.2, "UNDECIDED"),
        (0.1, 0.3, "higher", 0.4, "REFUTED"),
        (-0.3, -0.1, "lower", 0.0, "SUPPORTED"),
        (-0.3, -0.1, "lower", 0.4, "REFUTED"),
        (-0.1, 0.1, "equal", 0.2, "SUPPORTED"),
        (-0.1, 0.3, "equal", 0.2, "UNDECIDED"),
        (-0.3, -0.21, "equal", 0.2, "REFUTED"),
    ],
)
def test_what_an_interval_says(low: float, high: float, expect: Expected, margin: float, outcome: Judged) -> None:
    assert decide([against(at(low, high), expect, margin)])[0][0] == outcome


def test_p_is_that_of_the_bound() -> None:
    effect = at(0.1, 0.3)
    p = two_level.two_level_p(effect)
    assert (against(effect, "higher"), against(effect, "lower")) == ((True, p), (False, p))
    assert against(at(0.0, 0.2), "higher", 0.1)[1] == pytest.approx(1.0)
    assert against(at(-0.1, 0.1), "equal", 0.2) == (True, pytest.approx(p / 2))
    assert against(at(0.2, 0.4), "equal", 0.1) == (False, pytest.approx(p))
    # The 95 % interval of this effect leaves the margin, its 90 % interval does not.
    for margin, judged in ((0.095, "SUPPORTED"), (0.09, "UNDECIDED")):
        assert decide([against(at(-0.1, 0.1), "equal", margin)])[0][0] == judged


def test_all_steps_support_and_any_refutes() -> None:
    assert conjunction([(True, 0.01), (True, 0.04)]) == (True, 0.04)
    assert conjunction([(True, 0.001), (False, 0.02), (False, 0.9)]) == (False, pytest.approx(0.06))
    assert conjunction([(False, 0.9), (True, 0.001)]) == (False, 1.0)
    bare = against(Estimate(1.0, None, None, 1, 0, "none"), "higher")
    assert (bare, conjunction([bare, (True, 0.01)])) == ((True, None), (False, None))


def test_the_family_is_all_hypotheses_tested_or_not() -> None:
    verdicts = decide([(True, 0.01), (False, 0.02), (True, None), (True, 0.03)])
    assert verdicts == [
        ("SUPPORTED", pytest.approx(0.04)), ("UNDECIDED", pytest.approx(0.06)), ("UNDECIDED", None),
        ("UNDECIDED", pytest.approx(0.06)),
    ]  # fmt: skip
    assert [word for word, _ in decide([(True, 0.001), (False, 0.02), (True, 0.5)])] == [
        "SUPPORTED", "REFUTED", "UNDECIDED",
    ]  # fmt: skip
