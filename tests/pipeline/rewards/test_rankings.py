from __future__ import annotations

import itertools
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from torch import Tensor

from pipeline.config.networks import ModelConfig
from pipeline.errors import UserError
from pipeline.models.loading import scratch_model
from pipeline.models.policy import Episodes, response_mask
from pipeline.rewards import learned
from pipeline.rewards.base import Completions
from pipeline.rewards.collection import (
    RESPONSES,
    Ranked,
    best_first,
    comparisons,
    gap,
    in_order,
    judged_rankings,
    read_ranked,
    read_responses,
    response_table,
    split_prompts,
)
from pipeline.rewards.learned import RewardModel, train_reward_model
from pipeline.rewards.settings import LearnedSettings, RewardConfig
from pipeline.run.layout import Layout
from pipeline.trial import run_trial

CPU = torch.device("cpu")
SIZES = ModelConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)


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
    numbers, order = uniform(3, 4, 5), torch.stack([torch.randperm(4) for _ in range(3)])
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
    other = first.each(lambda column: column.roll(1, 0))  # an answer to another prompt
    response_table(first, other, torch.tensor([True, True])).to_parquet(tmp_path / RESPONSES)
    with pytest.raises(UserError, match="and 2 of 2 given pairs have no prompt, or one that was cut"):
        read_responses(tmp_path, pad=0)


class Points:
    networks = ()

    def __call__(self, completions: Completions) -> Tensor:
        return torch.tensor([float(text) for text in completions.texts])


def numbered(rows: Tensor, label: str, seed: int) -> Completions:
    """Answers whose text and first token are a number of their own, to prompts that are the number of a row."""
    numbers = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    ones = torch.ones(len(rows), 1, dtype=torch.bool)
    episodes = Episodes(torch.stack([rows, numbers], 1), ones, ones, ones[:, 0])
    return Completions(episodes, [f"{row}" for row in rows.tolist()], [f"{number}" for number in numbers.tolist()])


def test_the_judge_ranks_answers_to_one_prompt() -> None:
    cfg = RewardConfig(learned=LearnedSettings(ranked=4, pairs=50, heldout_pairs=6, label_noise=0.0))
    pairs = judged_rankings(numbered, Points(), 12, cfg)
    assert (pairs.train, len(pairs.first_wins)) == (8 * 6, 8 * 6 + 6)
    ranked = pairs.ranked
    tokens = torch.stack([answers.query_responses for answers in ranked.answers], 1)  # (n, 4, 2)
    assert (tokens[:, 1:, 0] == tokens[:, :1, 0]).all(), "one prompt"
    assert (tokens[:, :-1, 1] > tokens[:, 1:, 1]).all(), "best first"
    assert ranked.order.tolist() == [[0, 1, 2, 3]] * 8
    train, heldout = slice(pairs.train), slice(pairs.train, None)
    assert pairs.first_wins[train].all()
    assert (gap(pairs.gold)[train] > 0).all()
    assert ((gap(pairs.gold) > 0) == pairs.first_wins)[heldout].all()
    assert 0 < int(pairs.first_wins[heldout].sum()) < 6, "either answer may be the better one"
    rows = split_prompts(12, cfg)
    assert [int(prompt) for prompt in pairs.first.prompts[heldout]] == rows[50:].tolist()
    assert not set(pairs.first.prompts[heldout]) & set(pairs.first.prompts[train])
    assert pairs.gold["gold_first"].tolist() == [float(text) for text in pairs.first.texts]
    assert pairs.gold["gold_second"].tolist() == [float(text) for text in pairs.second.texts]
    assert pairs.first.prompts == pairs.second.prompts


def test_a_reward_is_learned_from_rankings_and_others_learn_from_their_pairs(smoke_layout: Layout) -> None:
    ranked = run_trial(smoke(algorithm="dpo", reward__learned__ranked=4), smoke_layout, Recorder())
    assert ranked.status == "complete"
    reward = ranked.artifacts["reward"]
    assert (reward.meta["train_rankings"], reward.meta["train_pairs"]) == (42, 252)
    table = pd.read_parquet(reward.path / "pairs.parquet")
    train = table[~table["heldout"]]
    assert set(train.groupby(train.index // 6)["prompt"].nunique()) == {1}
    assert len(pd.read_parquet(reward.path / RESPONSES)) == 2 * len(train) == 2 * 252
