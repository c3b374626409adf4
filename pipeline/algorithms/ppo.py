"""Proximal policy optimisation (Schulman 2017, arXiv 1707.06347): GAE, and the clipped ratio of every token."""

from __future__ import annotations

from torch import Tensor

from pipeline.algorithms.base import AdvantageEstimate, Algorithm, Behaviour, Judged
from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.losses import dual_clip, policy_loss
from pipeline.algorithms.mathematics.masking import masked_whiten
from pipeline.algorithms.mathematics.shaping import token_rewards
from pipeline.config.algorithm import AlgorithmConfig


def estimate(judged: Judged, cfg: AlgorithmConfig) -> AdvantageEstimate:
    """Advantages and returns by GAE. With ``whiten_rewards`` the token rewards are scaled to variance 1 first, and keep
    their mean. Raises `ValueError` without a critic."""
    if judged.values is None:
        raise ValueError("GAE needs a critic")
    rewards = token_rewards(judged.scores, judged.non_score, judged.mask)
    if cfg.whiten_rewards:
        rewards = masked_whiten(rewards, judged.mask, shift_mean=False)
    return AdvantageEstimate(*gae(rewards, judged.values, judged.mask, cfg.gamma, cfg.gae_lambda))


def clipped(batch: Behaviour, new_logprobs: Tensor, cfg: AlgorithmConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate, with ``dual_clip`` bounded from above too; a `Surrogate` of either scope."""
    loss, active = policy_loss(new_logprobs, batch.logprobs, batch.advantages, cfg.cliprange)
    metrics = {"policy/pg_clipfrac": active}
    if cfg.dual_clip is not None:
        loss, metrics["policy/dual_clipfrac"] = dual_clip(loss, batch.advantages, cfg.dual_clip)
    return loss, metrics


PPO = Algorithm(estimate, clipped, "token")
