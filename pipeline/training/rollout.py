"""Steps 1 to 5 of an update: sample, cut, score, measure, shape. The result is what the epochs train on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pipeline.algorithms.base import Replayed, estimator_of
from pipeline.algorithms.gae import targets
from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.algorithms.mathematics.advantages import explained_variance
from pipeline.algorithms.mathematics.kl import k3
from pipeline.algorithms.mathematics.masking import lowest, masked_mean, masked_var, masked_whiten
from pipeline.config.train import has_replay
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import Episodes
from pipeline.models.seeding import uniforms
from pipeline.training.experience import Experience, Measured, groups_of
from pipeline.training.health import check_finite, repetition
from pipeline.training.judging import FORKS, RolloutContext, Scores, judge, logprobs_of, measure, score_rows, shaped
from pipeline.training.replay import discount, greedy_baseline, replay, replay_metrics


@dataclass(frozen=True)
class Rollout(Experience):
    """Episodes that the policy has sampled, with what they are worth and what was measured of them."""

    scores: Scores
    metrics: dict[str, float]
    tokens_beside: int = 0
    """Sampled for baselines and for targets of the critic, beside those of the episodes."""

    @property
    def sampled_tokens(self) -> int:
        return int(self.episodes.response_mask.sum()) + self.tokens_beside


def collect(context: RolloutContext, prompts: Tensor, update: int) -> Rollout:
    """Sample, score and measure the rollout of one update, estimate its advantages, and report on it; `prompts` are
    the numbers of its B prompts, on the CPU.

    Raises `Diverged` when what was sampled or measured is not finite, `MemoryFull` in all processes when a row does not
    fit in one.
    """
    cfg, ranks, data = context.cfg, context.ranks, context.data
    own = ranks.all_fit(lambda: _own_share(context, prompts, update))
    with context.timed("score"), torch.no_grad():
        share = ranks.gathered(own)
        episodes, scores, measured, replayed = share.episodes, share.scores, share.measured, share.replayed
        mask = episodes.response_mask
        final, non_score = shaped(context, scores, episodes, measured)
        # 5 advantages, returns, whitening
        judged = replace(
            judge(final, non_score, measured.values, mask, cfg, scores.earned),
            greedy=share.greedy,
            v_star=None if data.v_star is None else data.v_star[prompts].to(mask.device),
            replayed=replayed,
        )
        estimated, expected = estimator_of(cfg.algorithm)(judged, cfg.algorithm)
        # Counts each response once, at its first token; otherwise long responses would weigh more.
        width = 1 if cfg.algorithm.by_sequence else mask.shape[1]
        advantages, counted = estimated[:, :width], mask[:, :width]
        metrics = {
            **drift_metrics(measured, mask),
            **reward_metrics(scores, final, non_score),
            **sampling_metrics(episodes),
            **answer_metrics(scores, episodes, measured.entropy),
            "objective/advantage_std": float(masked_var(advantages, counted).sqrt()),
            **(replay_metrics(judged, replayed, share.beside, discount(cfg)) if replayed else {}),
        }
        if judged.greedy is not None:
            metrics["objective/greedy_reward"] = float(judged.greedy.mean())
        if ADVANTAGES[cfg.algorithm.advantage].least_responses > 1:
            groups = final.view(-1, cfg.train.responses_per_prompt)
            metrics["objective/equal_groups"] = float((groups == groups[:, :1]).all(1).float().mean())
        check_finite(metrics)
        if measured.values is not None and expected is not None:
            explained = explained_variance(measured.values, expected, mask)
            metrics |= {"value/explained_variance": explained} if math.isfinite(explained) else {}
        if cfg.algorithm.whiten_advantages:
            advantages = masked_whiten(advantages, counted)
        if share.sampled is not None and context.terms.weigh:
            weights, apart = context.terms.weigh(measured.logprobs - share.sampled, mask)
            check_finite(apart)
            advantages, metrics = advantages * weights[:, :width], metrics | apart
        advantages = torch.where(_learned_from(cfg, scores, measured, mask, update), advantages, 0.0)
        if cfg.algorithm.signs == "positive":
            advantages = advantages.clamp(min=0.0)
        elif cfg.algorithm.signs == "negative":
            advantages = advantages.clamp(max=0.0)
        returns = None if expected is None else targets(judged, expected)
        numbers = groups_of(episodes, cfg.kl, data.closes) if cfg.kl.grouped_in("loss") else None
    beta, beside = context.terms.kl_coef, int(share.beside.sum())
    return Rollout(episodes, measured, advantages, returns, beta, scores, metrics, beside, groups=numbers)


@dataclass(frozen=True)
class _Share:
    """Samples and measurements of a rollout by one process, or by all of them."""

    episodes: Episodes
    scores: Scores
    measured: Measured
    beside: Tensor
    """(B,) int64 tokens sampled beside the episodes: for greedy responses or replayed states."""
    greedy: Tensor | None = None
    replayed: Replayed | None = None
    sampled: Tensor | None = None
    """(B, T) log-probs under the policy that sampled, where it is not the one in training."""


def _own_share(context: RolloutContext, prompts: Tensor, update: int) -> _Share:
    """Sample and measure this process's part of a rollout, without communication. Raises `MemoryFull`."""
    cfg, share, sampler = context.cfg, context.ranks.share(prompts), context.sampler
    if context.terms.behaviour:
        sampler = replace(sampler, lm=context.terms.behaviour(context.actor.lm))
    with context.timed("generate"):
        # 1 sample responses; 2 cut after EOS
        noise = uniforms(len(prompts), cfg.train.response_length, cfg.train.seed, "rollout", update)
        episodes = sampler.sample(*context.prompts(prompts[share]), noise[share])
    with context.timed("score"), torch.no_grad():
        # 3 score the cut text
        scores = score_rows(context, episodes, prompts[share].tolist())
        # 4 log-probs, reference log-probs and values by the training forward
        measured = measure(context, episodes, context.start)
        sampled = logprobs_of(context, sampler.lm, episodes) if context.terms.behaviour else None
    own = _Share(episodes, scores, measured, torch.zeros_like(episodes.lengths), sampled=sampled)
    if ADVANTAGES[cfg.algorithm.advantage].greedy:
        greedy, beside = greedy_baseline(context, prompts[share])
        return replace(own, greedy=greedy, beside=beside)
    if has_replay(cfg):
        replayed, beside = replay(context, prompts, episodes, share, update)
        return replace(own, replayed=replayed, beside=beside)
    return own


