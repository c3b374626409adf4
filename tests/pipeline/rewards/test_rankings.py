"""Rankings: the annotator's distribution, their comparisons, and what a reward model learns from them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline.config.model import ModelConfig
from pipeline.errors import UserError
from pipeline.models.loading import scratch_model
from pipeline.models.policy import Episodes, response_mask
from pipeline.rewards import learned
from pipeline.rewards.learned import RewardModel, train_reward_model
from pipeline.rewards.learned_settings import LearnedSettings
from pipeline.rewards.rankings import (
    RESPONSES,
    Ranked,
    best_first,
    comparisons,
    in_order,
    read_ranked,
    read_responses,
    response_table,
)
from pipeline.rewards.settings import RewardConfig

CPU = torch.device("cpu")
SIZES = ModelConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)


def randoms(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_orders_are_as_frequent_as_plackett_and_luce_have_it() -> None:
    n, temperature, points = 60_000, 2.0, [3.0, 1.0, 0.0]
    orders = best_first(torch.tensor(points).expand(n, 3), temperature, uniform(n, 3))
    strength = [math.exp(point / temperature) for point in points]
    for order in itertools.permutations(range(3)):
        first, second, third = (strength[place] for place in order)
        wanted = first / (first + second + third) * second / (second + third)
        found = float((orders == torch.tensor(order)).all(1).double().mean())
        assert found == pytest.approx(wanted, abs=4.5 * (wanted * (1 - wanted) / n) ** 0.5), order


def test_the_judge_himself_makes_no_mistake_and_tosses_between_equals() -> None:
    points = torch.tensor([1.0, 3.0, 1.0, 0.0]).expand(2_000, 4)
    orders = best_first(points, 0.0, uniform(2_000, 4))
    assert (orders[:, 0] == 1).all()
    assert (orders[:, 3] == 3).all()
    assert float((orders[:, 1] == 0).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_a_ranking_makes_all_its_comparisons_once() -> None:
    better, worse = comparisons(torch.tensor([[2, 0, 1], [5, 4, 3]]))
    assert torch.stack([better, worse], -1).tolist() == [[[2, 0], [2, 1], [0, 1]], [[5, 4], [5, 3], [4, 3]]]
    pairs = [math.log(1 + math.exp(-gap)) for gap in (1, 2, 1)]
    loss = RewardModel.loss(*comparisons(torch.tensor([[1.0, 0.0, -1.0]])))
    assert loss.item() == pytest.approx(sum(pairs) / 3, rel=1e-6)


def test_pairs_are_rankings_and_embeddings_are_put_in_order_as_scores_are() -> None:
    tokens = torch.arange(8).view(2, 4)
    ones = torch.ones(2, 2, dtype=torch.bool)
    sides = Episodes(tokens, ones, ones, ones[:, 0]), Episodes(tokens + 8, ones, ones, ones[:, 0])
    assert Ranked.of_pairs(*sides, torch.tensor([True, False])).order.tolist() == [[0, 1], [1, 0]]
    numbers, order = randoms(3, 4, 5), torch.stack([torch.randperm(4) for _ in range(3)])
    wanted = torch.stack([numbers[row, order[row]] for row in range(3)])
    assert torch.equal(in_order(numbers, order), wanted)
    assert torch.equal(in_order(numbers[..., 0], order), wanted[..., 0])


def rankings(n: int, k: int = 4) -> Ranked:
    """Answers with more and fewer high tokens, of several lengths, in the order of their number."""
    generator = torch.Generator().manual_seed(0)
    answers, counts = list[Episodes](), list[Tensor]()
    for place in range(k):
        tokens = torch.randint(2, 20, (n, 6 + place), generator=generator)
        lengths = torch.full((n,), 4 + place)
        columns = torch.ones(n, 2, dtype=torch.bool), response_mask(lengths, 4 + place), torch.ones(n).bool()
        answers.append(Episodes(tokens, *columns))
        counts.append((tokens[:, 2:] > 10).sum(1))
    return Ranked(answers, best_first(torch.stack(counts, 1).float(), 0.0, uniform(n, k)))


def test_gradients_are_those_of_all_rankings_however_few_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted() -> Tensor:
        model = RewardModel.new(scratch_model(SIZES, 20, 0, 1, 32, seed=0), RewardConfig(), CPU)
        cfg = RewardConfig(learned=LearnedSettings(ranked=4, epochs=2, batch_size=36, lr=1e-2))
        train_reward_model(model, rankings(12), cfg, lambda *_: None)
        # A shift of all scores changes no loss: the bias has no gradient but rounding, which Adam would magnify.
        named = [(name, weight.detach().flatten()) for name, weight in model.named_parameters()]
        return torch.cat([weight for name, weight in named if name != "head.bias"])

    whole = fitted()
    monkeypatch.setattr(learned, "ranking_rows", lambda *_: 2)
    assert (fitted() - whole).abs().max() < 1e-4


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
    ranked = read_ranked(tmp_path, 0, CPU)
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
