"""Replayed states: sampled onwards from a rollout by the policy that made it, and scored as its responses are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.algorithms.base import Judged, Replayed
from pipeline.algorithms.mathematics.advantages import to_go
from pipeline.algorithms.mathematics.replay import starts
from pipeline.algorithms.mathematics.shaping import beta_in_reward, token_rewards
from pipeline.config.presets import ADVANTAGES
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import Episodes
from pipeline.models.seeding import permutation, uniforms
from pipeline.training.judging import Prompts, RolloutContext, final_scores, judge, measure, score_in_parts, shaped
from pipeline.training.processes import Ranks


@dataclass(frozen=True)
class Replays:
    """What the states of B episodes are worth."""

    states: Replayed
    noise: Tensor
    """(B, T) squared standard error of each known value, squared score units; NaN with one continuation."""
    tokens: Tensor
    """(B,) int64 tokens that were sampled for them."""

    def joined(self, ranks: Ranks) -> Replays:
        """Of all processes."""
        states = Replayed(ranks.join(self.states.values), ranks.join(self.states.known))
        return Replays(states, ranks.join(self.noise), ranks.join(self.tokens))


def replay(
    context: RolloutContext, prompts: Prompts, episodes: Episodes, share: slice, update: int, kl_coef: float
) -> Replays:
    """Sample the states of these episodes onwards, those of the rows `share` of a rollout. Raises `MemoryFull`."""
    cfg, mask = context.cfg, episodes.response_mask
    chosen = chosen_rows(len(prompts.rows), cfg.replay.share, cfg.train.seed, update)[share].to(mask.device)
    known = starts(episodes.lengths, mask.shape[1], cfg.replay.every) & chosen.unsqueeze(1)
    values, noise = torch.zeros_like(mask, dtype=torch.float32), torch.zeros_like(mask, dtype=torch.float32)
    tokens = torch.zeros_like(episodes.lengths)
    for t in known.any(0).nonzero().flatten().tolist():
        rows = known[:, t].nonzero().flatten()
        returns, sampled = _continued(context, prompts, episodes, share, rows, t, update, kl_coef)
        values[rows, t] = returns.mean(1)
        noise[rows, t] = returns.var(1) / returns.shape[1] if returns.shape[1] > 1 else torch.nan
        tokens[rows] += sampled.sum(1)
    return Replays(Replayed(values, known), noise, tokens)


def chosen_rows(size: int, share: float, seed: int, update: int) -> Tensor:
    """(B,) True for the episodes of a rollout whose states are replayed; at least one."""
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[permutation(size, seed, "replayed", update)[: max(round(share * size), 1)]] = True
    return chosen


def _continued(
    context: RolloutContext,
    prompts: Prompts,
    episodes: Episodes,
    share: slice,
    rows: Tensor,
    t: int,
    update: int,
    kl_coef: float,
) -> tuple[Tensor, Tensor]:
    """Of K continuations of n rows: the rewards to go from token `t`, and the tokens sampled for them; (n, K) each."""
    cfg, each = context.cfg, context.cfg.replay.continuations
    with context.timed("generate"):
        every = uniforms(len(prompts.rows) * each, cfg.train.response_length - t, cfg.train.seed, "replay", update, t)
        noise = every.view(len(prompts.rows), each, -1)[share][rows.cpu()].flatten(0, 1)
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
        numbers = [prompts.rows[share][row] for row in rows.tolist() for _ in range(each)]
        rewards = _rewards(context, whole, numbers, kl_coef)
        returns = to_go(rewards, whole.response_mask, discount(cfg))[:, t]
    return returns.view(-1, each), found.lengths.view(-1, each)


def discount(cfg: TrialConfig) -> float:
    """Of the rewards to go: the critic's; advantages from state to state have none."""
    return 1.0 if ADVANTAGES[cfg.algorithm.advantage].replay else cfg.algorithm.gamma


def _rewards(context: RolloutContext, episodes: Episodes, rows: list[int], kl_coef: float) -> Tensor:
    """(B, T) of every token, as a rollout has them."""
    cfg, mask = context.cfg, episodes.response_mask
    scores = score_in_parts(context, episodes, rows)
    if beta_in_reward(kl_coef, cfg.kl.place) == 0:  # then no log-prob is in the rewards
        final = final_scores(scores.proxy.to(mask.device), episodes.lengths, episodes.ended, cfg.train)
        return token_rewards(final, torch.zeros_like(mask, dtype=final.dtype), mask)
    with context.measuring():
        measured = measure(context.actor, context.reference, episodes, cfg.train.temperature, context.room)
    judged = judge(*shaped(context, scores, episodes, measured, kl_coef), measured, mask, cfg)
    return token_rewards(judged.scores, judged.non_score, mask)


def replay_metrics(replays: Replays, judged: Judged, gamma: float) -> dict[str, float]:
    """What the replayed states of a rollout told, of its returns and of the critic's values, and what it took."""
    known, worth, values = replays.states.known, replays.states.values, judged.values
    returns = to_go(token_rewards(judged.scores, judged.non_score, judged.mask), judged.mask, gamma)[known]
    left, spread = (returns - worth[known]).var(correction=0), returns.var(correction=0)
    found = {"replay/tokens": float(replays.tokens.sum()), "replay/states": float(known.sum())}
    if spread > 0:
        found["replay/explained_variance"] = float(1 - left / spread)
    noise = replays.noise[known].mean()
    if torch.isfinite(noise):
        found["replay/standard_error"] = float(noise.sqrt())
    if values is not None:
        error = values[known] - worth[known]
        found["replay/critic_bias"] = float(error.mean())
        if torch.isfinite(noise):  # the values' own noise is not the critic's error
            found["replay/critic_error"] = float((error.square().mean() - noise).clamp(min=0).sqrt())
    return found
