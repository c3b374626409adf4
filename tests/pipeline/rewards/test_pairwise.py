"""The general preference model: its mathematics, what it learns and Bradley-Terry cannot, and its way to the disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline.config.model import ModelConfig
from pipeline.models.loading import scratch_model
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, response_mask
from pipeline.rewards.base import Completions
from pipeline.rewards.kinds import TRAINED
from pipeline.rewards.learned import LearnedReward, bradley_terry_loss, family_of, train_reward_model
from pipeline.rewards.learned_settings import LearnedSettings
from pipeline.rewards.pairwise import (
    PairwiseModel,
    mean_win,
    new_pairwise_model,
    pairwise_loss,
    preference_logit,
)
from pipeline.rewards.rankings import Ranked, all_pairs_loss
from pipeline.rewards.settings import RewardConfig

CPU = torch.device("cpu")
SIZES = ModelConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)


def model(dimension: int = 4) -> PairwiseModel:
    return new_pairwise_model(scratch_model(SIZES, 20, 0, 1, 32, seed=0), 0, CPU, dimension)


def embeddings(n: int, numbers: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(n, numbers, generator=torch.Generator().manual_seed(seed))


def test_the_logit_by_hand() -> None:
    a, b = torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0]), torch.tensor([0.5, 1.0, -1.0, 2.0, 4.0])
    # 1 - 0.5 + (2 * -1 - 3 * 1) + (5 * 4 - 7 * 2)
    assert preference_logit(a, b).item() == pytest.approx(0.5 - 5 + 6)
    assert preference_logit(b, a).item() == pytest.approx(-1.5)


def test_both_orders_add_up_to_one() -> None:
    a, b = embeddings(1000), embeddings(1000, seed=1)
    there, back = preference_logit(a, b), preference_logit(b, a)
    assert torch.equal(there, -back)
    assert torch.allclose(there.sigmoid() + back.sigmoid(), torch.ones(1000))
    assert preference_logit(a, a).abs().max() == 0


def test_without_vectors_it_is_bradley_terry() -> None:
    a, b = (torch.cat([embeddings(9, 1, seed), torch.zeros(9, 4)], 1) for seed in (0, 1))
    assert torch.allclose(pairwise_loss(a, b), bradley_terry_loss(a[:, 0], b[:, 0]))


def test_loss_and_gradient_by_hand() -> None:
    a = torch.tensor([[0.2, 1.0, 0.5]], requires_grad=True)
    b = torch.tensor([[0.1, -1.0, 2.0]], requires_grad=True)
    loss = pairwise_loss(a, b)
    # logit = 0.1 + 1 * 2 - 0.5 * -1 = 2.6; loss = log(1 + exp(-2.6)); its slope -1 / (1 + exp(2.6))
    assert loss.item() == pytest.approx(0.0716442, abs=1e-6)
    loss.backward()
    slope = -0.0691384
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad[0].tolist() == pytest.approx([slope, slope * 2.0, slope * 1.0], abs=1e-6)
    assert b.grad[0].tolist() == pytest.approx([-slope, slope * -0.5, slope * 1.0], abs=1e-6)


def test_the_mean_probability_of_beating_k_opponents() -> None:
    mine = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    theirs = torch.tensor([[[0.0, 5.0, 5.0], [3.0, 1.0, 1.0]], [[0.0, 0.0, 2.0], [0.0, 0.0, -2.0]]])
    expected = [(0.7310586 + 0.1192029) / 2, 0.5]  # σ(1) and σ(-2); σ(2) and σ(-2)
    assert mean_win(mine, theirs).tolist() == pytest.approx(expected, abs=1e-6)
    # Every row has opponents of its own.
    alone = [mean_win(mine[row : row + 1], theirs[row : row + 1]).item() for row in range(2)]
    assert mean_win(mine, theirs).tolist() == alone


def _one_hot_cycle() -> tuple[Tensor, Tensor]:
    """Pairs of three answers, each of which beats the next: the first of a pair is preferred."""
    kinds = torch.eye(3)
    return kinds[[0, 1, 2]], kinds[[1, 2, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_a_cycle_of_three_is_learned_exactly_where_bradley_terry_stays_at_chance(seed: int) -> None:
    better, worse = _one_hot_cycle()
    torch.manual_seed(seed)
    general, scalar = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    steps = torch.optim.Adam([*general.parameters(), *scalar.parameters()], lr=0.05)
    for _ in range(400):
        steps.zero_grad()
        losses = pairwise_loss(general(better), general(worse)), bradley_terry_loss(scalar(better), scalar(worse))
        sum(losses).backward()  # type: ignore[union-attr]
        steps.step()
    with torch.no_grad():
        assert (preference_logit(general(better), general(worse)).sigmoid() > 0.99).all()
        assert (scalar(better) - scalar(worse)).abs().max() < 1e-3
        assert losses[1].item() == pytest.approx(0.6931472, abs=1e-5)


def episodes(tokens: Tensor, lengths: Tensor) -> Episodes:
    n = len(tokens)
    ended = torch.ones(n, dtype=torch.bool)
    return Episodes(tokens, torch.ones(n, 2, dtype=torch.bool), response_mask(lengths, tokens.shape[1] - 2), ended)


def _cyclic_texts() -> tuple[Episodes, Episodes, Tensor]:
    """Answers whose last token is one of three, each of which beats the next."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(5, 20, (384, 6), generator=generator) for _ in range(2))
    kind = torch.randint(0, 3, (384,), generator=generator)
    step = torch.randint(1, 3, (384,), generator=generator)
    a[:, 5], b[:, 5] = 2 + kind, 2 + (kind + step) % 3
    lengths = torch.full((384,), 4)
    return episodes(a, lengths), episodes(b, lengths), step == 1


