"""Every named algorithm in a trial: its loss against autograd on the plain formula, and a trial without a critic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from naive import drawn, prefix
from tinytrial import CLOSES, EOS, ROUNDING, TRAINED, VOCAB, preset, run, trainer
from torch import Tensor

from pipeline.algorithms.aggregation import response_weights
from pipeline.algorithms.surrogates import clipped
from pipeline.algorithms.terms import Tokens
from pipeline.models.policy import to_grid
from pipeline.training.rollout import collect
from pipeline.training.surrogate_loss import of_sequences, of_tokens, to_tokens
from pipeline.training.trainer import Trainer
from pipeline.training.update import accumulate, clip

MASK = prefix([[1, 2], [3], [4, 5, 6], [7]])
RLOO = preset("rloo")

# --- the loss of whole responses ---------------------------------------------------------------------------


def sequences(spread: float) -> tuple[Tokens, Tensor, Tensor]:
    """Tokens of four responses, their mask, and log-probs of now."""
    n = int(MASK.sum())
    old, new = -drawn(n, seed=2).abs(), -drawn(n, seed=2).abs() + spread * drawn(n, seed=3)
    advantages = torch.where(MASK, drawn(4, 1, seed=4), 0.0)[MASK]
    return Tokens(old, old, advantages, None, None), MASK, new


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("level", ["sequence_sum", "sequence_mean"])
@pytest.mark.parametrize("knobs", [{}, {"algorithm__dual_clip": 1.5}])
def test_two_passes_have_the_gradient_of_the_plain_loss(spread: float, level: str, knobs: dict[str, Any]) -> None:
    """max(-A r, -A clip(r)) with r = exp(sum or mean of new - old), mean over responses, by autograd in float64."""
    batch, mask, new = sequences(spread)
    width = {"algorithm__cliprange": 0.01} if level == "sequence_mean" else {}
    cfg = trial_config(**RLOO | knobs | width | {"algorithm__ratio": level}).algorithm
    low, high = 1 - cfg.cliprange, 1 + cfg.cliprange
    plain = new.clone().requires_grad_()
    apart = to_grid(plain, mask).sum(1) - to_grid(batch.logprobs, mask).sum(1)
    ratio = (apart / mask.sum(1) if level == "sequence_mean" else apart).exp()
    advantages = to_grid(batch.advantages, mask)[:, 0]
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
    if cfg.dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -cfg.dual_clip * advantages), losses)
    losses.mean().backward()

    tokens, each = mask.sum(), mask.sum().double() / 4
    objective = of_sequences(clipped, batch, mask, new, each.expand(4), each, cfg)
    ours = new.clone().requires_grad_()
    total = sum(objective.loss(rows, ours[rows]).sum() for rows in (slice(0, 3), slice(3, 7)))
    assert isinstance(total, Tensor)
    (total / tokens).backward()
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-12, atol=1e-12)
    means = {name: float(value / tokens) for name, value in objective.sums(new).items()}
    assert means["policy/pg_loss"] == pytest.approx(losses.mean().item(), rel=1e-6)
    clips = (-advantages * ratio.clamp(low, high) > -advantages * ratio).double().mean()
    assert means["policy/pg_clipfrac"] == pytest.approx(clips)


def gradient_of(knobs: dict[str, Any]) -> Tensor:
    """Of the loss at ratio 1, by every token's log-prob: four responses, of which the longest could have 5 tokens."""
    batch, mask, _ = sequences(0.0)
    cfg, tokens = trial_config(**knobs).algorithm, MASK.sum()
    weights, leaf = response_weights(mask.sum(1), tokens, 4, 5, cfg), batch.logprobs.clone().requires_grad_()
    if cfg.by_sequence:
        objective = of_sequences(clipped, batch, mask, batch.logprobs, weights, tokens / 4, cfg)
    else:
        objective = of_tokens(clipped, batch, to_tokens(weights / mask.sum(1), mask), cfg)
    (objective.loss(slice(None), leaf).sum() / tokens).backward()
    return torch.as_tensor(leaf.grad)


def test_at_ratio_one_gspo_is_grpo() -> None:
    torch.testing.assert_close(gradient_of(preset("gspo")), gradient_of(preset("grpo")), rtol=1e-6, atol=1e-8)


def test_sums_of_tokens_and_a_constant_differ_by_a_factor() -> None:
    sums = gradient_of({**preset("grpo"), "algorithm__aggregation": "seq_mean_token_sum"})
    torch.testing.assert_close(sums, 5 * gradient_of(preset("dr_grpo")), rtol=1e-6, atol=1e-8)


# --- a trial -----------------------------------------------------------------------------------------------

