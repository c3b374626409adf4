"""Steps 1 to 5 of an update: sample, cut, score, measure, shape. The result is what the epochs train on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pipeline.algorithms.base import Judged
from pipeline.algorithms.mathematics.advantages import explained_variance
from pipeline.algorithms.mathematics.kl import k3
from pipeline.algorithms.mathematics.masking import masked_mean, masked_var, masked_whiten
from pipeline.algorithms.registry import ESTIMATORS
from pipeline.algorithms.replay import targets
from pipeline.config.presets import ADVANTAGES
from pipeline.config.replay import has_replay
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import Episodes
from pipeline.models.seeding import uniforms
from pipeline.training.experience import Experience
from pipeline.training.greedy import GreedyBaseline, greedy_baseline
from pipeline.training.health import check_finite, repetition
from pipeline.training.judging import (
    Measured,
    Prompts,
    RolloutContext,
    Scores,
    judge,
    measure,
    score_in_parts,
    shaped,
)
from pipeline.training.processes import Ranks
from pipeline.training.replay import Replays, discount, replay, replay_metrics


@dataclass(frozen=True)
class Rollout(Experience):
    """Episodes that the policy has sampled, with what they are worth and what was measured of them."""

    scores: Scores
    metrics: dict[str, float]
    tokens_beside: int = 0
    """Sampled for baselines and for targets of the critic, beside those of the episodes."""

    @property
    def sampled_tokens(self) -> int:
        """All tokens that were sampled for it."""
        return int(self.episodes.response_mask.sum()) + self.tokens_beside


def collect(context: RolloutContext, prompts: Prompts, update: int, kl_coef: float) -> Rollout:
    """Sample, score and measure the rollout of one update, estimate its advantages, and report on it.

    Raises `Diverged` when what was sampled or measured is not finite, `MemoryFull` in all processes when a row does not
    fit in one.
    """
    cfg = context.cfg
    share = context.ranks.all_fit(lambda: _own_share(context, prompts, update, kl_coef))
    with context.timed("score"), torch.no_grad():
        episodes, scores, measured = gather(context.ranks, share.episodes, share.scores, share.measured)
        said = None if share.said is None else context.ranks.join(share.said)
        greedy = share.greedy.joined(context.ranks) if share.greedy else None
        replays = share.replays.joined(context.ranks) if share.replays else None
        mask = episodes.response_mask
        final, non_score = shaped(context, scores, episodes, measured, kl_coef)
        # 5 advantages, returns, whitening
        judged = judge(final, non_score, measured, mask, cfg)
        judged = replace(
            judged,
            greedy=greedy.rewards if greedy else None,
            v_star=prompts.v_star,
            replayed=replays.states if replays else None,
        )
        estimate = ESTIMATORS[cfg.algorithm.advantage](judged, cfg.algorithm)
        # Of a response as a whole the first token speaks, or long ones would weigh more.
        width = 1 if cfg.algorithm.by_sequence else mask.shape[1]
        advantages, counted = estimate.advantages[:, :width], mask[:, :width]
        metrics = {
            **drift_metrics(measured, mask),
            **reward_metrics(scores, final, non_score),
            **text_metrics(episodes),
            **({} if said is None else sampler_metrics(measured.logprobs, said, mask)),
            "objective/kl_coef": kl_coef,
            "objective/advantage_std": float(masked_var(advantages, counted).sqrt()),
            **baseline_metrics(judged, final, cfg),
            **(replay_metrics(replays, judged, discount(cfg)) if replays else {}),
        }
        check_finite(metrics)
        if measured.values is not None and estimate.returns is not None:
            explained = explained_variance(measured.values, estimate.returns, mask)
            metrics |= {"value/explained_variance": explained} if math.isfinite(explained) else {}
        if cfg.algorithm.whiten_advantages:
            advantages = masked_whiten(advantages, counted)
        advantages = torch.where(mask, advantages, 0.0)
        returns = None if estimate.returns is None else targets(judged, estimate.returns)
    beside = sum(int(own.tokens.sum()) for own in (greedy, replays) if own)
    return Rollout(episodes, measured, advantages, returns, kl_coef, scores, metrics, beside)


@dataclass(frozen=True)
class _Share:
    """What one process sampled and measured of a rollout."""

    episodes: Episodes
    scores: Scores
    said: Tensor | None
    """(B, T) log-probabilities by the sampler, where it has a network of its own."""
    measured: Measured
    greedy: GreedyBaseline | None
    replays: Replays | None


def _own_share(context: RolloutContext, prompts: Prompts, update: int, kl_coef: float) -> _Share:
    """What this process samples and measures of a rollout; it speaks to no other. Raises `MemoryFull`."""
    cfg, share = context.cfg, context.ranks.share(prompts.rows)
    has_greedy = ADVANTAGES[cfg.algorithm.advantage].greedy
    with context.timed("generate"):
        # 1 sample responses; 2 cut after EOS
        noise = uniforms(len(prompts.rows), cfg.train.response_length, cfg.train.seed, "rollout", update)
        context.sampler.refresh()
        found = context.sampler.draw(prompts.queries[share], prompts.query_mask[share], noise[share])
        episodes = found.episodes
        if not (has_greedy or has_replay(cfg)):
            context.sampler.rest()
    with context.timed("score"), torch.no_grad():
        # 3 score the cut text
        scores = score_in_parts(context, episodes, prompts.rows[share])
        # 4 log-probs, reference log-probs and values by the training forward
        with context.measuring():
            measured = measure(
                context.actor, context.reference, episodes, cfg.train.temperature, context.room, context.start
            )
    greedy = replays = None
    if has_greedy:
        greedy = greedy_baseline(context, prompts, share, kl_coef)
    if has_replay(cfg):
        replays = replay(context, prompts, episodes, share, update, kl_coef)
    if greedy or replays:
        context.sampler.rest()
    return _Share(episodes, scores, found.logprobs, measured, greedy, replays)


def gather(ranks: Ranks, episodes: Episodes, scores: Scores, measured: Measured) -> tuple[Episodes, Scores, Measured]:
    """The shares of all processes as one rollout, the same everywhere."""
    if ranks.count == 1:
        return episodes, scores, measured
    device = episodes.query_responses.device
    return (
        episodes.each(ranks.join),
        scores.each(lambda column: ranks.join(column.to(device)).cpu(), ranks.join_lists),
        measured.each(ranks.join),
    )


def baseline_metrics(judged: Judged, final: Tensor, cfg: TrialConfig) -> dict[str, float]:
    """What responses are compared with, where an advantage does that without a critic; final (B,) scores after EOS
    handling, before any KL penalty."""
    found = {}
    if judged.greedy is not None:
        found["objective/greedy_reward"] = float(judged.greedy.mean())
    if ADVANTAGES[cfg.algorithm.advantage].least_responses > 1:
        groups = final.view(-1, cfg.train.responses_per_prompt)
        found["objective/equal_groups"] = float((groups == groups[:, :1]).all(1).float().mean())
    return found


def drift_metrics(measured: Measured, mask: Tensor) -> dict[str, float]:
    """KL to the reference by every estimator, and to the policy that the round began with; entropy sampled and exact;
    definitions in pipeline/run/metrics.py."""
    d = measured.logprobs - measured.ref_logprobs
    start_kl = measured.start_kl
    return {
        "objective/kl": float(d.sum(1).mean()),
        "objective/kl_per_token": float(masked_mean(d, mask)),
        "objective/kl_k3_per_token": float(masked_mean(k3(d), mask)),
        "objective/kl_exact_per_token": float(masked_mean(measured.kl, mask)),
        **({} if start_kl is None else {"objective/round_kl_per_token": float(masked_mean(start_kl, mask))}),
        "objective/entropy": float(-measured.logprobs.sum(1).mean()),
        "objective/entropy_per_token": float(masked_mean(measured.entropy, mask)),
    }


def reward_metrics(scores: Scores, final: Tensor, non_score: Tensor) -> dict[str, float]:
    """Scores before and after EOS handling, and the KL part of the reward; final (B,), non_score (B, T)."""
    per_sequence = non_score.sum(1)
    return {
        "objective/scores": float(scores.proxy.mean()),
        "objective/scores_std": float(scores.proxy.std(correction=0)),
        "objective/gold": float(scores.gold.mean()),
        "objective/non_score_reward": float(per_sequence.mean()),
        "objective/rlhf_reward": float((final + per_sequence).mean()),
        **{f"reward/{name}": float(part.mean()) for name, part in scores.parts.items()},
        **{f"objective/gold/{name}": float(points.mean()) for name, points in scores.further.items()},
    }


def sampler_metrics(logprobs: Tensor, said: Tensor, mask: Tensor) -> dict[str, float]:
    """How far the sampler's network is from the training forward, on the tokens that it drew; grids (B, T), nats."""
    d = logprobs - said
    return {
        "objective/sampler_gap": float(masked_mean(d.abs(), mask)),
        "objective/sampler_ratio": float(masked_mean(d.exp(), mask)),
    }


def text_metrics(episodes: Episodes) -> dict[str, float]:
    """How long the responses are, how many ended, how much they repeat."""
    return {
        "objective/length": float(episodes.lengths.float().mean()),
        "objective/eos_rate": float(episodes.ended.float().mean()),
        "objective/repetition": repetition(episodes.responses, episodes.response_mask),
    }
