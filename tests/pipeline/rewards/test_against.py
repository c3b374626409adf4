"""A reward against opponents: looked up by prompt, compared as the kind of reward asks, and its faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tinynets import completions
from torch import Tensor

from pipeline.errors import UserError
from pipeline.rewards.base import Completions, as_scores
from pipeline.rewards.opponents import Against, less_mean

TABLE = {"one": torch.tensor([1.0, 3.0]), "two": torch.tensor([10.0, 30.0])}


class Length:
    networks = ("a network",)

    def __init__(self, score: Callable[[str], float] = len) -> None:
        self._score = score

    def __call__(self, completions: Completions) -> Tensor:
        return as_scores([self._score(text) for text in completions.texts])


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


def test_a_prompt_without_opponents_is_an_error_that_names_it() -> None:
    with pytest.raises(UserError, match=r"reward\.against: there are no opponents for the prompt 'three'"):
        Against(Length(), less_mean, TABLE)(completions(("one", "a"), ("three", "a")))
