"""The policy's loss, token by token or response by response: what a ratio may gain.

Each is a `Surrogate`: the level of the ratio (tokens, or the mean or sum of a response) is the caller's.
"""

from __future__ import annotations

from torch import Tensor

from pipeline.algorithms.mathematics.kl import limited
from pipeline.algorithms.mathematics.losses import capped_weight_loss, policy_loss
from pipeline.algorithms.settings import CispoSettings, ClipSettings

Losses = tuple[Tensor, dict[str, Tensor]]


def clipped(new: Tensor, old: Tensor, advantages: Tensor, clip: ClipSettings) -> Losses:
    """The clipped surrogate."""
    loss, active = policy_loss(new, old, advantages, *clip.epsilons)
    return loss, {"policy/pg_clipfrac": active}


def capped(new: Tensor, old: Tensor, advantages: Tensor, cispo: CispoSettings) -> Losses:
    """CISPO: the capped ratio as a constant weight of the log-probability."""
    loss, active = capped_weight_loss(new, old, advantages, cispo.cap)
    return loss, {"policy/pg_clipfrac": active}


def unbounded(new: Tensor, old: Tensor, advantages: Tensor, settings: object) -> Losses:
    """-A ratio."""
    return -advantages * limited(new - old).exp(), {}
