"""Gradient steps at the beginning that are the critic's alone."""

from __future__ import annotations

from typing import Self

from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part


class WarmUp(Part):
    """Asked for where it would train a critic."""

    name = "warm_up"

    def __init__(self, steps: int) -> None:
        self._steps = steps

    @classmethod
    def of(cls, cfg: TrialConfig) -> Self | None:
        critic = cfg.critic
        trained = critic.kind != "none" and critic.vf_coef > 0 and cfg.algorithm.trust_region != "trpo"
        return cls(critic.warmup_steps) if trained and critic.warmup_steps else None

    def frozen(self, position: int) -> bool:
        return position < self._steps
