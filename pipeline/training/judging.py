"""Steps 3 and 4 of an update: scores of sampled responses, and measurements of their tokens by the networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.algorithms.base import Judged
from pipeline.algorithms.mathematics.groups import v_star
from pipeline.algorithms.mathematics.shaping import (
    group_non_score_reward,
    handle_missing_eos,
    non_score_reward,
    overlong,
    with_floor,
)
from pipeline.config.effects import value_at
from pipeline.config.train import TrainConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.heads import head_logprobs, token_stats
from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import ActorCritic, Episodes, response_hidden
from pipeline.models.sampling import EagerSampler
from pipeline.training.experience import Measured, groups_of
from pipeline.training.part import Terms
from pipeline.training.processes import Ranks, concatenated


@dataclass(frozen=True)
class Scores:
    """Scores of a rollout, and the texts that were judged."""

    proxy: Tensor
    """(B,) calibrated training reward."""
    gold: Tensor
    """(B,) judge points; recorded, never trained on."""
    prompts: Sequence[str]
    texts: Sequence[str]
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """(B,) of each part of a composite reward, calibrated."""
    further: Mapping[str, Tensor] = field(default_factory=dict)
    """(B,) points of each further judge; recorded, never trained on."""
    marks: Mapping[str, Tensor] = field(default_factory=dict)
    """Of answers that can be checked: right, worked and sound, (B,) 0 or 1, and `FORKS`, (B, T) bool."""
    earned: Tensor | None = None
    """(B, T) the part of the proxy that is earned at each token, where the reward is dense; the rest is at the end."""


FORKS = "forks"
"""The mark of each token: True where several were sound."""
ScoreFn = Callable[[Episodes, Sequence[int]], Scores]
"""Scores episodes whose prompts have the given indices."""


@dataclass(frozen=True)
class TrainingData:
    """All training prompts, left-padded, on the CPU; n of them."""

    queries: Tensor
    """(n, P) int64."""
    query_mask: Tensor
    """(n, P) bool."""
    token_ids: dict[str, int]
    """``eos_id`` and ``pad_id``."""
    v_star: Tensor | None = None
    """(n,) float64, V* of each, where the advantage needs it."""
    pairs: Episodes | None = None
    """(2m, ...) stored pairs to learn from instead of rollouts: the preferred response of each, then the other one."""
    closes: Tensor | None = None
    """(V,) bool, True for tokens that end a clause or a sentence, where the KL penalty is one on these."""


@dataclass(frozen=True)
class RolloutContext:
    """Everything that a rollout needs: networks, scores, sampler, settings."""

    actor: ActorCritic
    reference: CausalLM
    score: ScoreFn
    cfg: TrialConfig
    data: TrainingData
    sampler: EagerSampler
    """Sampler of the actor's policy."""
    room: Room
    """Rows in memory at once; changes nothing."""
    timed: Callable[[str], Any]
    """A context manager per phase."""
    ranks: Ranks
    """The processes that share the work."""
    terms: Terms = field(default_factory=Terms)
    """Terms of the update at hand."""
    start: CausalLM | None = None
    """The policy that the round began with, in a trial with several; in the first it is the reference itself."""

    @property
    def beta_in_reward(self) -> float:
        """The beta of the rewards; 0 where the penalty is in the loss, or beta weighs margins."""
        return self.terms.kl_coef if self.cfg.kl.place in ("reward", "score") else 0.0

    def prompts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and mask of prompts by their numbers (n,) on the CPU: (n, P) each, on the device."""
        device = self.ranks.device
        return self.data.queries[rows].to(device), self.data.query_mask[rows].to(device)


def score_rows(context: RolloutContext, episodes: Episodes, rows: Sequence[int]) -> Scores:
    """The scores of all rows, so many at a time as there is room for; where a part has a floor, with its weight."""
    scores = concatenated(context.room.over(len(rows), lambda some: context.score(episodes.take(some), rows[some])))
    if context.terms.floor is None:
        return scores
    part, weight = context.terms.floor
    return replace(scores, proxy=with_floor(scores.proxy, scores.parts[part], weight))


@torch.no_grad()
def measure(context: RolloutContext, episodes: Episodes, start: CausalLM | None = None) -> Measured:
    """Both networks and the critic on every valid token, and the KL to a third network `start`, as many rows at a time
    as there is room for. Raises `MemoryFull`."""
    actor, reference, temperature = context.actor, context.reference, context.cfg.train.temperature
    apart, critic = start is not None and start is not reference, actor.has_critic

    def columns(chunk: Episodes) -> list[Tensor]:
        hidden, values = actor.hidden_and_values(chunk)
        stats = token_stats(actor.lm, hidden, reference, response_hidden(reference, chunk), chunk.labels, temperature)
        found = [stats.logprobs, stats.ref_logprobs, stats.kl, stats.entropy, *([] if values is None else [values])]
        if start is not None and apart:
            of_start = response_hidden(start, chunk)
            found.append(token_stats(actor.lm, hidden, start, of_start, chunk.labels, temperature).kl)
        return found

    grids = episodes.grids(4 + critic + apart, context.room, columns)
    logprobs, ref_logprobs, kl, entropy = grids[:4]
    start_kl = None if start is None else grids[-1] if apart else kl
    return Measured(logprobs, ref_logprobs, kl, entropy, grids[4] if critic else None, start_kl)


@torch.no_grad()
def logprobs_of(context: RolloutContext, lm: CausalLM, episodes: Episodes) -> Tensor:
    """Log-probs (B, T) of the valid tokens under another policy, as many rows at a time as there is room for. Raises
    `MemoryFull`."""
    temperature = context.cfg.train.temperature

    def columns(chunk: Episodes) -> list[Tensor]:
        return [head_logprobs(lm, response_hidden(lm, chunk), chunk.labels, temperature).float()]

    return episodes.grids(1, context.room, columns)[0]


def shaped(context: RolloutContext, scores: Scores, episodes: Episodes, measured: Measured) -> tuple[Tensor, Tensor]:
    """The score of each response after EOS handling, (B,), and the KL penalty of each token, (B, T); score units."""
    mask, kl = episodes.response_mask, context.cfg.kl
    final = final_scores(scores.proxy.to(mask.device), episodes.lengths, episodes.ended, context.cfg.train)
    beta = context.beta_in_reward
    pair = measured.logprobs, measured.ref_logprobs, mask
    if not kl.grouped_in("reward"):
        return final, non_score_reward(*pair, beta)
    groups = groups_of(episodes, kl, context.data.closes)
    return final, group_non_score_reward(*pair, groups, beta, kl.group_credit)


def final_scores(proxy: Tensor, lengths: Tensor, ended: Tensor, train: TrainConfig) -> Tensor:
    """Scores of responses after EOS handling and the penalty on overlong ones; all of one shape, score units."""
    final = handle_missing_eos(proxy, ended, train.missing_eos, train.missing_eos_penalty)
    return overlong(final, lengths, ended, train.response_length, train.overlong_share, train.overlong_penalty)


def v_star_of(cfg: TrialConfig, proxy: Tensor, lengths: Tensor, ended: Tensor) -> Tensor:
    """V* of n prompts, (n,) float64, by N samples of the reference for each; (n, N) their calibrated training rewards
    before EOS handling, valid tokens, and True where they ended by EOS. They are scored as those of a rollout are."""
    return v_star(final_scores(proxy, lengths, ended, cfg.train), value_at(cfg, "algorithm.v_star.beta"))


def judge(
    final: Tensor,
    non_score: Tensor,
    values: Tensor | None,
    mask: Tensor,
    cfg: TrialConfig,
    earned: Tensor | None = None,
) -> Judged:
    """Build the input of the estimator: the KL penalty on the tokens, or in the score of the response; final (B,),
    values (B, T) of the critic; `earned` (B, T) of a dense reward goes from the score to the tokens."""
    groups = torch.arange(len(mask), device=mask.device) // cfg.train.responses_per_prompt
    if cfg.kl.place == "score":
        final, non_score = final + non_score.sum(1), torch.zeros_like(non_score)
    if earned is not None:
        # The sum stays that of a score at the end, even where a response without EOS loses what it has earned.
        paid = torch.where(mask, earned[:, : mask.shape[1]].to(mask.device), 0.0)
        final, non_score = final - paid.sum(1), non_score + paid
    return Judged(final, non_score, values, mask, groups)


def judge_beside(context: RolloutContext, episodes: Episodes, rows: Sequence[int]) -> Judged:
    """Responses that are sampled beside the rollout's own, worth what those would be; `rows` are the indices of their
    prompts. Raises `MemoryFull`."""
    cfg, mask = context.cfg, episodes.response_mask
    scores = score_rows(context, episodes, rows)
    if context.beta_in_reward == 0:  # then no log-prob is in the rewards
        final = final_scores(scores.proxy.to(mask.device), episodes.lengths, episodes.ended, cfg.train)
        return judge(final, torch.zeros_like(mask, dtype=final.dtype), None, mask, cfg, scores.earned)
    return judge(*shaped(context, scores, episodes, measure(context, episodes)), None, mask, cfg, scores.earned)
