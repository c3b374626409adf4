"""Reward models that are trained on pairs; the one of Bradley and Terry is the reference's trunk with a scalar head on
the last valid token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from pipeline.models import cpu
from pipeline.models.chunking import ranking_rows
from pipeline.models.fp32_heads import scalar
from pipeline.models.loading import HEAD, TRUNK, CausalLM, freeze, load_head, load_snapshot, save_head
from pipeline.models.out_of_memory import Room, no_warning
from pipeline.models.packing import states
from pipeline.models.policy import Episodes, flush_left
from pipeline.models.precision import Precision
from pipeline.models.seeding import permutation, seed_of
from pipeline.rewards.base import Completions
from pipeline.rewards.kinds import KINDS, TRAINED
from pipeline.rewards.opponents import Compare, less_mean
from pipeline.rewards.rankings import PairLoss, Ranked, RankingLoss, all_pairs_loss, in_order
from pipeline.rewards.settings import RewardConfig
from pipeline.training.supervised import Supervised


@dataclass(frozen=True)
class RewardFamily:
    """A kind of reward model. Its numbers of an answer are a score (B,), or an embedding (B, 1 + d)."""

    new: Callable[[CausalLM, RewardConfig, torch.device], RewardModel]
    model: type[RewardModel]
    loss: PairLoss
    margin: Callable[[Tensor, Tensor], Tensor]
    """Preference for the first answer by the numbers of n pairs, (n,) log-odds."""
    against: Compare
    """The reward that an answer gets against opponents."""


def family_of(kind: str) -> RewardFamily:
    """The family of a kind that is trained here."""
    family: RewardFamily = resolve_name(KINDS[kind].code)
    return family


def compared(kind: str) -> Compare:
    """Return the comparison of an answer with its opponents for any kind of reward: a score less their mean, unless its
    family has another way."""
    return family_of(kind).against if kind in TRAINED else less_mean


WEIGHT_DECAY = 0.01


class RewardModel(nn.Module):
    """Scores whole episodes; (B,) fp32."""

    def __init__(self, lm: CausalLM, head: nn.Linear) -> None:
        super().__init__()
        self.lm, self.head = lm, head

    def forward(self, episodes: Episodes) -> Tensor:
        parts = episodes.buckets(cpu.bucket(episodes.ended.device, len(episodes.ended)))
        scores = torch.cat([self._score(episodes.take(rows)) for rows in parts])
        return scores[torch.cat(parts).argsort()]

    def _score(self, episodes: Episodes) -> Tensor:
        tokens, starts = flush_left(episodes)
        lengths = starts + episodes.lengths
        last = states(self.lm, tokens, lengths, torch.arange(len(lengths), device=lengths.device), lengths - 1)
        return self._read(last)

    def _read(self, states: Tensor) -> Tensor:
        return scalar(self.head, states)

    def save(self, folder: Path) -> None:
        self.lm.save_pretrained(folder / TRUNK)
        save_head(self.head, folder / HEAD)

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> RewardModel:
        model: RewardModel = freeze(cls(load_snapshot(folder / TRUNK, device), load_head(folder / HEAD, device)))
        return model


class LearnedReward:
    """A `Reward` over a frozen `RewardModel`, as many rows at a time as `room` has. Raises `MemoryFull`.

    Of a model that embeds answers, the embeddings (B, 1 + d) take the place of scores: `pipeline.rewards.opponents`
    makes a reward of them.
    """

    def __init__(self, model: RewardModel, room: Room) -> None:
        self._model, self._room = model, room
        self.networks: Sequence[CausalLM] = [model.lm]

    @torch.inference_mode()
    def __call__(self, completions: Completions) -> Tensor:
        episodes = completions.episodes
        with Precision.of(episodes.ended.device).autocast():
            return torch.cat(self._room.over(len(episodes.ended), lambda rows: self._model(episodes.take(rows)).cpu()))


def new_reward_model(lm: CausalLM, seed: int, device: torch.device) -> RewardModel:
    """The reference's trunk under a small random head: scores start near 0, gradients do not."""
    head = nn.Linear(lm.config.hidden_size, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "reward head"))
        nn.init.normal_(head.weight, std=1 / (lm.config.hidden_size + 1))
    nn.init.zeros_(head.bias)
    return RewardModel(lm, head).to(device)


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log σ(chosen - rejected), mean over pairs; both (n,). Bradley and Terry 1952; Stiennon 2020, eq. 1."""
    return -nn.functional.logsigmoid(chosen - rejected).mean()


def train_reward_model(
    model: RewardModel,
    ranked: Ranked,
    cfg: RewardConfig,
    progress: Callable[[int, int, float], None],
    checkpointing: bool = False,
    warn: Callable[[str], None] = no_warning,
    loss_of: RankingLoss | None = None,
) -> None:
    """Fit on rankings, of which pairs are the shortest. `loss_of` takes what the model gives for the answers, best
    first; by default Bradley-Terry's on all pairs."""
    n, k = ranked.order.shape
    device = ranked.answers[0].query_responses.device
    order, loss_of = ranked.order.to(device), loss_of or partial(all_pairs_loss, loss=bradley_terry_loss)
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
                return loss_of(in_order(numbers, order[some])) * (len(some) / batch)

            loss = steps.step(cfg.learned.lr * (1 - done / total), batch, share)
            done += 1
            progress(done, total, float(loss))
    steps.close()


BRADLEY_TERRY = RewardFamily(
    lambda lm, cfg, device: new_reward_model(lm, cfg.seed, device),
    RewardModel,
    bradley_terry_loss,
    lambda first, second: first - second,
    less_mean,
)
