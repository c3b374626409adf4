"""Samples beside a rollout, judged as its responses are: greedy responses as a baseline, and states of it, sampled
onwards by the policy that made it."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.algorithms.base import Judged, Replayed
from pipeline.algorithms.gae import starts
from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.algorithms.mathematics.advantages import to_go
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import Episodes
from pipeline.models.seeding import permutation, uniforms
from pipeline.training.judging import RolloutContext, judge_beside


def greedy_baseline(context: RolloutContext, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Score and KL penalty of the greedy responses to the prompts of B rows, given by their numbers, each sampled once;
    (B,) in score units. And their valid tokens, (B,) int64 on the first row of each prompt, 0 on the others."""
    _, place, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
    first = counts.cumsum(0) - counts
    with context.timed("generate"):
        episodes = context.sampler.greedy(*context.prompts(rows[first]), context.cfg.train.response_length)
    with context.timed("score"), torch.no_grad():
        judged = judge_beside(context, episodes, rows[first].tolist())
    rewards = judged.scores + judged.non_score.sum(1)
    once = torch.zeros(len(rows), dtype=torch.long, device=rewards.device)
    once[first] = episodes.lengths
    return rewards[place.to(rewards.device)], once


def replay(
    context: RolloutContext, prompts: Tensor, episodes: Episodes, share: slice, update: int
) -> tuple[Replayed, Tensor]:
    """Sample the states of these episodes onwards, those of the rows `share` of a rollout; with the tokens sampled for
    each row, (B,) int64. Raises `MemoryFull`."""
    cfg, mask = context.cfg, episodes.response_mask
    chosen = torch.zeros(len(prompts), dtype=torch.bool)
    some = max(round(cfg.replay.share * len(prompts)), 1)
    chosen[permutation(len(prompts), cfg.train.seed, "replayed", update)[:some]] = True
    known = starts(episodes.lengths, mask.shape[1], cfg.replay.every) & chosen[share].to(mask.device).unsqueeze(1)
    values, noise = torch.zeros_like(mask, dtype=torch.float32), torch.zeros_like(mask, dtype=torch.float32)
    tokens = torch.zeros_like(episodes.lengths)
    for t in known.any(0).nonzero().flatten().tolist():
        rows = known[:, t].nonzero().flatten()
        returns, sampled = _continued(context, prompts, episodes, share, rows, t, update)
        values[rows, t] = returns.mean(1)
        noise[rows, t] = returns.var(1) / returns.shape[1] if returns.shape[1] > 1 else torch.nan
        tokens[rows] += sampled.sum(1)
    return Replayed(values, known, noise), tokens


def _continued(
    context: RolloutContext,
    prompts: Tensor,
    episodes: Episodes,
    share: slice,
    rows: Tensor,
    t: int,
    update: int,
) -> tuple[Tensor, Tensor]:
    """Return the rewards to go from token `t` of K continuations of n rows, and their sampled tokens; (n, K) each."""
    cfg, each = context.cfg, context.cfg.replay.continuations
    with context.timed("generate"):
        every = uniforms(len(prompts) * each, cfg.train.response_length - t, cfg.train.seed, "replay", update, t)
        noise = every.view(len(prompts), each, -1)[share][rows.cpu()].flatten(0, 1)
        begun = episodes.take(rows.repeat_interleave(each))
        width = begun.context_length + t
        prefix = begun.response_mask[:, :t]
        found = context.sampler.sample(
            begun.query_responses[:, :width], torch.cat([begun.query_mask, prefix], 1), noise
        )
        whole = Episodes(
            found.query_responses, begun.query_mask, torch.cat([prefix, found.response_mask], 1), found.ended
        )
    with context.timed("score"), torch.no_grad():
        judged = judge_beside(context, whole, prompts[share][rows.cpu()].repeat_interleave(each).tolist())
        rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
        returns = to_go(rewards, whole.response_mask, discount(cfg))[:, t]
    return returns.view(-1, each), found.lengths.view(-1, each)


def discount(cfg: TrialConfig) -> float:
    """Discount of the rewards to go: the critic's; advantages from state to state have none."""
    return 1.0 if ADVANTAGES[cfg.algorithm.advantage].replay else cfg.algorithm.gamma


def replay_metrics(judged: Judged, replayed: Replayed, tokens: Tensor, gamma: float) -> dict[str, float]:
    """Compare a rollout's returns and the critic's values with the replayed states, and count what these took."""
    known, worth, values = replayed.known, replayed.values, judged.values
    returns = to_go(token_rewards(judged.scores, judged.non_score, judged.mask), judged.mask, gamma)[known]
    left, spread = (returns - worth[known]).var(correction=0), returns.var(correction=0)
    found = {"replay/tokens": float(tokens.sum()), "replay/states": float(known.sum())}
    if spread > 0:
        found["replay/explained_variance"] = float(1 - left / spread)
    noise = replayed.noise[known].mean()
    if torch.isfinite(noise):
        found["replay/standard_error"] = float(noise.sqrt())
    if values is not None:
        error = values[known] - worth[known]
        found["replay/critic_bias"] = float(error.mean())
        if torch.isfinite(noise):  # the values' own noise is not the critic's error
            found["replay/critic_error"] = float((error.square().mean() - noise).clamp(min=0).sqrt())
    return found
