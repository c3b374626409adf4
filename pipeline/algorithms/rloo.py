"""REINFORCE with a leave-one-out baseline (Ahmadian 2024, arXiv 2402.14740): no critic, one advantage a response."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.algorithms.base import AdvantageEstimate, Algorithm, Judged
from pipeline.algorithms.ppo import clipped
from pipeline.config.algorithm import AlgorithmConfig


def leave_one_out(rewards: Tensor, groups: Tensor) -> Tensor:
    """What each response is worth beside the other responses to its prompt.

        A_i = R_i - mean of R_j over j != i of the same group

    rewards (B,); groups (B,) int64, equal for the responses to one prompt; returns (B,) in units of the rewards. With G
    responses it is G / (G - 1) times the distance from the group's own mean, so under Adam both baselines take the same
    steps. Raises `ValueError` for a group of one.
    """
    _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    if bool((sizes < 2).any()):
        raise ValueError("leave-one-out needs at least two responses to every prompt")
    sums = torch.zeros(len(sizes), dtype=rewards.dtype, device=rewards.device).index_add(0, index, rewards)
    others: Tensor = (sums[index] - rewards) / (sizes[index] - 1)
    return rewards - others


def estimate(judged: Judged, cfg: AlgorithmConfig) -> AdvantageEstimate:
    """The same advantage on every token of a response. The KL penalty is subtracted from the score before the baseline,
    as in TRL: it is part of what responses are compared by."""
    advantages = leave_one_out(judged.scores + judged.non_score.sum(1), judged.groups)
    return AdvantageEstimate(torch.where(judged.mask, advantages.unsqueeze(1), 0.0), None)


RLOO = Algorithm(estimate, clipped, "sequence")
