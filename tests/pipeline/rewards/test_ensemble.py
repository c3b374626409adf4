from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipeline.rewards.base import Calibrated, Completions, calibration
from pipeline.rewards.composite import Combination, Ensemble, Proxy, combined, disagreement

SCORES = torch.tensor([[1.0, 0.0], [2.0, 4.0], [6.0, -4.0], [3.0, 0.0]])
"""Four members, two completions."""


class Fixed:
    """A member that says what it was made with, whatever it is asked."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.networks = [object()]

    def __call__(self, completions: Completions) -> Tensor:
        return self.scores


def nothing() -> Completions:
    return Completions(None, [], [])  # type: ignore[arg-type]


def ensemble(rule: Combination, scores: Tensor = SCORES) -> Ensemble:
    return Ensemble([Calibrated(Fixed(row), 0.0, 1.0) for row in scores], rule)


@pytest.mark.parametrize(
    ("rule", "by_hand"),
    [
        (Combination("mean", 0.5), [3.0, 0.0]),
        (Combination("minimum", 0.5), [1.0, -4.0]),
        # variances over n: (4 + 1 + 9 + 0) / 4 = 3.5 and (0 + 16 + 16 + 0) / 4 = 8
        (Combination("uncertainty", 0.5), [1.25, -4.0]),
        (Combination("uncertainty", 0.1), [2.65, -0.8]),
    ],
)
def test_every_rule_by_hand(rule: Combination, by_hand: list[float]) -> None:
    assert combined(SCORES, rule).tolist() == pytest.approx(by_hand)


def test_disagreement_by_hand_is_0_where_members_agree() -> None:
    assert disagreement(SCORES).tolist() == pytest.approx([3.5**0.5, 8**0.5])
    assert disagreement(torch.full((4, 3), 7.0)).tolist() == [0.0] * 3


def test_members_are_calibrated_before_they_are_combined() -> None:
    """One member on a hundred times the scale of the other would otherwise decide alone."""
    raw = [torch.tensor([100.0, 300.0, 200.0]), torch.tensor([3.0, 1.0, 5.0])]
    members = [Calibrated(Fixed(row), *calibration(row)) for row in raw]
    found = Ensemble(members, Combination("mean", 0.5))(nothing())
    unit = 1.5**0.5  # of -1, 1, 0 and 0, -1, 1 divided by the standard deviation
    assert found.tolist() == pytest.approx([-unit / 2, 0.0, unit / 2], abs=1e-6)
    scaled = [Calibrated(Fixed(row * 7 - 2), *calibration(row * 7 - 2)) for row in raw]
    assert Ensemble(scaled, Combination("mean", 0.5))(nothing()).tolist() == pytest.approx(found.tolist(), abs=1e-6)


def test_the_proxy_says_how_far_members_are_apart_beside_its_score() -> None:
    whole = ensemble(Combination("minimum", 0.5))
    alone = Proxy({"reward": Calibrated(whole, 1.0, 2.0)}, {"reward": 1.0})
    total, said = alone.explained(nothing())
    assert total.tolist() == [0.0, -2.5]
    assert list(said) == ["disagreement"]
    assert said["disagreement"].tolist() == pytest.approx([3.5**0.5, 8**0.5]), "in units of a member, not of the sum"
    parts = {
        "a": Calibrated(whole, 1.0, 2.0),
        "b": Calibrated(whole, 0.0, 1.0),
        "c": Calibrated(Fixed(SCORES[0]), 0, 1),
    }
    total, said = Proxy(parts, {"a": 3.0, "b": -4.0, "c": 1.0}).explained(nothing())
    assert total.tolist() == pytest.approx([0.0 - 4.0 + 1.0, -7.5 + 16.0 + 0.0])
    assert list(said) == ["a", "b", "c", "disagreement"]
    assert said["disagreement"].tolist() == pytest.approx([5 * 3.5**0.5, 5 * 8**0.5])
