"""Interface of an algorithm: an estimator of advantages, and a surrogate of the policy's loss, which stands here too.
Their code is found by the entries of `pipeline.algorithms.kinds`.

B sequences, T response columns, N valid tokens of some rows, row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from pipeline.algorithms.kinds import ADVANTAGES, TRUST_REGIONS
from pipeline.algorithms.mathematics.kl import limited
from pipeline.algorithms.mathematics.losses import capped_weight_loss, policy_loss
from pipeline.algorithms.settings import ClipSettings
from pipeline.config.algorithm import AlgorithmConfig
from pipeline.config.effects import value_at

CISPO_CAP = 5.0
"""The largest weight that a ratio can have in CISPO."""


@dataclass(frozen=True)
class Replayed:
    """Values of states of a rollout, found by sampling them onwards."""

    values: Tensor
    """(B, T) mean of the rewards to go over the continuations of the state before token t, score units; 0 where not
    known."""
    known: Tensor
    """(B, T) True at the states that were replayed; the first of every response, or none of it."""
    noise: Tensor
    """(B, T) squared standard error of each known value, squared score units; NaN with one continuation."""


@dataclass(frozen=True)
class Judged:
    """A rollout as the input of an estimator, in score units."""

    scores: Tensor
    """(B,) of the responses, after EOS handling; less the KL penalty of the response where it is in the score, and less
    what is earned on tokens."""
    non_score: Tensor
    """(B, T) the KL penalty on every token, where it is there, and the points of a dense reward; 0 on invalid ones."""
    values: Tensor | None
    """(B, T) of the critic, where there is one."""
    mask: Tensor
    """(B, T) True on valid tokens, a prefix of each row."""
    groups: Tensor
    """(B,) int64, equal for the responses to one prompt."""
    greedy: Tensor | None = None
    """(B,) reward of the greedy response to the same prompt, KL penalty included; where the advantage needs it."""
    v_star: Tensor | None = None
    """(B,) V* of each response's prompt, where the advantage needs it."""
    replayed: Replayed | None = None
    """Replayed states, where the advantage or the critic needs them."""


Estimate = tuple[Tensor, Tensor | None]
"""(B, T) advantages, not yet whitened, and (B, T) targets of the critic where there is one: score units, 0 on invalid
tokens."""
Estimator = Callable[[Judged, AlgorithmConfig], Estimate]
"""Function from a judged rollout to advantages."""
Surrogate = Callable[[Tensor, Tensor, Tensor, Any], tuple[Tensor, dict[str, Tensor]]]
"""Function of the log-probs of n tokens, or the sums or means of n responses, by the network and by the policy that
sampled, nats; of their advantages (n,); and of the settings of the trust region. Returns the policy's losses (n,), to
be minimised, and (n,) of each metric, to be averaged."""
Losses = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]
"""A surrogate with its settings."""


def estimator_of(cfg: AlgorithmConfig) -> Estimator:
    """The estimator of `algorithm.advantage`, which is not none."""
    code = ADVANTAGES[cfg.advantage].code
    assert code is not None
    found: Estimator = resolve_name(code)
    return found


def surrogate_of(cfg: AlgorithmConfig) -> Losses:
    """The surrogate of `algorithm.trust_region`; without a ratio -A log π, whose gradient is that of REINFORCE."""
    if cfg.ratio == "none":
        return lambda new, old, advantages: (-advantages * new, {})
    region = TRUST_REGIONS[cfg.trust_region]
    code: Surrogate = resolve_name(region.code)
    settings = value_at(cfg, cfg.trust_region) if region.settings else None
    return lambda new, old, advantages: code(new, old, advantages, settings)


def clipped(new: Tensor, old: Tensor, advantages: Tensor, clip: ClipSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate."""
    loss, active = policy_loss(new, old, advantages, *clip.epsilons)
    return loss, {"policy/pg_clipfrac": active}


def capped(new: Tensor, old: Tensor, advantages: Tensor, settings: None) -> tuple[Tensor, dict[str, Tensor]]:
    """CISPO: the capped ratio as a constant weight of the log-probability."""
    loss, active = capped_weight_loss(new, old, advantages, CISPO_CAP)
    return loss, {"policy/pg_clipfrac": active}


def unbounded(new: Tensor, old: Tensor, advantages: Tensor, settings: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """-A ratio."""
    return -advantages * limited(new - old).exp(), {}
