"""The pairs that a reward was learned from, as others learn from them; for real, on the smoke profile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.errors import UserError
from pipeline.models.policy import Episodes, response_mask
from pipeline.rewards.rankings import RESPONSES, read_ranked, read_responses, response_table


def test_tokens_come_back_as_they_were_with_the_preferred_response_first(tmp_path: Path) -> None:
    first = Episodes(
        torch.tensor([[0, 5, 7, 8, 1], [3, 4, 9, 0, 0]]), torch.tensor([[False, True], [True, True]]),
        response_mask(torch.tensor([3, 1]), 3), torch.tensor([True, False]),
    )  # fmt: skip
    second = Episodes(
        torch.tensor([[0, 5, 6, 1], [3, 4, 2, 2]]), torch.tensor([[False, True], [True, True]]),
        response_mask(torch.tensor([2, 2]), 2), torch.tensor([True, False]),
    )  # fmt: skip
    response_table(first, second, torch.tensor([False, True])).to_parquet(tmp_path / RESPONSES)
    read = read_responses(tmp_path, pad=0)
    assert read.query_responses.tolist() == [[0, 5, 6, 1, 0], [0, 5, 7, 8, 1], [3, 4, 9, 0, 0], [3, 4, 2, 2, 0]]
    assert read.query_mask.tolist() == [[False, True], [False, True], [True, True], [True, True]]
    assert (read.lengths.tolist(), read.ended.tolist()) == ([2, 3, 1, 2], [True, True, False, False])
    ranked = read_ranked(tmp_path, 0, torch.device("cpu"))
    assert [side.lengths.tolist() for side in ranked.answers] == [[2, 1], [3, 2]]
    assert ranked.order.tolist() == [[0, 1], [0, 1]]


def test_pairs_without_a_common_prompt_are_refused(tmp_path: Path) -> None:
    query_mask, ended = torch.ones(1, 1, dtype=torch.bool), torch.tensor([True])
    first, second = (
        Episodes(torch.tensor([[opening, 1]]), query_mask, response_mask(torch.tensor([1]), 1), ended)
        for opening in (5, 6)
    )
    response_table(first, second, torch.tensor([True])).to_parquet(tmp_path / RESPONSES)
    with pytest.raises(UserError, match="and 1 of 1 given pairs have no prompt, or one that was cut"):
        read_responses(tmp_path, pad=0)
