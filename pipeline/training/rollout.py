"""Steps 1 to 5 of an update: sample, cut, score, measure, shape. The result is what the epochs train on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.algorithms.base import Judged
from pipeline.algorithms.mathematics.advantages import explained_variance
from pipeline.algorithms.mathematics.kl import k3
from pipeline.algorithms.mathematics.masking import masked_mean, masked_var, masked_whiten
from pipeline.algorithms.mathematics.shaping import beta_in_reward, handle_missing_eos, non_score_reward, overlong
from pipeline.algorithms.registry import ESTIMATORS
from pipeline.config.presets import ADVANTAGES
from pipeline.config.train import TrainConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM
from pipeline.models.policy import ActorCritic, Episodes, response_hidden, to_grid
from pipeline.models.sampler import Sampler
from pipeline.models.seeding import uniforms
from pipeline.resources.out_of_memory import Room
from pipeline.training.health import check_finite, repetition
from pipeline.training.processes import Ranks
from pipeline.training.token_stats import token_stats


@dataclass(frozen=True)
class Scores:
    """What a rollout is worth, and the texts that were judged."""

    proxy: Tensor
    """(B,) calibrated training reward."""
    gold: Tensor
    """(B,) judge points; recorded, never trained on."""
    prompts: Sequence[str]
    texts: Sequence[str]
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """(B,) of each part of a composite reward, calibrated."""


ScoreFn = Callable[[Episodes, Sequence[int]], Scores]
"""Scores episodes whose prompts have the given indices."""


@dataclass(frozen=True)
class RolloutContext:
    """What a rollout needs and a trial does not change: the networks and how they are asked."""

    actor: ActorCritic
    reference: CausalLM
    score: ScoreFn
    cfg: TrialConfig
    sampler: Sampler
    """Of the actor's policy."""
    room: Room
    """Rows in memory at once; changes nothing."""
    timed: Callable[[str], Any]
    """A context manager per phase."""
    ranks: Ranks
    """The processes that share the work."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of one rollout, on the device."""

    queries: Tensor
    """(B, P) int64, left-padded."""
    query_mask: Tensor
    """(B, P) bool."""
    rows: Sequence[int]
    """Their indices among all prompts."""
    v_star: Tensor | None = None
    """(B,) V* of each, where the advantage needs it."""


@dataclass(frozen=True)
class Measured:
    """What the networks say of every valid token; grids are (B, T), 0 on invalid tokens, nats."""

    logprobs: Tensor
    ref_logprobs: Tensor
    kl: Tensor
    """Exact, over the vocabulary."""
    entropy: Tensor
    """Exact, of the policy."""
    values: Tensor | None
    """Of the critic, in score units; None without one."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Measured:
        """Every grid changed alike."""
        values = None if self.values is None else change(self.values)
        return Measured(change(self.logprobs), change(self.ref_logprobs), change(self.kl), change(self.entropy), values)


@dataclass(frozen=True)
class GreedyBaseline:
    """What the greedy responses to the prompts of B rows are worth."""

    rewards: Tensor
    """(B,) score and KL penalty, score units; equal for the rows of one prompt."""
    tokens: Tensor
    """(B,) int64 valid tokens of the greedy response, on the first row of its prompt; 0 on the others."""

    def joined(self, ranks: Ranks) -> GreedyBaseline:
        """Of all processes."""
        return GreedyBaseline(ranks.join(self.rewards), ranks.join(self.tokens))


@dataclass(frozen=True)
class Rollout:
    """One batch of episodes with everything the losses need; grids are (B, T), 0 on invalid tokens."""

    episodes: Episodes
    measured: Measured
    advantages: Tensor
    returns: Tensor | None
    """Of the critic's loss; None without a critic."""
    kl_coef: float
    """beta in force."""
    scores: Scores
    metrics: dict[str, float]
    greedy_tokens: int = 0
    """Sampled for the baseline, beside those of the episodes."""

    @property
    def sampled_tokens(self) -> int:
        """All tokens that were sampled for it."""
        return int(self.episodes.response_mask.sum()) + self.greedy_tokens


