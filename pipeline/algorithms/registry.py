"""The code of an advantage and of a trust region, by their lines in `pipeline.algorithms.kinds`. Named algorithms are
presets of them (`pipeline.config.presets`)."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

from torch import Tensor

from pipeline.algorithms.base import Estimator, Surrogate
from pipeline.algorithms.kinds import ADVANTAGES, TRUST_REGIONS
from pipeline.config.algorithm import AlgorithmConfig
from pipeline.config.effects import value_at

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
