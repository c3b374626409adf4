"""Proximal policy optimisation (Schulman 2017, arXiv 1707.06347): its estimator and its objective, as pure functions.

The loops that call them are in `pipeline.training`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.algorithms.mathematics.advantages import gae
from pipeline.algorithms.mathematics.kl import k2, k3
from pipeline.algorithms.mathematics.losses import dual_clip, kl_loss, policy_loss
from pipeline.algorithms.mathematics.masking import masked_whiten
from pipeline.config.algorithm import PpoConfig


@dataclass(frozen=True)
class Tokens:
    """The valid tokens of some rows of a rollout, row by row; each (N,)."""

    logprobs: Tensor
    """Of the behaviour policy, nats; as those of the reference."""
    ref_logprobs: Tensor
    values: Tensor
    """Of the rollout's critic, score units; as the returns."""
    advantages: Tensor
    returns: Tensor

    def at(self, rows: slice) -> Tokens:
        """A slice of the tokens."""
        return Tokens(*(column[rows] for column in vars(self).values()))


def estimate(rewards: Tensor, values: Tensor, mask: Tensor, cfg: PpoConfig) -> tuple[Tensor, Tensor]:
    """Advantages, not yet whitened, and returns by GAE.

    rewards, values (B, T) in score units; mask (B, T) True on valid tokens, a prefix of each row; both results (B, T)
    and 0 on invalid tokens. With ``whiten_rewards`` the rewards are scaled to variance 1 first, and keep their mean.
    """
    if cfg.whiten_rewards:
        rewards = masked_whiten(rewards, mask, shift_mean=False)
    return gae(rewards, values, mask, cfg.gamma, cfg.gae_lambda)


def policy_terms(
    batch: Tokens, new_logprobs: Tensor, kl_coef: float, cfg: PpoConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy's loss of every token, entropy bonus apart, and what the metrics average; all (N,)."""
    loss, clipped = policy_loss(new_logprobs, batch.logprobs, batch.advantages, cfg.cliprange)
    log_ratio = (new_logprobs - batch.logprobs).detach()
    ratio = log_ratio.exp()
    metrics = {
        "policy/pg_clipfrac": clipped,
        "policy/approxkl": k2(log_ratio),
        "policy/approxkl_k3": k3(-log_ratio),
        "policy/ratio": ratio,
        "policy/kl_ref_per_token": ratio * (new_logprobs.detach() - batch.ref_logprobs),
    }
    if cfg.dual_clip is not None:
        loss, metrics["policy/dual_clipfrac"] = dual_clip(loss, batch.advantages, cfg.dual_clip)
    metrics["policy/pg_loss"] = loss.detach()
    if cfg.kl_in == "loss":
        penalty = kl_coef * kl_loss(new_logprobs, batch.ref_logprobs, cfg.kl_loss_estimator)
        loss, metrics["policy/kl_loss"] = loss + penalty, penalty.detach()
    return loss, metrics
