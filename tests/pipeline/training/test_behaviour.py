from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from tinytrial import preset, run, trainer

from pipeline.algorithms.mathematics.staleness import Level, effective_share, ratios
from pipeline.training.judging import logprobs_of
from pipeline.training.parts.behaviour import Behaviour
from pipeline.training.parts.settings import RolloutConfig

SERIES = ("rollout/kl_per_token", "rollout/effective_share", "rollout/largest_ratio")


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_ratios_make_a_mean_over_what_another_policy_sampled_the_policys_own(level: Level) -> None:
    """Over all responses of two tokens out of three: E_mu[ratio f] = E_pi[f], for the sum of tokens at the level of
    responses, and for the first token at either."""
    stream = torch.Generator().manual_seed(0)
    mu, pi = (torch.randn(2, 3, generator=stream, dtype=torch.float64).log_softmax(1) for _ in range(2))
    responses = torch.tensor(list(product(range(3), repeat=2)))
    at_mu, at_pi = (torch.stack([p[t, responses[:, t]] for t in range(2)], 1) for p in (mu, pi))
    found = ratios(at_pi - at_mu, torch.ones(9, 2, dtype=torch.bool), level)
    value = (responses[:, 0] if level == "token" else responses.sum(1)).double()
    weighted = (at_mu.sum(1).exp() * found[:, 0] * value).sum()
    assert weighted == pytest.approx((at_pi.sum(1).exp() * value).sum())


def test_invalid_tokens_weigh_nothing() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    log_ratio = torch.tensor([[0.5, 9.0], [0.0, 1.0]])
    assert ratios(log_ratio, mask, "sequence")[0].tolist() == pytest.approx([torch.tensor(0.5).exp().item(), 0.0])
    assert effective_share(torch.where(mask, 3.0, 7.0), mask) == 1
    assert effective_share(torch.tensor([[5.0, 5.0], [0.0, 0.0]]), mask) == pytest.approx(1 / 3)


def test_the_mismatch_is_the_exact_kl_of_what_is_sampled_as_often_as_expected() -> None:
    """A grid with tokens as often as under mu = (1/2, 1/4, 1/4): the mean of k3 is KL(mu || pi)."""
    mu, pi = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.1, 0.3, 0.6])
    tokens = torch.tensor([[0, 0, 1, 2]])
    part = Behaviour(trial_config(rollout__every=2), RolloutConfig(every=2))
    _, metrics = part.weigh((pi / mu).log()[tokens], torch.ones_like(tokens, dtype=torch.bool))
    assert metrics[SERIES[0]] == pytest.approx(float((mu * (mu / pi).log()).sum()))
    assert metrics[SERIES[2]] == pytest.approx(0.6 / 0.25)


def test_the_sampler_is_as_old_as_it_is_told(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path / "old", rollout__every=3)
    found = {name: [row[name] for row in rows.values() if name in row] for name in SERIES}
    fresh = [place % 3 == 0 for place in range(6)]
    assert [ratio == pytest.approx(1, abs=1e-4) for ratio in found[SERIES[2]]] == fresh
    assert [share > 1 - 1e-6 for share in found[SERIES[1]]] == fresh
    assert found[SERIES[0]][2] > found[SERIES[0]][1] > 1e-5
    assert not {*SERIES} & {name for row in run(tmp_path / "new")[1].values() for name in row}


def test_the_ratio_is_that_of_the_policy_in_training_to_the_one_that_sampled(tmp_path: Path) -> None:
    one = trainer(tmp_path, rollout__every=2, algorithm__whiten_advantages=False)
    one._one_update()
    rollout, context = one._rollout(), one.rollout_context
    assert context.terms.behaviour
    old = logprobs_of(context, context.terms.behaviour(one.actor.lm), rollout.episodes)
    mask = rollout.episodes.response_mask
    ratio = (logprobs_of(context, one.actor.lm, rollout.episodes) - old)[mask].exp()
    assert rollout.metrics[SERIES[2]] == pytest.approx(float(ratio.max()), rel=1e-4)
    assert float(ratio.max()) != pytest.approx(float((1 / ratio).max()), rel=1e-2)


@pytest.mark.parametrize("knobs", [{"rollout__correction": "truncated"}, {"rollout__correction": "masked"}])
def test_a_policy_that_stands_still_is_corrected_by_nothing(tmp_path: Path, knobs: dict[str, Any]) -> None:
    still = {"optimiser__lr": 0.0, "critic__head_lr": 0.0}
    base = trainer(tmp_path / "base", **still)._rollout()
    old = trainer(tmp_path / "old", rollout__every=2, **still, **knobs)._rollout()
    assert torch.equal(old.episodes.responses, base.episodes.responses)
    assert torch.allclose(old.advantages, base.advantages, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_rounded_sampler_differs_from_the_policy_by_its_rounding(tmp_path: Path, dtype: str) -> None:
    one = trainer(tmp_path, rollout__dtype=dtype)
    metrics = one._rollout().metrics
    assert 0 < metrics[SERIES[0]] < 1e-2
    assert next(one.actor.parameters()).dtype == torch.float32
    sampler = one.rollout_context.terms.behaviour(one.actor.lm)  # type: ignore[misc]
    assert {weight.dtype for weight in sampler.parameters()} == {getattr(torch, dtype)}
    assert {buffer.dtype for buffer in sampler.buffers()} == {torch.float32}


def test_the_largest_ratio_bounds_every_advantage(tmp_path: Path) -> None:
    outcomes = {}
    for kind in ("none", "truncated", "masked"):
        knobs: dict[str, Any] = {} if kind == "none" else {"rollout__correction": kind, "rollout__most": 1.0}
        one = trainer(tmp_path / kind, rollout__every=2, algorithm__whiten_advantages=False, **knobs)
        one._one_update()
        one.rollout_context.actor.load_state_dict(
            {name: tensor * 1.05 for name, tensor in one.rollout_context.actor.state_dict().items()}
        )
        outcomes[kind] = one._rollout()
    plain, cut, dropped = (outcomes[kind].advantages for kind in ("none", "truncated", "masked"))
    mask = outcomes["none"].episodes.response_mask
    assert (cut.abs() <= plain.abs() + 1e-6).all()
    out = (dropped == 0) & mask
    assert 0 < out.sum() < mask.sum()
    assert torch.allclose(cut[out], plain[out])
    assert torch.allclose(dropped[~out], cut[~out])


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({**preset("dpo"), "rollout__every": 2}, "train.data is 'pairs'"),
        ({**preset("rloo"), "rollout__every": 2, "rollout__correction": "masked"}, "one advantage for a response"),
        ({"adapter__kind": "lora", "adapter__quantize": "4bit", "rollout__dtype": "bfloat16"}, "are quantized"),
    ],
)
def test_what_cannot_be_is_refused(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        trial_config(**knobs)
