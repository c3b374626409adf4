"""RLOO: its baseline by hand and by its identities, its loss against autograd, and a trial without a critic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from hypothesis import given
from hypothesis import strategies as st
from naive import drawn, prefix
from tinytrial import RLOO as KNOBS
from tinytrial import run, trainer

from pipeline.algorithms.base import Judged
from pipeline.algorithms.registry import ALGORITHMS
from pipeline.algorithms.rloo import RLOO, leave_one_out
from pipeline.algorithms.terms import Tokens
from pipeline.config.presets import PRESETS
from pipeline.models.policy import to_grid
from pipeline.training.rollout import collect
from pipeline.training.surrogate_loss import of_sequences
from pipeline.training.update import accumulate, clip

MASK = prefix([[1, 2], [3], [4, 5, 6], [7]])


def judged(scores: list[float], penalty: float = 0.0) -> Judged:
    """Two prompts of two responses each, of 2, 1, 3 and 1 tokens, `penalty` on every token."""
    non_score = torch.where(MASK, penalty, 0.0).double()
    return Judged(torch.tensor(scores).double(), non_score, None, MASK, torch.tensor([0, 0, 1, 1]))


# --- the baseline ------------------------------------------------------------------------------------------


def test_advantages_by_hand() -> None:
    """Scores 1 and 3, 2 and 2; -0.5 a token: rewards 0 and 2.5, 0.5 and 1.5. The other response is the baseline."""
    found = RLOO.estimate(judged([1.0, 3.0, 2.0, 2.0], -0.5), trial_config().algorithm)
    assert found.returns is None
    assert found.advantages.tolist() == [[-2.5, -2.5, 0.0], [2.5, 0.0, 0.0], [-1.0, -1.0, -1.0], [1.0, 0.0, 0.0]]


def test_three_responses_by_hand() -> None:
    assert leave_one_out(torch.tensor([1.0, 2.0, 6.0]), torch.zeros(3).long()).tolist() == [-3.0, -1.5, 4.5]


@given(rewards=st.lists(st.floats(-5, 5), min_size=8, max_size=8), size=st.sampled_from([2, 4, 8]))
def test_it_is_the_distance_from_the_groups_mean_stretched_and_means_zero(rewards: list[float], size: int) -> None:
    scores, groups = torch.tensor(rewards).double(), torch.arange(8) // size
    found = leave_one_out(scores, groups)
    by_group = scores.view(-1, size)
    wanted = (by_group - by_group.mean(1, keepdim=True)) * size / (size - 1)
    torch.testing.assert_close(found.view(-1, size), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.view(-1, size).sum(1), torch.zeros(8 // size).double(), rtol=0, atol=1e-9)


def test_order_and_names_of_groups_do_not_matter() -> None:
    scores, groups = drawn(12, seed=1), torch.tensor([0, 1, 2] * 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        leave_one_out(scores[order], groups[order] * 7 - 3), leave_one_out(scores, groups)[order]
    )


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two responses"):
        leave_one_out(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1]))


def test_every_algorithm_that_can_be_asked_for_is_there() -> None:
    assert PRESETS.keys() == ALGORITHMS.keys()


# --- the loss of whole responses ---------------------------------------------------------------------------


def sequences(spread: float) -> tuple[Tokens, torch.Tensor, torch.Tensor]:
    """Tokens of four responses, their mask, and log-probs of now."""
    n = int(MASK.sum())
    old, new = -drawn(n, seed=2).abs(), -drawn(n, seed=2).abs() + spread * drawn(n, seed=3)
    advantages = torch.where(MASK, drawn(4, 1, seed=4), 0.0)[MASK]
    return Tokens(old, old, advantages, None, None), MASK, new


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("knobs", [{}, {"algorithm__dual_clip": 1.5}])
def test_two_passes_have_the_gradient_of_the_plain_loss(spread: float, knobs: dict[str, Any]) -> None:
    """max(-A r, -A clip(r)) with r = exp(sum of new - sum of old), mean over responses, by autograd in float64."""
    batch, mask, new = sequences(spread)
    cfg = trial_config(**knobs).algorithm
    plain = new.clone().requires_grad_()
    ratio = (to_grid(plain, mask).sum(1) - to_grid(batch.logprobs, mask).sum(1)).exp()
    advantages = to_grid(batch.advantages, mask)[:, 0]
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    if cfg.dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -cfg.dual_clip * advantages), losses)
    losses.mean().backward()

    tokens, each = mask.sum(), mask.sum() / 4
    objective = of_sequences(RLOO, batch, mask, new, each, cfg)
    ours = new.clone().requires_grad_()
    total = sum(objective.loss(rows, ours[rows]).sum() for rows in (slice(0, 3), slice(3, 7)))
    assert isinstance(total, torch.Tensor)
    (total / tokens).backward()
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-12, atol=1e-12)
    means = {name: float(value / tokens) for name, value in objective.sums(new).items()}
    assert means["policy/pg_loss"] == pytest.approx(losses.mean().item(), rel=1e-6)
    assert means["policy/pg_clipfrac"] == pytest.approx(
        (-advantages * ratio.clamp(0.8, 1.2) > -advantages * ratio).double().mean()
    )


# --- a trial -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"kl__place": "loss"},
        {"kl__place": "loss", "kl__loss_estimator": "k3"},
        {"algorithm__ent_coef": 0.05},
        {"train__temperature": 0.7},
    ],
    ids=["plain", "k2 in the loss", "k3 in the loss", "entropy", "temperature"],
)
def test_the_gradient_is_that_of_the_mean_over_the_mini_batch_responses(tmp_path: Path, knobs: dict[str, Any]) -> None:
    """Through the network, on a policy that has moved since the rollout, against autograd on the plain loss: penalty
    and entropy bonus are summed over a response, as the ratio is that of the whole response."""
    one = trainer(
        tmp_path, runtime={"micro_batch_size": 3}, kl__beta=0.3, optimiser__max_grad_norm=1e9, **KNOBS, **knobs
    )
    cfg = one.cfg
    rollout = collect(one.rollout_context, one._prompts(), 0, 0.3)
    with torch.no_grad():
        for seed, parameter in enumerate(one.actor.parameters()):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    mini, losses, surrogates = torch.tensor([6, 1, 3, 4]), [], []
    for row in mini.tolist():
        length = int(rollout.episodes.lengths[row])
        log_pi, values = one.actor(rollout.episodes.take(torch.tensor([row])), cfg.train.temperature)
        assert values is None
        chosen = log_pi[range(length), rollout.episodes.responses[row, :length]]
        ratio = (chosen.sum() - rollout.measured.logprobs[row, :length].sum()).exp()
        advantage = rollout.advantages[row, 0]
        surrogates.append(-torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2)))
        d = chosen - rollout.measured.ref_logprobs[row, :length]
        estimator = 0.5 * d * d if cfg.kl.loss_estimator == "k2" else (-d).exp() - 1 + d
        penalty = 0.3 * estimator.sum() if cfg.kl.place == "loss" else torch.zeros(())
        losses.append(surrogates[-1] + penalty + cfg.algorithm.ent_coef * (log_pi.exp() * log_pi).sum())
    gradients = torch.autograd.grad(torch.stack(losses).mean(), list(one.actor.parameters()))
    step = accumulate(rollout, mini, one.learner)
    clip(one.learner)
    assert step["policy/pg_loss"] == pytest.approx(torch.stack(surrogates).mean().item(), rel=1e-4)
    for parameter, gradient in zip(one.actor.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-7)


def test_whitening_is_over_responses_whatever_their_lengths(tmp_path: Path) -> None:
    one = trainer(tmp_path, kl__beta=0.3, **{**KNOBS, "algorithm__whiten_advantages": True})
    rollout = collect(one.rollout_context, one._prompts(), 0, 0.3)
    assert len(set(rollout.episodes.lengths.tolist())) > 1
    first, mask = rollout.advantages[:, 0], rollout.episodes.response_mask
    assert (first.mean().item(), first.var(correction=0).item()) == pytest.approx((0.0, 1.0), abs=1e-5)
    assert torch.equal(rollout.advantages, torch.where(mask, first.unsqueeze(1), 0.0))


def test_responses_of_one_prompt_stand_together_and_share_their_baseline(tmp_path: Path) -> None:
    one = trainer(tmp_path, kl__beta=0.3, **KNOBS)
    prompts = one._prompts()
    assert [len(set(prompts.rows[start : start + 4])) for start in (0, 4)] == [1, 1]
    assert prompts.rows[0] != prompts.rows[4]
    rollout = collect(one.rollout_context, prompts, 0, 0.3)
    assert len({tuple(row) for row in rollout.episodes.responses[:4].tolist()}) > 1
    torch.testing.assert_close(rollout.advantages[:, 0].view(2, 4).sum(1), torch.zeros(2), rtol=0, atol=1e-5)


def test_without_a_critic_nothing_of_one_is_left(tmp_path: Path) -> None:
    outcome, rows, state = run(tmp_path, **KNOBS)
    assert outcome.status == "complete"
    assert not any(name.startswith("value/") for row in rows.values() for name in row)
    first = [sample["prompt"] for sample in outcome.samples if sample["step"] == 0]
    assert len(first) == len(set(first)) == 2, "one response of each prompt is kept to be read"
    assert not any("value_head" in name or "critic" in name for name in state)
    assert all({"policy/pg_loss", "policy/pg_clipfrac"} <= row.keys() for step, row in rows.items() if step % 4 == 1)
