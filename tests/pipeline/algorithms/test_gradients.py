from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tinytrial import CLOSES, EOS, ROUNDING, TRAINED, VOCAB, moved, preset, samples, trainer
from torch import Tensor

from pipeline.training.trainer import Trainer

RLOO, A_STAR_PO = preset("rloo"), preset("a_star_po")
MINI = [6, 1, 3, 4]
WHOLE_K2 = {"kl__loss_estimator": "k2", "kl__group": "sequence"}
OF_PAIRS = {name for name in TRAINED if preset(name).get("algorithm__advantage") == "preference"}
LOSSES: dict[str, dict[str, Any]] = {
    **{name: preset(name) for name in TRAINED if name not in OF_PAIRS},  # these: test_pairs.py
    "trpo": {**preset("trpo"), "critic__vf_coef": 0.1},  # of a network of its own
    "a shared critic": {"critic__vf_coef": 0.5, "critic__cliprange": 0.05},
    "penalty on means": {**preset("ppo_penalty"), "algorithm__aggregation": "seq_mean_token_mean"},
    "k2 in the loss": {**RLOO, "kl__place": "loss"},
    "entropy": {**RLOO, "entropy__coef": 0.05},
    "whole responses by tokens, both as wholes": {**RLOO, "kl__place": "loss", "kl__group": "sequence"},
    "mean ratio, penalty on whole responses": {**preset("gspo"), **WHOLE_K2},
    "tokens, penalty on whole responses": {**preset("grpo"), **WHOLE_K2},
    "penalty on clauses": {"kl__place": "loss", "kl__group": "clause"},
    "penalty on the last token of a clause": {"kl__place": "loss", "kl__group": "clause", "kl__group_credit": "last"},
    "penalty on sentences by k3": {**preset("gspo"), "kl__group": "sentence"},
    "mean ratio, penalty on last tokens": {**preset("gspo"), "kl__group": "sentence", "kl__group_credit": "last"},
    "sums of tokens, at a temperature": {
        **preset("grpo"),
        "algorithm__aggregation": "seq_mean_token_sum",
        "train__temperature": 0.7,
    },
    "whole responses by tokens": {**RLOO, "algorithm__aggregation": "token_mean", "kl__place": "loss"},
    "mean ratio in the loss": {**preset("gspo"), "entropy__coef": 0.05, "algorithm__aggregation": "constant"},
}


def plain_losses(one: Trainer, rollout: Any, mini: list[int]) -> tuple[Tensor, Tensor]:
    """The surrogate of the policy and the whole loss, with that of a shared critic, one response at a time, by the
    formulas of the configuration."""
    cfg, knobs = one.cfg, one.cfg.algorithm
    lengths = rollout.episodes.lengths[mini]
    n_all, each_row = int(lengths.sum()), []
    for row in mini:
        n = int(rollout.episodes.lengths[row])
        log_pi, values = one.actor(rollout.episodes.take(torch.tensor([row])), cfg.train.temperature)
        new = log_pi[range(n), rollout.episodes.responses[row, :n]]
        old, ref = rollout.measured.logprobs[row, :n], rollout.measured.ref_logprobs[row, :n]
        weight = {
            "token_mean": 1 / n_all, "seq_mean_token_mean": 1 / (len(mini) * n), "seq_mean_token_sum": 1 / len(mini),
            "constant": 1 / (len(mini) * cfg.train.response_length),
        }[knobs.aggregation]  # fmt: skip
        advantage, d = rollout.advantages[row, :n], new - ref
        if knobs.ratio.startswith("sequence"):
            level = (new - old).mean() if knobs.ratio == "sequence_mean" else (new - old).sum()
            surrogate = bounded(level.exp(), new, advantage[:1], knobs).sum() * weight * n
            beside = weight * (1 if knobs.ratio == "sequence_mean" else n)
        else:
            surrogate = (bounded((new - old).exp(), new, advantage, knobs) * weight).sum()
            beside = weight
        if cfg.kl.group != "token":
            d = torch.stack(of_groups(d, rollout.episodes.responses[row, :n].tolist(), cfg.kl))
        k3 = (-d).exp() - 1 + d
        penalty = (0.5 * d * d if cfg.kl.loss_estimator == "k2" else k3).sum()
        bonus = -(log_pi.exp() * log_pi).sum()
        rest = (0.3 * penalty if cfg.kl.place == "loss" else 0.0) - cfg.entropy.coef * bonus
        if knobs.trust_region == "kl_penalty":
            rest = rest + 3 * ((new - old).exp() - 1 - (new - old)).sum()
        whole = surrogate + beside * rest
        if cfg.critic.kind == "shared":
            before, returns = rollout.measured.values[row, :n], rollout.returns[row, :n]
            near = values.clamp(before - cfg.critic.cliprange, before + cfg.critic.cliprange)
            errors = torch.max((values - returns) ** 2, (near - returns) ** 2)
            whole = whole + cfg.critic.vf_coef * 0.5 * errors.sum() / n_all
        each_row.append(torch.stack([surrogate, whole]))
    return tuple(torch.stack(each_row).sum(0))  # type: ignore[return-value]