def collect(context: RolloutContext, prompts: Prompts, update: int, kl_coef: float) -> Rollout:
    """Sample, score and measure the rollout of one update, estimate its advantages, and report on it.

    Raises `Diverged` when what was sampled or measured is not finite, `MemoryFull` in all processes when a row does not
    fit in one.
    """
    cfg = context.cfg
    share = context.ranks.all_fit(lambda: _own_share(context, prompts, update, kl_coef))
    with context.timed("score"), torch.no_grad():
        episodes, scores, measured = gather(context.ranks, *share[:3])
        greedy = None if share[3] is None else share[3].joined(context.ranks)
        mask = episodes.response_mask
        final, non_score = shaped(scores, episodes, measured, kl_coef, cfg)
        # 5 advantages, returns, whitening
        judged = judge(final, non_score, measured, mask, cfg)
        judged = replace(judged, greedy=greedy.rewards if greedy else None, v_star=prompts.v_star)
        estimate = ESTIMATORS[cfg.algorithm.advantage](judged, cfg.algorithm)
        # Of a response as a whole the first token speaks, or long ones would weigh more.
        width = 1 if cfg.algorithm.by_sequence else mask.shape[1]
        advantages, counted = estimate.advantages[:, :width], mask[:, :width]
        metrics = {
            **drift_metrics(measured, mask),
            **reward_metrics(scores, final, non_score),
            **text_metrics(episodes),
            "objective/kl_coef": kl_coef,
            "objective/advantage_std": float(masked_var(advantages, counted).sqrt()),
            **baseline_metrics(judged, cfg),
        }
        check_finite(metrics)
        if measured.values is not None and estimate.returns is not None:
            explained = explained_variance(measured.values, estimate.returns, mask)
            metrics |= {"value/explained_variance": explained} if math.isfinite(explained) else {}
        if cfg.algorithm.whiten_advantages:
            advantages = masked_whiten(advantages, counted)
        advantages = torch.where(mask, advantages, 0.0)
    beside = int(greedy.tokens.sum()) if greedy else 0
    return Rollout(episodes, measured, advantages, estimate.returns, kl_coef, scores, metrics, beside)


def shaped(
    scores: Scores, episodes: Episodes, measured: Measured, kl_coef: float, cfg: TrialConfig
) -> tuple[Tensor, Tensor]:
    """The score of each response after EOS handling, (B,), and the KL penalty of each token, (B, T); score units."""
    mask = episodes.response_mask
    final = final_scores(scores.proxy.to(mask.device), episodes.lengths, episodes.ended, cfg.train)
    beta = beta_in_reward(kl_coef, cfg.kl.place)
    return final, non_score_reward(measured.logprobs, measured.ref_logprobs, mask, beta, cfg.kl.reward_estimator)


def final_scores(proxy: Tensor, lengths: Tensor, ended: Tensor, train: TrainConfig) -> Tensor:
    """Scores of responses after EOS handling and the penalty on overlong ones; all of one shape, score units."""
    final = handle_missing_eos(proxy, ended, train.missing_eos, train.missing_eos_penalty)
    return overlong(final, lengths, ended, train.response_length, train.overlong_share, train.overlong_penalty)


def judge(final: Tensor, non_score: Tensor, measured: Measured, mask: Tensor, cfg: TrialConfig) -> Judged:
    """What the estimator sees: the KL penalty on the tokens, or in the score of the response; final (B,)."""
    groups = torch.arange(len(mask), device=mask.device) // cfg.train.responses_per_prompt
    if cfg.kl.place == "score":
        final, non_score = final + non_score.sum(1), torch.zeros_like(non_score)
    return Judged(final, non_score, measured.values, mask, groups)


def _own_share(
    context: RolloutContext, prompts: Prompts, update: int, kl_coef: float
) -> tuple[Episodes, Scores, Measured, GreedyBaseline | None]:
    """What this process samples and measures of a rollout; it speaks to no other. Raises `MemoryFull`."""
    cfg, share = context.cfg, context.ranks.share(prompts.rows)
    with context.timed("generate"):
        # 1 sample responses; 2 cut after EOS
        noise = uniforms(len(prompts.rows), cfg.train.response_length, cfg.train.seed, "rollout", update)
        context.sampler.refresh()
        episodes = context.sampler.sample(prompts.queries[share], prompts.query_mask[share], noise[share])
    with context.timed("score"), torch.no_grad():
        # 3 score the cut text
        scores = score_in_parts(context, episodes, prompts.rows[share])
        # 4 log-probs, reference log-probs and values by the training forward
        measured = measure(context.actor, context.reference, episodes, cfg.train.temperature, context.room)
    greedy = ADVANTAGES[cfg.algorithm.advantage].greedy
    return episodes, scores, measured, greedy_baseline(context, prompts, share, kl_coef) if greedy else None


