"""Reward models that are trained on pairs; the one of Bradley and Terry is the reference's trunk with a scalar head on
the last valid token. The other is general."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Self

import torch
from torch import Tensor, nn

from pipeline.models.heads import full_precision
from pipeline.models.loading import HEAD, TRUNK, CausalLM, freeze, load_head, load_snapshot, save_head
from pipeline.models.out_of_memory import Room, bucket, ranking_rows
from pipeline.models.policy import Episodes, flush_left
from pipeline.models.precision import Precision
from pipeline.models.seeding import permutation, seed_of
from pipeline.models.trunk import states
from pipeline.rewards.base import Completions
from pipeline.rewards.collection import Ranked, comparisons, in_order
from pipeline.rewards.kinds import KINDS
from pipeline.rewards.settings import RewardConfig
from pipeline.training.supervised import Supervised


def model_of(kind: str) -> type[RewardModel]:
    """The class of a kind that is trained here."""
    model: type[RewardModel] = resolve_name(KINDS[kind].code)
    return model


WEIGHT_DECAY = 0.01
VECTOR = 4
"""d, numbers of the vector of an answer: one circle of preferences needs two."""
VECTOR_STD = 0.5
"""Standard deviation of each number of v at the start, for states of unit variance. At 0 the blocks have no gradient,
and at 1 they drown the score in noise that training has to remove first."""


class RewardModel(nn.Module):
    """Scores whole episodes; (B,) fp32. Another kind of model overrides `margin` and `against`, and its numbers
    of an answer are an embedding (B, 1 + d)."""

    head_name, vector = "reward head", 0

    def __init__(self, lm: CausalLM, head: nn.Linear) -> None:
        super().__init__()
        self.lm, self.head = lm, head

    @classmethod
    def new(cls, lm: CausalLM, cfg: RewardConfig, device: torch.device) -> Self:
        """The reference's trunk under a random head: scores start near 0, gradients and vectors do not."""
        width = lm.config.hidden_size
        head = nn.Linear(width, 1 + cls.vector)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed_of(cfg.seed, cls.head_name))
            head.weight[:1].normal_(std=1 / (width + 1))
            head.weight[1:].normal_(std=VECTOR_STD / width**0.5)
            head.bias.zero_()
        return cls(lm, head).to(device)

    def forward(self, episodes: Episodes) -> Tensor:
        parts = episodes.buckets(bucket(episodes.ended.device, len(episodes.ended)))
        scores = torch.cat([self._score(episodes.take(rows)) for rows in parts])
        return scores[torch.cat(parts).argsort()]

    def _score(self, episodes: Episodes) -> Tensor:
        tokens, starts = flush_left(episodes)
        lengths = starts + episodes.lengths
        last = states(self.lm, tokens, lengths, torch.arange(len(lengths), device=lengths.device), lengths - 1)
        return full_precision(self.head, last)

    @staticmethod
    def margin(first: Tensor, second: Tensor) -> Tensor:
        """Preference for the first answer by the numbers of n pairs, (n,) log-odds."""
        return first - second

    @classmethod
    def loss(cls, chosen: Tensor, rejected: Tensor) -> Tensor:
        """-log σ(margin(chosen, rejected)), mean over pairs, nats; numbers of n answers both. Bradley and Terry 1952;
        Stiennon 2020, eq. 1."""
        return -nn.functional.logsigmoid(cls.margin(chosen, rejected)).mean()

    @staticmethod
    def against(mine: Tensor, theirs: Tensor) -> Tensor:
        """A score less the mean score of k opponents, (B,); scores (B,) against (B, k)."""
        # In fp64: scores that lie close together would lose most of their digits in an fp32 mean.
        return (mine.double() - theirs.double().mean(1)).float()

    def save(self, folder: Path) -> None:
        self.lm.save_pretrained(folder / TRUNK)
        save_head(self.head, folder / HEAD)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        model: Self = freeze(cls(load_snapshot(folder / TRUNK, device), load_head(folder / HEAD, device)))
        return model