def of_groups(d: Tensor, tokens: list[int], kl: Any) -> list[Tensor]:
    """Sums of log-ratios over the groups of one response; with credit `last`, only the last token of each moves."""
    closes = CLOSES.get(kl.group, torch.zeros(VOCAB).bool())
    sums, begin = [], 0
    for place, token in enumerate(tokens):
        if closes[token] or place == len(tokens) - 1:
            before = d[begin:place].sum()
            sums.append(d[place] + (before.detach() if kl.group_credit == "last" else before))
            begin = place + 1
    return sums


def bounded(ratio: Tensor, new: Tensor, advantages: Tensor, knobs: Any) -> Tensor:
    low, high = knobs.clip.epsilons
    if knobs.ratio == "none":
        return -advantages * new
    if knobs.trust_region == "cispo":
        return -ratio.detach().clamp(max=5.0) * advantages * new
    if knobs.trust_region in ("kl_penalty", "trpo"):
        return -ratio * advantages
    return -torch.min(advantages * ratio, advantages * ratio.clamp(1 - low, 1 + high))


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_the_plain_loss(tmp_path: Path, name: str) -> None:
    """Through the network, cut into micro-batches, on a policy that has moved since the rollout."""
    knobs = {"critic__vf_coef": 0.0, **LOSSES[name]}
    one = trainer(tmp_path, runtime__micro_batch_size=3, kl__beta=0.3, optimiser__max_grad_norm=1e9, **knobs)
    if "old_kl" in one.parts:
        one.parts["old_kl"].coef = 3.0  # type: ignore[attr-defined]
    trained = list(one.actor.lm.parameters())
    if one.cfg.critic.kind == "shared":
        torch.nn.init.normal_(one.actor.value_head.weight, generator=torch.Generator().manual_seed(5))
        trained += one.actor.value_head.parameters()
    rollout = one._rollout()
    surrogate, whole = plain_losses(moved(one, 0.02), rollout, MINI)
    gradients = torch.autograd.grad(whole, trained)
    step = one.learner.accumulate(rollout, torch.tensor(MINI))
    one.learner.clip()
    assert step["policy/pg_loss"] == pytest.approx(surrogate.item(), rel=1e-4, abs=1e-6)
    for parameter, gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=ROUNDING)


def soft_maximum(row: int, beta: float) -> float:
    """V* of a prompt by the definition; a response of 10 tokens has no EOS, and -1 instead of its score."""
    proxy, _, ended = samples()
    pairs = zip(proxy[row], ended[row], strict=True)
    return beta * math.log(sum(math.exp((float(score) if ended else -1.0) / beta) for score, ended in pairs) / 4)


