"""A*-PO: its loss is the published regression, its gradient that of REINFORCE, and its baseline the prompt's V*."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn, prefix
from tinytrial import preset, samples, trainer
from torch import Tensor

from pipeline.algorithms.base import Judged
from pipeline.algorithms.registry import ESTIMATORS
from pipeline.algorithms.terms import Tokens
from pipeline.models.policy import to_grid
from pipeline.run.metrics_log import MetricsLog
from pipeline.training.checkpoint import Files
from pipeline.training.given import Networks
from pipeline.training.penalty import penalty_of
from pipeline.training.rollout import Rollout, collect
from pipeline.training.trainer import Trainer
from pipeline.training.update import accumulate, clip

A_STAR_PO = preset("a_star_po")
MASK = prefix([[1, 2], [3], [4, 5, 6], [7]])
BETA = 0.3
MINI = [6, 1, 3, 4]


def moved(folder: Path, by: float, **knobs: Any) -> tuple[Trainer, Rollout]:
    """A rollout, and the trial whose policy has moved since."""
    changes = {"kl__beta": BETA, "optimiser__max_grad_norm": 1e9, **A_STAR_PO, **knobs}
    one = trainer(folder, runtime={"micro_batch_size": 3}, **changes)
    rollout = collect(one.rollout_context, one._prompts(), 0, BETA)
    with torch.no_grad():
        for seed, parameter in enumerate(one.actor.lm.parameters()):
            parameter.add_(by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return one, rollout


def soft_maximum(one: Trainer, row: int, beta: float, count: int) -> float:
    """V* of a prompt by the definition; a response of 10 tokens has no EOS, and -1 instead of its score."""
    drawn_ = samples()
    final = [
        float(score) if ended else -1.0
        for score, ended in zip(drawn_.proxy[row, :count], drawn_.ended[row, :count], strict=True)
    ]
    return beta * math.log(sum(math.exp(score / beta) for score in final) / count)


def regression(one: Trainer, rollout: Rollout) -> Tensor:
    """mean (beta (S - S_ref) + V* - r)^2, one response at a time; the reward is -1 where there was no EOS."""
    prompts, terms = one._prompts(), []
    for row in MINI:
        n = int(rollout.episodes.lengths[row])
        log_pi, _ = one.actor(rollout.episodes.take(torch.tensor([row])), one.cfg.train.temperature)
        new = log_pi[range(n), rollout.episodes.responses[row, :n]]
        d = (new - rollout.measured.ref_logprobs[row, :n]).sum()
        reward = float(rollout.scores.proxy[row]) if rollout.episodes.ended[row] else -1.0
        terms.append((BETA * d + soft_maximum(one, prompts.rows[row], 1.0, 4) - reward) ** 2)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("by", [0.0, 0.02])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_that_of_the_published_regression_over_2_beta(
    tmp_path: Path, by: float, temperature: float
) -> None:
    """Through the network, at the rollout's policy and away from it."""
    one, rollout = moved(tmp_path, by, train__temperature=temperature)
    assert len(set(rollout.episodes.ended.tolist())) > 1
    gradients = torch.autograd.grad(regression(one, rollout) / (2 * BETA), list(one.actor.lm.parameters()))
    accumulate(rollout, torch.tensor(MINI), one.learner)
    clip(one.learner)
    for parameter, gradient in zip(one.actor.lm.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)


