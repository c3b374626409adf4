"""A reward against opponents: looked up by prompt, compared as the kind of reward asks, and its faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.policy import Episodes
from pipeline.rewards.base import Calibrated, Completions, as_scores, calibration
from pipeline.rewards.learned import compared
from pipeline.rewards.opponents import Against, less_mean
from pipeline.rewards.pairwise import mean_win, preference_logit

TABLE = {"one": torch.tensor([1.0, 3.0]), "two": torch.tensor([10.0, 30.0])}


class Length:
    networks = ("a network",)

    def __init__(self, score: Callable[[str], float] = len) -> None:
        self._score = score

    def __call__(self, completions: Completions) -> Tensor:
        return as_scores([self._score(text) for text in completions.texts])


def completions(*pairs: tuple[str, str]) -> Completions:
    n = len(pairs)
    ones = torch.ones(n, 1, dtype=torch.bool)
    episodes = Episodes(torch.zeros(n, 2, dtype=torch.long), ones, ones, ones.squeeze(1))
    return Completions(episodes, [prompt for prompt, _ in pairs], [text for _, text in pairs])


def test_a_score_less_the_mean_of_the_opponents_of_its_prompt() -> None:
    reward = Against(Length(), less_mean, TABLE)
    assert reward(completions(("two", "aaaa"), ("one", "aaaa"), ("two", ""), ("one", "a"))).tolist() == [
        -16,
        2,
        -20,
        -1,
    ]
    assert reward.networks == ("a network",)


def test_opponents_are_found_by_prompt_and_not_by_row() -> None:
    rows = [("two", "aaaa"), ("one", "bb"), ("one", "aaaa"), ("two", "c")]
    together = Against(Length(), less_mean, TABLE)(completions(*rows))
    alone = [Against(Length(), less_mean, TABLE)(completions(row)).item() for row in rows]
    assert together.tolist() == alone
    turned = Against(Length(), less_mean, TABLE)(completions(*rows[::-1]))
    assert turned.tolist() == alone[::-1]
    shuffled = Against(Length(), less_mean, dict(reversed(TABLE.items())))(completions(*rows))
    assert shuffled.tolist() == alone


def test_each_kind_compares_in_its_way() -> None:
    assert compared("pairwise") is mean_win
    assert compared("learned") is compared("lexicon") is compared("classifier") is less_mean
    embedding = torch.tensor([[0.0, 1.0, 0.0]])
    found = compared("pairwise")(embedding, torch.tensor([[[0.0, 0.0, 1.0]]])).item()
    assert found == pytest.approx(preference_logit(embedding[0], torch.tensor([0.0, 0.0, 1.0])).sigmoid().item())


def test_a_large_common_offset_is_not_lost_in_rounding() -> None:
    table = {"one": torch.tensor([1e7, 1e7 + 1])}  # their mean is no fp32 number
    reward = Against(Length(lambda text: 1e7 + len(text)), less_mean, table)
    assert reward(completions(("one", "aa"))).item() == 1.5


def test_a_prompt_without_opponents_is_an_error_that_names_it() -> None:
    with pytest.raises(UserError, match=r"reward\.against: there are no opponents for the prompt 'three'"):
        Against(Length(), less_mean, TABLE)(completions(("one", "a"), ("three", "a")))


@pytest.mark.parametrize(
    ("score", "table", "message"),
    [
        (lambda text: float("nan"), TABLE, "2 of 2 reference samples have no finite reward"),
        (len, {"one": torch.tensor([1.0, float("nan")])}, "2 of 2 reference samples have no finite reward"),
        (lambda text: 1.0, TABLE, "all 2 reference samples have the same reward"),
    ],
)
def test_scores_that_are_nan_or_constant_are_refused_when_they_are_calibrated(
    score: Callable[[str], float], table: dict[str, Tensor], message: str
) -> None:
    batch = completions(("one", "a"), ("one", "aaa"))
    with pytest.raises(UserError, match=message):
        calibration(Against(Length(score), less_mean, table)(batch))


def test_the_calibration_is_of_the_compared_score() -> None:
    batch = completions(("one", "a"), ("one", "aaaaa"), ("two", ""), ("two", "aaaa"))
    raw = Against(Length(), less_mean, TABLE)
    assert Calibrated(raw, *calibration(raw(batch)))(batch).mean().item() == pytest.approx(0, abs=1e-6)