@pytest.mark.parametrize("beta", [0.5, 1.0, 5.0])
def test_every_prompt_has_its_own_v_star_by_its_number(tmp_path: Path, beta: float) -> None:
    one = trainer(tmp_path, **A_STAR_PO, algorithm__v_star__beta=beta)
    rows, rollout, v_star = one._prompts().tolist(), one._rollout(), one.data.v_star
    assert v_star is not None
    assert v_star.dtype == torch.float64
    final = torch.where(rollout.episodes.ended, rollout.scores.proxy, -1.0)
    wanted = [float(score) - soft_maximum(row, beta) for score, row in zip(final, rows, strict=True)]
    assert rollout.advantages[:, 0].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert rows != sorted(rows), "the order of the rollout is not that of the prompts"


def test_a_penalty_in_the_score_is_compared_and_one_on_the_tokens_is_not(tmp_path: Path) -> None:
    """A policy that has moved: the sums within a prompt stay 0 in one place, and fall below it in the other."""
    sums = {}
    for place in ("score", "reward"):
        one = moved(trainer(tmp_path / place, kl__beta=0.3, **{**preset("grpo"), "kl__place": place}), 0.1)
        rollout = one._rollout()
        penalty = -0.3 * (rollout.measured.logprobs - rollout.measured.ref_logprobs).sum(1)
        assert rollout.metrics["objective/non_score_reward"] == pytest.approx(float(penalty.mean()), rel=1e-4)
        sums[place] = rollout.advantages[:, 0].view(2, 4).sum(1).tolist()
        if place == "score":
            final = torch.where(rollout.episodes.ended, rollout.scores.proxy, -1.0) + penalty
            groups = final.view(2, 4)
            wanted = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
            torch.testing.assert_close(rollout.advantages[:, 0].view(2, 4), wanted, rtol=1e-4, atol=1e-4)
    assert sums["score"] == pytest.approx([0.0, 0.0], abs=1e-5)
    assert max(sums["reward"]) < -0.01


@pytest.mark.parametrize(("each", "temperature"), [(1, 1.0), (4, 0.7)])
def test_the_greedy_response_is_scored_pays_for_its_kl_and_is_charged(
    tmp_path: Path, each: int, temperature: float
) -> None:
    """A policy that has moved, against an argmax loop without a cache."""
    knobs = {**preset("remax"), "train__responses_per_prompt": each, "train__temperature": temperature}
    one = moved(trainer(tmp_path, kl__beta=0.3, **knobs), 0.1)
    (queries, query_mask), nets = (
        one.rollout_context.prompts(one._prompts()),
        (one.actor.lm, one.rollout_context.reference),
    )
    rollout = one._rollout()
    worth, tokens = [], []
    for row in range(0, 8, each):
        text = queries[row][query_mask[row]].tolist()
        response, penalty = list[int](), 0.0
        while len(response) < one.cfg.train.response_length and (not response or response[-1] != EOS):
            with torch.no_grad():
                logits = (net(torch.tensor([text + response])).logits[0, -1] / temperature for net in nets)
                now, ref = (of_net.log_softmax(0) for of_net in logits)
            response.append(int(now.argmax()))
            penalty -= 0.3 * float(now.max() - ref[now.argmax()])
        low = sum(token < 10 for token in response) / len(response) * 2 - 0.5
        worth.append((low if response[-1] == EOS else -1.0) + penalty)
        tokens.append(len(response))
    assert rollout.metrics["objective/greedy_reward"] == pytest.approx(sum(worth) / len(worth), rel=1e-4)
    assert rollout.sampled_tokens == int(rollout.episodes.lengths.sum()) + sum(tokens)
    d = rollout.measured.logprobs - rollout.measured.ref_logprobs
    for row in range(8):
        n = int(rollout.episodes.lengths[row])
        score = float(rollout.scores.proxy[row]) if rollout.episodes.ended[row] else -1.0
        wanted = score - 0.3 * float(d[row, :n].sum()) - worth[row // each]
        assert float(rollout.advantages[row, 0]) == pytest.approx(wanted, abs=1e-4)