def test_on_policy_it_is_reinforce_with_the_penalty_in_the_score(tmp_path: Path) -> None:
    """On a policy that has left its reference, before the first step of an update: d is the same in both."""
    found = {}
    for place in ("loss", "score"):
        one, _ = moved(tmp_path / place, 0.02, kl__place=place)
        rollout = collect(one.rollout_context, one._prompts(), 0, BETA)
        assert abs(rollout.metrics["objective/kl"]) > 1e-3
        accumulate(rollout, torch.tensor(MINI), one.learner)
        clip(one.learner)
        found[place] = [parameter.grad for parameter in one.actor.lm.parameters()]
    for ours, theirs in zip(found["loss"], found["score"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_the_slope_of_the_regression_in_float64() -> None:
    """dL / dS_i = 2 beta (beta d_i + V* - r_i) / B of the mean of squares; ours is that over 2 beta."""
    n, advantages = int(MASK.sum()), drawn(4, seed=4)
    ref, new = -drawn(n, seed=1).abs(), -drawn(n, seed=2).abs()
    batch = Tokens(new, ref, to_grid(torch.ones_like(new), MASK)[MASK] * 0, None, None)
    plain = new.clone().requires_grad_()
    d = to_grid(plain - ref, MASK).sum(1)
    ((BETA * d - advantages) ** 2).mean().backward()
    assert plain.grad is not None
    penalty = penalty_of(batch, MASK, new, BETA, trial_config(**A_STAR_PO).kl, torch.zeros(MASK.shape).long())
    assert penalty is not None
    ours = new.clone().requires_grad_()
    losses = penalty.loss(slice(0, 3), ours[:3]).sum() + penalty.loss(slice(3, 7), ours[3:]).sum()
    ((losses - (advantages.unsqueeze(1).expand(MASK.shape)[MASK] * ours).sum()) / 4).backward()
    torch.testing.assert_close(ours.grad, plain.grad / (2 * BETA), rtol=1e-12, atol=1e-12)
    slopes = 2 * BETA * (BETA * d.detach() - advantages) / 4
    torch.testing.assert_close(plain.grad, slopes.unsqueeze(1).expand(MASK.shape)[MASK], rtol=1e-12, atol=1e-12)
    values = to_grid(penalty.value(new), MASK).sum(1)
    torch.testing.assert_close(values, BETA * d.detach() ** 2 / 2, rtol=1e-12, atol=1e-12)


def test_padding_moves_no_slope_of_a_whole_response() -> None:
    n = int(MASK.sum())
    ref, new, wide = -drawn(n, seed=1).abs(), -drawn(n, seed=2).abs(), torch.nn.functional.pad(MASK, (0, 5))
    kl = trial_config(**A_STAR_PO).kl
    slopes = []
    for mask in (MASK, wide):
        penalty = penalty_of(Tokens(new, ref, new, None, None), mask, new, BETA, kl, torch.zeros(mask.shape).long())
        assert penalty is not None
        leaf = new.clone().requires_grad_()
        slopes.append(torch.autograd.grad(penalty.loss(slice(None), leaf).sum(), leaf)[0])
    assert torch.equal(slopes[0], slopes[1])


# --- the baseline ------------------------------------------------------------------------------------------


V_STAR = torch.tensor([0.5, 0.5, -1.0, 1.0]).double()


def test_the_advantage_is_the_distance_from_the_prompts_own_value() -> None:
    scores, none = torch.tensor([1.0, 3.0, 2.0, 4.0]), torch.zeros(MASK.shape)
    judged = Judged(scores, none, None, MASK, torch.arange(4), v_star=V_STAR)
    found = ESTIMATORS["v_star"](judged, trial_config(**A_STAR_PO).algorithm)
    assert found.returns is None
    assert found.advantages.dtype == torch.float32
    for row, length, wanted in zip(found.advantages, [2, 1, 3, 1], [0.5, 2.5, 3.0, 3.0], strict=True):
        assert row[:length].tolist() == [wanted] * length
        assert not row[length:].any()
    with pytest.raises(ValueError, match="needs the V\\* of every prompt"):
        ESTIMATORS["v_star"](replace(judged, v_star=None), trial_config(**A_STAR_PO).algorithm)


@pytest.mark.parametrize(("beta", "count"), [(1.0, None), (0.5, 2), (5.0, 1)])
def test_every_prompt_has_its_own_value_by_its_number(tmp_path: Path, beta: float, count: int | None) -> None:
    one = trainer(tmp_path, **A_STAR_PO, algorithm__v_star_beta=beta, algorithm__v_star_samples=count)
    prompts = one._prompts()
    assert prompts.v_star is not None
    assert prompts.v_star.dtype == torch.float64
    wanted = [soft_maximum(one, row, beta, count or 4) for row in prompts.rows]
    assert prompts.v_star.tolist() == pytest.approx(wanted, rel=1e-6)
    assert prompts.rows != sorted(prompts.rows), "the order of the rollout is not that of the prompts"


def test_samples_are_scored_as_rollouts_are() -> None:
    """What a response without EOS gets changes V* without another sample."""
    drawn_, found = samples(), {}
    for how in ("replace", "subtract", "none"):
        found[how] = drawn_.v_star(trial_config(**A_STAR_PO, train__missing_eos=how, train__response_length=10))
    cut = ~drawn_.ended.all(1)
    assert 0 < int(cut.sum()) < len(cut)
    for how in ("replace", "subtract"):
        assert bool((found[how] != found["none"])[cut].all())
        assert torch.equal(found[how][~cut], found["none"][~cut])
    shorter = trial_config(**A_STAR_PO, train__overlong_share=0.5, train__response_length=10)
    assert bool((drawn_.v_star(shorter) <= found["replace"]).all())


def test_samples_of_other_prompts_are_refused(tmp_path: Path) -> None:
    one, cfg = trainer(tmp_path), trial_config(**A_STAR_PO)
    context, files = one.rollout_context, Files(MetricsLog, tmp_path)
    fewer = replace(samples(), proxy=samples().proxy[:19])
    for given, found in ((None, 0), (fewer, 19)):
        data = replace(one.data, samples=given)
        with pytest.raises(ValueError, match=rf"scored samples of {found} of 20 prompts"):
            Trainer(cfg, Networks(one.actor, context.reference), data, context.score, files, one.watch, one.ledger)
