"""The policy's loss, token by token or response by response: what a ratio may gain.

Each is a `Surrogate`: the level of the ratio (tokens, or the mean or sum of a response) is the caller's.
"""

from __future__ import annotations

from torch import Tensor

from pipeline.algorithms.base import Behaviour
from pipeline.algorithms.mathematics.kl import limited
from pipeline.algorithms.mathematics.losses import capped_weight_loss, dual_clip, policy_loss
from pipeline.algorithms.settings import CispoSettings, ClipSettings


def clipped(batch: Behaviour, new_logprobs: Tensor, clip: ClipSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate, with ``dual`` bounded from above too."""
    loss, active = policy_loss(new_logprobs, batch.logprobs, batch.advantages, *clip.epsilons)
    metrics = {"policy/pg_clipfrac": active}
    if clip.dual is not None:
        loss, metrics["policy/dual_clipfrac"] = dual_clip(loss, batch.advantages, clip.dual)
    return loss, metrics


def capped(batch: Behaviour, new_logprobs: Tensor, cispo: CispoSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """CISPO: the capped ratio as a constant weight of the log-probability."""
    loss, active = capped_weight_loss(new_logprobs, batch.logprobs, batch.advantages, cispo.cap)
    return loss, {"policy/pg_clipfrac": active}


def unbounded(batch: Behaviour, new_logprobs: Tensor, settings: object) -> tuple[Tensor, dict[str, Tensor]]:
    """-A ratio."""
    return -batch.advantages * limited(new_logprobs - batch.logprobs).exp(), {}