class PairwiseModel(RewardModel):
    """A general preference model: P(a preferred to b | prompt), which need not be transitive; (B, 1 + d) fp32.

    The reference's trunk embeds each answer to 1 + d numbers, a score s and a vector v of d/2 pairs. The logit is

        logit(a, b) = s(a) - s(b) + sum over l of v_2l-1(a) v_2l(b) - v_2l(a) v_2l-1(b),

    antisymmetric by construction: P(a, b) + P(b, a) = 1 exactly. The blocks are the preference embeddings of Zhang 2024
    (arXiv 2410.02197), which can represent any cycle; beside Bradley-Terry's score, a transitive preference needs none.
    An answer is read once, whatever it is compared with, so k opponents cost no more than one.
    """

    head_name, vector = "pairwise head", VECTOR

    @staticmethod
    def margin(first: Tensor, second: Tensor) -> Tensor:
        """log P(first, second) / P(second, first) of embeddings (..., 1 + d) that broadcast; (...), nats."""
        (s, v), (t, w) = ((each[..., 0], each[..., 1:]) for each in (first, second))
        turned = v[..., 0::2] * w[..., 1::2] - v[..., 1::2] * w[..., 0::2]
        return s - t + turned.sum(-1)

    @staticmethod
    def against(mine: Tensor, theirs: Tensor) -> Tensor:
        """The mean probability of beating k opponents, (B,) in (0, 1); embeddings (B, 1 + d) against (B, k, 1 + d)."""
        return PairwiseModel.margin(mine.double()[:, None], theirs.double()).sigmoid().mean(1).float()


class LearnedReward:
    """A `Reward` over a frozen `RewardModel`, as many rows at a time as `room` has; embeddings (B, 1 + d) of a model
    that embeds answers. Raises `MemoryFull`."""

    def __init__(self, model: RewardModel, room: Room) -> None:
        self._model, self._room = model, room
        self.networks: Sequence[CausalLM] = [model.lm]

    @torch.inference_mode()
    def __call__(self, completions: Completions) -> Tensor:
        episodes = completions.episodes
        with Precision.of(episodes.ended.device).autocast():
            return torch.cat(self._room.over(len(episodes.ended), lambda rows: self._model(episodes.take(rows)).cpu()))


def train_reward_model(
    model: RewardModel,
    ranked: Ranked,
    cfg: RewardConfig,
    progress: Callable[[int, int, float], None],
    checkpointing: bool = False,
    warn: Callable[[str], None] = lambda message: None,
) -> None:
    """Fit on rankings, of which pairs are the shortest: the model's loss, mean over all comparisons of a ranking.

    InstructGPT: Ouyang 2022 (arXiv 2203.02155), eq. 1, which keeps the comparisons of a prompt in one batch.
    """
    n, k = ranked.order.shape
    device = ranked.answers[0].query_responses.device
    order = ranked.order.to(device)
    batch = min(cfg.learned.rankings_in_step, n)
    total = cfg.learned.epochs * (n // batch)
    longest = max(answers.query_responses.shape[1] for answers in ranked.answers)
    at_once = ranking_rows(batch, k, longest, device.type == "cuda")
    room = Room(f"reward.learned.batch_size ({'pairs' if k == 2 else f'rankings of {k}'} at once)", at_once, warn)
    steps = Supervised(model, [model.lm], WEIGHT_DECAY, room, checkpointing)
    done = 0
    for epoch in range(cfg.learned.epochs):
        shuffled = permutation(n, cfg.seed, "reward epoch", epoch).to(device)
        for start in range(0, n - batch + 1, batch):
            rows = shuffled[start : start + batch]

            def share(part: slice, rows: Tensor = rows) -> Tensor:
                some = rows[part]
                numbers = torch.stack([model(answers.take(some)) for answers in ranked.answers], dim=1)
                return model.loss(*comparisons(in_order(numbers, order[some]))) * (len(some) / batch)

            loss = steps.step(cfg.learned.lr * (1 - done / total), batch, share)
            done += 1
            progress(done, total, float(loss))
    steps.close()
