"""A cut of the policy's learning rate for a while after a rollout that was too far from the reference."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Step


class Guard(Part):
    """A rollout whose KL per token exceeds `guard_kl` sets the factor for the next `guard_steps` gradient steps;
    another one within that time starts the count again, it does not cut deeper."""

    name = "guard"
    keeps = ("remaining",)
    remaining = 0
    """Gradient steps that are still cut."""

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.optimiser.guard

    def step(self, measured: Mapping[str, float]) -> Step:
        factor = self.cfg.optimiser.guard_factor if self.remaining > 0 else 1.0
        return Step(factor, metrics={"policy/lr_factor": factor})

    def stepped(self) -> None:
        self.remaining = max(self.remaining - 1, 0)

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if measured["objective/kl_per_token"] > self.cfg.optimiser.guard_kl:
            self.remaining = self.cfg.optimiser.guard_steps
        return {}
