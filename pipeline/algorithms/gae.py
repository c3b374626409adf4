"""Advantages from a learned critic: generalised advantage estimation."""

from __future__ import annotations

from pipeline.algorithms.base import Estimate, Judged
from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.algorithm import AlgorithmConfig


def by_critic(judged: Judged, cfg: AlgorithmConfig) -> Estimate:
    """Advantages and returns by GAE, the returns with a lambda of their own where there is one: 1 makes them Monte
    Carlo, whatever bias the advantages may have (VC-PPO: Yuan 2025, arXiv 2503.01491).

    Raises `ValueError` without a critic.
    """
    if judged.values is None:
        raise ValueError("GAE needs a critic")
    rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
    advantages, returns = gae(rewards, judged.values, judged.mask, cfg.gamma, cfg.gae_lambda)
    if cfg.value_lambda is not None:
        returns = gae(rewards, judged.values, judged.mask, cfg.gamma, cfg.value_lambda)[1]
    return advantages, returns
