"""Advantages without a critic: the score of a response against a baseline made of other scores.

What is left of the KL penalty in the tokens' rewards is not compared: each token has its own, from itself to the end of
its response. Scores are compared as they are, so nothing is discounted, but in `rewards_to_go`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.algorithms.base import Estimate, Estimator, Judged
from pipeline.algorithms.mathematics.advantages import to_go
from pipeline.algorithms.mathematics.groups import centred, leave_one_out, normalised
from pipeline.algorithms.mathematics.preference import prefers
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.algorithm import AlgorithmConfig

EPSILON = 1e-4
"""Added to a standard deviation of scores, as in TRL: a group of equal scores has advantage 0, not 0 / 0."""


def _of_scores(compare: Callable[[Tensor, Tensor], Tensor]) -> Estimator:
    """Build an estimator from a function of scores (B,) and groups (B,) that returns the worth (B,) of each score."""

    def estimate(judged: Judged, cfg: AlgorithmConfig) -> Estimate:
        worth = compare(judged.scores, judged.groups).unsqueeze(1)
        advantages = worth + to_go(judged.non_score, judged.mask, gamma=1.0)
        return torch.where(judged.mask, advantages, 0.0), None

    return estimate


batch_mean = _of_scores(lambda scores, groups: scores - scores.mean())
"""REINFORCE (Williams 1992) with the mean of the rollout: responses to easy prompts have an advantage."""

rloo = _of_scores(leave_one_out)
"""Ahmadian 2024 (arXiv 2402.14740). With G responses it is G / (G - 1) times `group_mean`."""

group_mean = _of_scores(centred)
"""Dr. GRPO: Liu 2025 (arXiv 2503.20783)."""

group_norm = _of_scores(lambda scores, groups: normalised(scores, groups, EPSILON))
"""GRPO: Shao 2024 (arXiv 2402.03300)."""

group_mean_batch_std = _of_scores(lambda scores, groups: centred(scores, groups) / (scores.std() + EPSILON))
"""Lite PPO: Liu 2025 (arXiv 2508.08221); the standard deviation is that of the scores themselves, not of their
distances from their groups' means, and divides by n - 1."""


preference = _of_scores(prefers)
"""1 for the better of two responses, -1 for the other, 0 for equal ones, which a loss of pairs leaves out."""


def remax(judged: Judged, cfg: AlgorithmConfig) -> Estimate:
    """ReMax: Li 2024 (arXiv 2310.10505). The greedy response pays for its own KL as the sampled ones do; with its bare
    score as the baseline, as in verl, the mean advantage would be negative. Raises `ValueError` without it."""
    if judged.greedy is None:
        raise ValueError("remax needs the greedy responses")
    rewards = to_go(token_rewards(judged.scores, judged.non_score, judged.mask), judged.mask, gamma=1.0)
    return torch.where(judged.mask, rewards - judged.greedy.unsqueeze(1), 0.0), None


def against_v_star(judged: Judged, cfg: AlgorithmConfig) -> Estimate:
    """A*-PO: Brantley 2025 (arXiv 2505.20686). The baseline is the prompt's V*, from samples of the reference that were
    scored beforehand; it does not move with the policy.

    Raises `ValueError` without these values.
    """
    known = judged.v_star
    if known is None:
        raise ValueError("advantage 'v_star' needs the V* of every prompt")
    return _of_scores(lambda scores, groups: scores - known.to(scores.dtype))(judged, cfg)


def rewards_to_go(judged: Judged, cfg: AlgorithmConfig) -> Estimate:
    """REINFORCE++ before its whitening: Hu 2025 (arXiv 2501.03262).

    The baseline is the whitening's mean over tokens, so that a long response weighs more in it.
    """
    rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
    return to_go(rewards, judged.mask, cfg.gamma), None
