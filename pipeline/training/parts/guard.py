"""A cut of the policy's learning rate for a while after a rollout that was too far from the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pipeline.config.algorithm import OptimiserConfig
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Step


class Guard(Part):
    """A rollout whose KL per token exceeds `guard_kl` sets the factor for the next `guard_steps` gradient steps;
    another one within that time starts the count again, it does not cut deeper."""

    name = "guard"
    keeps = ("remaining",)

    def __init__(self, optimiser: OptimiserConfig) -> None:
        self._knobs, self.remaining = optimiser, 0

    @classmethod
    def of(cls, cfg: TrialConfig) -> Self | None:
        return cls(cfg.optimiser) if cfg.optimiser.guard else None

    def step(self, measured: Mapping[str, float]) -> Step:
        factor = self._knobs.guard_factor if self.remaining > 0 else 1.0
        return Step(factor, metrics={"policy/lr_factor": factor})

    def stepped(self) -> None:
        self.remaining = max(self.remaining - 1, 0)

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if measured["objective/kl_per_token"] > self._knobs.guard_kl:
            self.remaining = self._knobs.guard_steps
        return {}
