"""Advantages from replayed states, and targets of a critic that learns from them."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.algorithms.base import AdvantageEstimate, Judged
from pipeline.algorithms.mathematics.replay import segment_gae
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.algorithm import AlgorithmConfig


def by_replay(judged: Judged, cfg: AlgorithmConfig) -> AdvantageEstimate:
    """GAE from state to state that was replayed, without a critic. Raises `ValueError` without replayed states."""
    if judged.replayed is None:
        raise ValueError("advantage 'replay' needs replayed states")
    rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
    replayed = judged.replayed
    return AdvantageEstimate(segment_gae(rewards, replayed.values, replayed.known, judged.mask, cfg.gae_lambda), None)


def targets(judged: Judged, returns: Tensor) -> Tensor:
    """(B, T) what a critic is fitted to: the replayed value where a state has one, elsewhere the return by GAE."""
    if judged.replayed is None:
        return returns
    return torch.where(judged.replayed.known, judged.replayed.values, returns)