def _learned_from(cfg: TrialConfig, scores: Scores, measured: Measured, mask: Tensor, update: int) -> Tensor:
    """(B, T) True at the valid tokens that have an advantage."""
    kind = cfg.algorithm.tokens
    if kind == "all":
        return mask
    if kind == "forks":
        return scores.marks[FORKS].to(mask.device) & mask
    if kind == "random":
        rank = uniforms(*mask.shape, cfg.train.seed, "tokens", update).to(mask.device)
    else:
        rank = measured.entropy if kind == "low_entropy" else -measured.entropy
    return lowest(rank, mask, cfg.algorithm.token_share)


def drift_metrics(measured: Measured, mask: Tensor) -> dict[str, float]:
    """KL to the reference by every estimator, and to the policy that the round began with; entropy sampled and exact;
    definitions in pipeline/run/metrics.csv."""
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


def answer_metrics(scores: Scores, episodes: Episodes, entropy: Tensor) -> dict[str, float]:
    """Report on answers that can be checked, and on the entropy (B, T) where several tokens are sound and elsewhere;
    what has no case is left out."""
    if not scores.marks:
        return {}
    mask = episodes.response_mask
    marks = {name: mark.to(mask.device) for name, mark in scores.marks.items()}
    right, worked, forks = marks["right"], marks["worked"], marks[FORKS] & mask
    found = {
        "objective/accuracy": (right, torch.ones_like(right)),
        "objective/working_rate": (worked, torch.ones_like(worked)),
        "objective/sound_rate": (marks["sound"] * right * worked, right * worked),
        "objective/length_right": (episodes.lengths * right, right),
        "objective/length_wrong": (episodes.lengths * (1 - right), 1 - right),
        "objective/entropy_forks": (entropy * forks, forks),
        "objective/entropy_elsewhere": (entropy * (mask & ~forks), mask & ~forks),
    }
    return {key: float(total.sum() / count.sum()) for key, (total, count) in found.items() if count.any()}


def sampling_metrics(episodes: Episodes) -> dict[str, float]:
    """Length of the responses, share that ended and repetition."""
    return {
        "objective/length": float(episodes.lengths.float().mean()),
        "objective/eos_rate": float(episodes.ended.float().mean()),
        "objective/repetition": repetition(episodes.responses, episodes.response_mask),
    }