def greedy_baseline(context: RolloutContext, prompts: Prompts, share: slice, kl_coef: float) -> GreedyBaseline:
    """The greedy responses to the prompts of some rows, each sampled once, scored and measured as the others are."""
    cfg, rows = context.cfg, torch.tensor(prompts.rows[share])
    _, place, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
    first = counts.cumsum(0) - counts
    queries, mask = prompts.queries[share], prompts.query_mask[share]
    with context.timed("generate"):
        episodes = context.sampler.greedy(queries[first], mask[first], cfg.train.response_length)
    with context.timed("score"), torch.no_grad():
        scores = score_in_parts(context, episodes, rows[first].tolist())
        measured = measure(context.actor, context.reference, episodes, cfg.train.temperature, context.room)
        final, non_score = shaped(scores, episodes, measured, kl_coef, cfg)
    once = torch.zeros(len(rows), dtype=torch.long, device=final.device)
    once[first] = episodes.lengths
    return GreedyBaseline((final + non_score.sum(1))[place.to(final.device)], once)


def score_in_parts(context: RolloutContext, episodes: Episodes, rows: Sequence[int]) -> Scores:
    """The scores of all rows, so many at a time as there is room for."""
    parts = context.room.over(len(rows), lambda place: context.score(episodes.take(place), rows[place]))
    if len(parts) == 1:
        return parts[0]
    return Scores(
        proxy=torch.cat([part.proxy for part in parts]),
        gold=torch.cat([part.gold for part in parts]),
        prompts=[prompt for part in parts for prompt in part.prompts],
        texts=[text for part in parts for text in part.texts],
        parts={name: torch.cat([part.parts[name] for part in parts]) for name in parts[0].parts},
    )


def gather(ranks: Ranks, episodes: Episodes, scores: Scores, measured: Measured) -> tuple[Episodes, Scores, Measured]:
    """The shares of all processes as one rollout, the same everywhere."""
    if ranks.count == 1:
        return episodes, scores, measured
    device = episodes.query_responses.device
    return (
        Episodes(*(ranks.join(column) for column in vars(episodes).values())),
        Scores(
            proxy=ranks.join(scores.proxy.to(device)).cpu(),
            gold=ranks.join(scores.gold.to(device)).cpu(),
            prompts=ranks.join_lists(scores.prompts),
            texts=ranks.join_lists(scores.texts),
            parts={name: ranks.join(part.to(device)).cpu() for name, part in scores.parts.items()},
        ),
        measured.each(ranks.join),
    )


@torch.no_grad()
def measure(actor: ActorCritic, reference: CausalLM, episodes: Episodes, temperature: float, room: Room) -> Measured:
    """Both networks and the critic on every valid token, as many rows at a time as `room` has. Raises `MemoryFull`."""
    grids = torch.zeros(4 + actor.has_critic, *episodes.response_mask.shape, device=episodes.ended.device)

    def fill(rows: Tensor, chunk: Episodes) -> None:
        mask = chunk.response_mask
        hidden, values = actor.hidden_and_values(chunk)
        stats = token_stats(actor.lm, hidden, reference, response_hidden(reference, chunk), chunk.labels, temperature)
        columns = [stats.logprobs, stats.ref_logprobs, stats.kl, stats.entropy, *([] if values is None else [values])]
        for grid, column in zip(grids, columns, strict=True):
            grid[rows, : mask.shape[1]] = to_grid(column, mask)

    episodes.by_length(room, fill)
    logprobs, ref_logprobs, kl, entropy = grids[:4]
    return Measured(logprobs, ref_logprobs, kl, entropy, grids[4] if actor.has_critic else None)


def baseline_metrics(judged: Judged, cfg: TrialConfig) -> dict[str, float]:
    """What responses are compared with, where an advantage does that without a critic."""
    found = {}
    if judged.greedy is not None:
        found["objective/greedy_reward"] = float(judged.greedy.mean())
    if ADVANTAGES[cfg.algorithm.advantage].least_responses > 1:
        groups = judged.scores.view(-1, cfg.train.responses_per_prompt)
        found["objective/equal_groups"] = float((groups == groups[:, :1]).all(1).float().mean())
    return found


def drift_metrics(measured: Measured, mask: Tensor) -> dict[str, float]:
    """KL to the reference by every estimator, and sampled entropy; definitions in pipeline/run/metrics.py."""
    d = measured.logprobs - measured.ref_logprobs
    return {
        "objective/kl": float(d.sum(1).mean()),
        "objective/kl_per_token": float(masked_mean(d, mask)),
        "objective/kl_k3_per_token": float(masked_mean(k3(d), mask)),
        "objective/kl_exact_per_token": float(masked_mean(measured.kl, mask)),
        "objective/entropy": float(-measured.logprobs.sum(1).mean()),
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
    }


def text_metrics(episodes: Episodes) -> dict[str, float]:
    """How long the responses are, how many ended, how much they repeat."""
    return {
        "objective/length": float(episodes.lengths.float().mean()),
        "objective/eos_rate": float(episodes.ended.float().mean()),
        "objective/repetition": repetition(episodes.responses, episodes.response_mask),
    }
