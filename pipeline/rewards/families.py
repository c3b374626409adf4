"""The kinds of reward models that the reward stage trains on pairs: how each is made, fitted, and asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.config.rewards import RewardConfig
from pipeline.models.loading import CausalLM
from pipeline.rewards.against import Compare, less_mean
from pipeline.rewards.learned import RewardModel, bradley_terry_loss, new_reward_model
from pipeline.rewards.pairwise import PairwiseModel, mean_win, new_pairwise_model, pairwise_loss, preference_logit
from pipeline.rewards.rankings import PairLoss


@dataclass(frozen=True)
class Family:
    """A kind of reward model. Its numbers of an answer are a score (B,), or an embedding (B, 1 + d)."""

    new: Callable[[CausalLM, RewardConfig, torch.device], RewardModel]
    model: type[RewardModel]
    loss: PairLoss
    margin: Callable[[Tensor, Tensor], Tensor]
    """Of the numbers of n pairs: by how much the first is preferred, (n,) log-odds."""
    against: Compare
    """The reward that an answer gets against opponents."""


FAMILIES: dict[str, Family] = {
    "learned": Family(
        lambda lm, cfg, device: new_reward_model(lm, cfg.seed, device),
        RewardModel,
        bradley_terry_loss,
        lambda first, second: first - second,
        less_mean,
    ),
    "pairwise": Family(
        lambda lm, cfg, device: new_pairwise_model(lm, cfg.seed, device, cfg.dimension),
        PairwiseModel,
        pairwise_loss,
        preference_logit,
        mean_win,
    ),
}
"""By `reward.kind`; what each is, in words for users, stands in `pipeline.config.rewards.LEARNED`."""


def compared(kind: str) -> Compare:
    """How a reward of any kind compares an answer with its opponents: a score less their mean, unless its family has
    another way."""
    return FAMILIES[kind].against if kind in FAMILIES else less_mean