WHOLE_K2 = {"kl__loss_estimator": "k2", "kl__group": "sequence"}
OF_PAIRS = {name for name in TRAINED if preset(name).get("algorithm__advantage") == "preference"}
LOSSES: dict[str, dict[str, Any]] = {
    **{name: preset(name) for name in TRAINED if name not in OF_PAIRS},  # these: test_pairs.py
    "trpo": {**preset("trpo"), "critic__vf_coef": 0.1},  # of a network of its own
    "strong penalty": {**preset("ppo_penalty"), "algorithm__old_kl_coef": 5.0},
    "penalty on means": {**preset("ppo_penalty"), "algorithm__aggregation": "seq_mean_token_mean"},
    "k2 in the loss": {**RLOO, "kl__place": "loss"},
    "entropy": {**RLOO, "entropy__coef": 0.05},
    "temperature": {**RLOO, "train__temperature": 0.7},
    "whole responses by tokens, both as wholes": {**RLOO, "kl__place": "loss", "kl__group": "sequence"},
    "mean ratio, penalty on whole responses": {**preset("gspo"), **WHOLE_K2},
    "tokens, penalty on whole responses": {**preset("grpo"), **WHOLE_K2},
    "penalty on clauses": {"kl__place": "loss", "kl__group": "clause"},
    "penalty on the last token of a clause": {"kl__place": "loss", "kl__group": "clause", "kl__group_credit": "last"},
    "penalty on sentences by k3": {**preset("gspo"), "kl__group": "sentence"},
    "mean ratio, penalty on last tokens": {**preset("gspo"), "kl__group": "sentence", "kl__group_credit": "last"},
    "weighted k3": {**preset("grpo"), "kl__loss_estimator": "ratio_k3"},
    "sums of tokens": {**preset("grpo"), "algorithm__aggregation": "seq_mean_token_sum"},
    "whole responses by tokens": {**RLOO, "algorithm__aggregation": "token_mean", "kl__place": "loss"},
    "mean ratio in the loss": {**preset("gspo"), "entropy__coef": 0.05, "algorithm__aggregation": "constant"},
}


def plain_losses(one: Trainer, rollout: Any, mini: list[int]) -> tuple[Tensor, Tensor]:
    """The policy's surrogate and the whole loss, by the formulas of the configuration, one response at a time."""
    cfg, knobs = one.cfg, one.cfg.algorithm
    lengths = rollout.episodes.lengths[mini]
    n_all, each_row = int(lengths.sum()), []
    for row in mini:
        n = int(rollout.episodes.lengths[row])
        log_pi, _ = one.actor(rollout.episodes.take(torch.tensor([row])), cfg.train.temperature)
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
        if cfg.kl.loss_estimator == "ratio_k3":
            penalty = ((new - old).exp() * k3).sum()
        bonus = -(log_pi.exp() * log_pi).sum()
        rest = (0.3 * penalty if cfg.kl.place == "loss" else 0.0) - cfg.entropy.coef * bonus
        if knobs.trust_region == "kl_penalty":
            rest = rest + knobs.old_kl_coef * ((new - old).exp() - 1 - (new - old)).sum()
        each_row.append(torch.stack([surrogate, surrogate + beside * rest]))
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
    low, high = knobs.epsilons
    if knobs.ratio == "none":
        return -advantages * new
    if knobs.trust_region == "cispo":
        return -ratio.detach().clamp(max=knobs.ratio_cap) * advantages * new
    if knobs.trust_region in ("kl_penalty", "trpo"):
        return -ratio * advantages
    return -torch.min(advantages * ratio, advantages * ratio.clamp(1 - low, 1 + high))


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_the_plain_loss(tmp_path: Path, name: str) -> None:
    """Through the network, cut into micro-batches, on a policy that has moved since the rollout."""
    knobs = {"critic__vf_coef": 0.0, **LOSSES[name]}
    one = trainer(tmp_path, runtime={"micro_batch_size": 3}, kl__beta=0.3, optimiser__max_grad_norm=1e9, **knobs)
    rollout = collect(one.rollout_context, one._prompts(), 0, 0.3)
    with torch.no_grad():
        for seed, parameter in enumerate(one.actor.lm.parameters()):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    mini = [6, 1, 3, 4]
    surrogate, whole = plain_losses(one, rollout, mini)
    gradients = torch.autograd.grad(whole, list(one.actor.lm.parameters()))
    step = accumulate(rollout, torch.tensor(mini), one.learner)
    clip(one.learner)
    assert step["policy/pg_loss"] == pytest.approx(surrogate.item(), rel=1e-4, abs=1e-6)
    for parameter, gradient in zip(one.actor.lm.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=ROUNDING)


