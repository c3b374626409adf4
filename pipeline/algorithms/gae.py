"""Advantages from a learned critic: generalised advantage estimation."""

from __future__ import annotations

from pipeline.algorithms.base import AdvantageEstimate, Judged
from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.masking import masked_whiten
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.algorithm import AlgorithmConfig


def by_critic(judged: Judged, cfg: AlgorithmConfig) -> AdvantageEstimate:
    """Advantages and returns by GAE, the returns with a lambda of their own where there is one: 1 makes them Monte
    Carlo, whatever bias the advantages may have (VC-PPO: Yuan 2025, arXiv 2503.01491).

    With ``whiten_rewards`` the token rewards are scaled to variance 1 first, and keep their mean. Raises `ValueError`
    without a critic.
    """
    if judged.values is None:
        raise ValueError("GAE needs a critic")
    rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
    if cfg.whiten_rewards:
        rewards = masked_whiten(rewards, judged.mask, shift_mean=False)
    advantages, returns = gae(rewards, judged.values, judged.mask, cfg.gamma, cfg.gae_lambda)
    if cfg.value_lambda is not None:
        returns = gae(rewards, judged.values, judged.mask, cfg.gamma, cfg.value_lambda)[1]
    return AdvantageEstimate(advantages, returns)
