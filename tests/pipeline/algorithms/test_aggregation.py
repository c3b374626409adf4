"""The weight of a response: two responses of 1 and 3 tokens, of a mini-batch of 8 tokens in 4 responses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import trial_config

from pipeline.algorithms.aggregation import response_weights

WEIGHTS = {
    "token_mean": [1 / 8, 3 / 8],
    "seq_mean_token_mean": [1 / 4, 1 / 4],
    "seq_mean_token_sum": [1 / 4, 3 / 4],
    "constant": [1 / 20, 3 / 20],
}
"""Summed over the tokens of a response; the longest can have 5."""


@pytest.mark.parametrize("how", WEIGHTS)
def test_weights_by_hand(how: Any) -> None:
    cfg = trial_config(algorithm__aggregation=how).algorithm
    found = response_weights(torch.tensor([1, 3]), torch.tensor(8), 4, 5, cfg)
    assert (found / 8).tolist() == pytest.approx(WEIGHTS[how])


@pytest.mark.parametrize("how", ["token_mean", "seq_mean_token_mean"])
def test_means_weigh_one_in_all(how: Any) -> None:
    lengths = torch.tensor([1, 3, 2, 2])
    cfg = trial_config(algorithm__aggregation=how).algorithm
    assert float(response_weights(lengths, lengths.sum(), 4, 5, cfg).sum() / 8) == pytest.approx(1.0)
