"""The kinds of reward models that the reward stage trains on pairs: how each is made, fitted, and asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.models.loading import CausalLM
from pipeline.rewards.against import Compare, less_mean
from pipeline.rewards.kinds import KINDS, TRAINED
from pipeline.rewards.rankings import PairLoss
from pipeline.rewards.settings import RewardConfig

if TYPE_CHECKING:
    from pipeline.rewards.learned import RewardModel


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


def family_of(kind: str) -> Family:
    """The family of a kind that is trained here."""
    family: Family = resolve_name(KINDS[kind].code)
    return family


def compared(kind: str) -> Compare:
    """How a reward of any kind compares an answer with its opponents: a score less their mean, unless its family has
    another way."""
    return family_of(kind).against if kind in TRAINED else less_mean
