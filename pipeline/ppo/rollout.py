"""Steps 1 to 5 of an update: sample, cut, score, measure, shape. The result is what the epochs train on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.config import PpoConfig
from pipeline.models.generation import sample
from pipeline.models.loading import CausalLM
from pipeline.models.policy import ActorCritic, Episodes, response_hidden, to_grid
from pipeline.models.seeding import uniforms
from pipeline.ppo.advantages import explained_variance, gae
from pipeline.ppo.kl import k3
from pipeline.ppo.masking import masked_mean, masked_whiten
from pipeline.ppo.measure import token_stats
from pipeline.ppo.shaping import handle_missing_eos, non_score_reward, token_rewards


class Diverged(Exception):
    """The numbers are no longer finite; an outcome of the trial, not a fault of the program."""


@dataclass(frozen=True)
class Scores:
    """What a rollout is worth, and the texts that were judged."""

    proxy: Tensor
    """(B,) calibrated training reward."""
    gold: Tensor
    """(B,) judge points; recorded, never trained on."""
    prompts: Sequence[str]
    texts: Sequence[str]


ScoreFn = Callable[[Episodes, Sequence[int]], Scores]
"""Scores episodes whose prompts have the given indices."""


@dataclass(frozen=True)
class Rollout:
    """One batch of episodes with everything the losses need; grids are (B, T), 0 on invalid tokens."""

    episodes: Episodes
    logprobs: Tensor
    ref_logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    scores: Scores
    metrics: dict[str, float]


def collect(
    actor: ActorCritic,
    reference: CausalLM,
    score: ScoreFn,
    queries: Tensor,
    query_mask: Tensor,
    rows: Sequence[int],
    update: int,
    kl_coef: float,
    cfg: PpoConfig,
    batch: int,
    tokens: dict[str, int],
    timed: Callable[[str], Any],
) -> Rollout:
    """Sample and measure the rollout of one update.

    queries (B, P), query_mask (B, P) of the prompts with indices `rows`; `batch` rows are in memory at once
    and change nothing; `tokens` has ``eos_id`` and ``pad_id``; `timed` is a context manager per phase.
    Raises `Diverged` when what was sampled or measured is not finite.
    """
    with timed("generate"):
        # 1 sample responses; 2 cut after EOS
        noise = uniforms(len(rows), cfg.response_length, cfg.seed, "rollout", update)
        episodes = sample(actor.lm, queries, query_mask, noise, temperature=cfg.temperature, batch=batch, **tokens)
        episodes = episodes.take(slice(None))
    with timed("score"), torch.inference_mode():
        # 3 score the cut text
        scores = score(episodes, rows)
        proxy = scores.proxy.to(queries.device)
        final = handle_missing_eos(proxy, episodes.ended, cfg.missing_eos, cfg.missing_eos_penalty)
        # 4 log-probs, reference log-probs and values by the training forward
        logprobs, ref_logprobs, values, kl_exact = measure(actor, reference, episodes, cfg.temperature, batch)
        # 5 rewards, GAE, returns, whitening
        mask = episodes.response_mask
        non_score = non_score_reward(logprobs, ref_logprobs, mask, kl_coef)
        rewards = token_rewards(final, non_score, mask)
        if cfg.whiten_rewards:
            rewards = masked_whiten(rewards, mask, shift_mean=False)
        advantages, returns = gae(rewards, values, mask, cfg.gamma, cfg.gae_lambda)
        spread = explained_variance(values, returns, mask)
        if cfg.whiten_advantages:
            advantages = masked_whiten(advantages, mask)
        metrics = rollout_metrics(episodes, logprobs, ref_logprobs, kl_exact, proxy, scores.gold, final, non_score, kl_coef)
        bad = [key for key, value in metrics.items() if not math.isfinite(value)]
        if bad:
            raise Diverged(f"not finite: {', '.join(bad)}")
        if math.isfinite(spread):
            metrics["value/explained_variance"] = spread
    # Clones outside inference mode are ordinary tensors, which the training step may save for its backward pass.
    logprobs, ref_logprobs, values = logprobs.clone(), ref_logprobs.clone(), values.clone()
    return Rollout(episodes, logprobs, ref_logprobs, values, advantages.clone(), returns.clone(), scores, metrics)


def measure(
    actor: ActorCritic, reference: CausalLM, episodes: Episodes, temperature: float, batch: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, reference log-probs, values and exact KL of every valid token, each (B, T)."""
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, len(episodes.ended), batch):
        chunk = episodes.take(slice(start, start + batch))
        hidden, values = actor.hidden_and_values(chunk)
        stats = token_stats(actor.lm, hidden, reference, response_hidden(reference, chunk), chunk.labels, temperature)
        parts.append((stats.logprobs, stats.ref_logprobs, values, stats.kl))
    flat = [torch.cat(column) for column in zip(*parts, strict=True)]
    logprobs, ref_logprobs, values, kl = (to_grid(one, episodes.response_mask) for one in flat)
    return logprobs, ref_logprobs, values, kl


def rollout_metrics(
    episodes: Episodes,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    kl_exact: Tensor,
    proxy: Tensor,
    gold: Tensor,
    final: Tensor,
    non_score: Tensor,
    kl_coef: float,
) -> dict[str, float]:
    """The ``objective/*`` series of one rollout; definitions in pipeline/metrics.py."""
    mask = episodes.response_mask
    d = logprobs - ref_logprobs
    per_sequence = non_score.sum(1)
    return {
        "objective/kl": float(d.sum(1).mean()),
        "objective/kl_per_token": float(masked_mean(d, mask)),
        "objective/kl_k3_per_token": float(masked_mean(k3(d), mask)),
        "objective/kl_exact_per_token": float(masked_mean(kl_exact, mask)),
        "objective/entropy": float(-logprobs.sum(1).mean()),
        "objective/scores": float(proxy.mean()),
        "objective/scores_std": float(proxy.std(correction=0)),
        "objective/gold": float(gold.mean()),
        "objective/non_score_reward": float(per_sequence.mean()),
        "objective/rlhf_reward": float((final + per_sequence).mean()),
        "objective/length": float(episodes.lengths.float().mean()),
        "objective/eos_rate": float(episodes.ended.float().mean()),
        "objective/kl_coef": kl_coef,
    }