def test_texts_in_a_circle_are_learned_and_the_model_survives_the_disk(tmp_path: Path) -> None:
    first, second, wins = _cyclic_texts()
    cfg = RewardConfig(learned=LearnedSettings(epochs=12, batch_size=32, lr=3e-3))
    right = {}
    for kind in TRAINED:
        family = family_of(kind)
        trained = family.new(scratch_model(SIZES, 20, 0, 1, 32, seed=0), cfg, CPU)
        loss = partial(all_pairs_loss, loss=family.loss)
        train_reward_model(trained, Ranked.of_pairs(first, second, wins), cfg, lambda *_: None, loss_of=loss)
        with torch.no_grad():
            right[kind] = float(((family.margin(trained(first), trained(second)) > 0) == wins).float().mean())
    assert right["pairwise"] > 0.97
    assert right["learned"] < 0.75  # of three edges of a circle an order has two
    trained.save(tmp_path)
    again = PairwiseModel.load(tmp_path, CPU)
    assert isinstance(again, PairwiseModel)
    batch = Completions(first, [""] * 384, [""] * 384)
    numbers = LearnedReward(again, Room("rows", 100))(batch)
    assert numbers.shape == (384, 5)
    assert torch.allclose(numbers, trained(first).detach(), atol=1e-5)


def test_an_embedding_does_not_depend_on_batch_or_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    prompts, lengths = (torch.randint(1, 6, (40,), generator=generator) for _ in range(2))
    tokens = torch.randint(2, 20, (40, 10), generator=generator)
    batch = Episodes(
        tokens, torch.arange(5) >= (5 - prompts)[:, None], response_mask(lengths, 5), torch.ones(40, dtype=torch.bool)
    )
    one = model()
    together = LearnedReward(one, Room("rows", 25))(Completions(batch, [""] * 40, [""] * 40))
    for row, (prompt, length) in enumerate(zip(prompts.tolist(), lengths.tolist(), strict=True)):
        hidden = one.lm.model(tokens[row : row + 1, 5 - prompt : 5 + length]).last_hidden_state[0, -1]
        assert together[row].tolist() == pytest.approx(one.head(hidden).tolist(), abs=1e-5)


def test_the_dimension_is_that_of_the_vectors_and_the_seed_that_of_the_head() -> None:
    assert model(2).head.weight.shape == (3, 16)
    assert model(6).head.weight.shape == (7, 16)
    again = model()
    assert torch.equal(model().head.weight, again.head.weight)
    other = new_pairwise_model(scratch_model(SIZES, 20, 0, 1, 32, seed=0), 1, CPU, 4)
    assert not torch.equal(other.head.weight, again.head.weight)
    assert again.head.weight[1:].std() > 1.5 * again.head.weight[0].std()