def test_whitening_is_over_responses_whatever_their_lengths(tmp_path: Path) -> None:
    one = trainer(tmp_path, kl__beta=0.3, **{**RLOO, "algorithm__whiten_advantages": True})
    rollout = collect(one.rollout_context, one._prompts(), 0, 0.3)
    assert len(set(rollout.episodes.lengths.tolist())) > 1
    first, mask = rollout.advantages[:, 0], rollout.episodes.response_mask
    assert (first.mean().item(), first.var(correction=0).item()) == pytest.approx((0.0, 1.0), abs=1e-5)
    assert torch.equal(rollout.advantages, torch.where(mask, first.unsqueeze(1), 0.0))


def test_responses_of_one_prompt_stand_together_and_share_their_baseline(tmp_path: Path) -> None:
    one = trainer(tmp_path, kl__beta=0.3, **RLOO)
    prompts = one._prompts()
    assert [len(set(prompts.rows[start : start + 4])) for start in (0, 4)] == [1, 1]
    assert prompts.rows[0] != prompts.rows[4]
    rollout = collect(one.rollout_context, prompts, 0, 0.3)
    assert len({tuple(row) for row in rollout.episodes.responses[:4].tolist()}) > 1
    torch.testing.assert_close(rollout.advantages[:, 0].view(2, 4).sum(1), torch.zeros(2), rtol=0, atol=1e-5)


def test_a_penalty_in_the_score_is_compared_and_one_on_the_tokens_is_not(tmp_path: Path) -> None:
    """On a policy that has moved: the sums within a prompt stay 0 in one place, and fall below it in the other."""
    sums = {}
    for place in ("score", "reward"):
        one = trainer(tmp_path / place, kl__beta=0.3, **{**preset("grpo"), "kl__place": place})
        with torch.no_grad():
            for seed, parameter in enumerate(one.actor.lm.parameters()):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
        rollout = collect(one.rollout_context, one._prompts(), 0, 0.3)
        assert rollout.metrics["objective/non_score_reward"] < -0.01
        sums[place] = rollout.advantages[:, 0].view(2, 4).sum(1).tolist()
    assert sums["score"] == pytest.approx([0.0, 0.0], abs=1e-5)
    assert max(sums["reward"]) < -0.01


@pytest.mark.parametrize("name", [name for name in TRAINED if preset(name).get("critic__kind") == "none"])
def test_without_a_critic_nothing_of_one_is_left(tmp_path: Path, name: str) -> None:
    outcome, rows, state = run(tmp_path, **preset(name))
    assert (outcome.status, outcome.episodes) == ("complete", 48), "as many episodes as any other algorithm"
    assert not any(key.startswith("value/") for row in rows.values() for key in row)
    first = [sample["prompt"] for sample in outcome.samples if sample["step"] == 0]
    assert len(first) == len(set(first)), "one response of each prompt is kept to be read"
    assert not any("value_head" in key or "critic" in key for key in state)
    loss = "policy/ratio" if name == "online_dpo" else "policy/pg_loss"  # its pairs may all have equal scores
    assert all(loss in row for step, row in rows.items() if step % 4 == 1)
    assert rows[4]["objective/kl_exact_per_token"] > 0


@pytest.mark.parametrize(("each", "temperature"), [(1, 1.0), (4, 0.7)])
def test_the_greedy_response_is_scored_pays_for_its_kl_and_is_charged(
    tmp_path: Path, each: int, temperature: float
) -> None:
    """On a policy that has moved, against an argmax loop without a cache."""
    knobs = {**preset("remax"), "train__responses_per_prompt": each, "train__temperature": temperature}
    one = trainer(tmp_path, kl__beta=0.3, **knobs)
    with torch.no_grad():
        for seed, parameter in enumerate(one.actor.lm.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    prompts, nets = one._prompts(), (one.actor.lm, one.rollout_context.reference)
    rollout = collect(one.rollout_context, prompts, 0, 0.3)
    worth, tokens = [], []
    for row in range(0, 8, each):
        text = prompts.queries[row][prompts.query_mask[row]].tolist()
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


def test_the_share_of_prompts_whose_responses_have_one_score_is_said(tmp_path: Path) -> None:
    """Where every response is cut, all have the score of a missing EOS, whatever KL penalty each pays in its score."""
    one = trainer(tmp_path, **{**preset("grpo"), "train__response_length": 1, "kl__place": "score"})
    with torch.no_grad():
        one.actor.lm.get_output_embeddings().weight.mul_(0.5)
    rollout = collect(one.rollout_context, one._prompts(), 0, 0.3)
    assert rollout.metrics["objective/non_score_reward"] != 0
    final = torch.where(rollout.episodes.ended, rollout.scores.proxy, -1.0).view(-1, 4)
    equal = [len(set(row)) == 1 for row in final.tolist()]
    assert rollout.metrics["objective/equal_groups"] == sum(equal) / len(equal) > 0
