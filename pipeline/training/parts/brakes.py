"""Brakes on the policy's gradient steps: warm-up, guard, hinge and target KL."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.kl_settings import KlConfig
from pipeline.algorithms.mathematics.controllers import hinge
from pipeline.config.algorithm import AlgorithmConfig, OptimiserConfig
from pipeline.config.networks import CriticConfig
from pipeline.config.trial import TrialConfig
from pipeline.training.part import TAKEN, Part, Step

STOP_FACTOR = 1.5


class WarmUp(Part[CriticConfig]):
    """Gradient steps at the beginning that are the critic's alone, where there is one to train."""

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.critic.warmup_steps > 0 and cfg.critic.kind != "none" and cfg.critic.vf_coef > 0

    def frozen(self, position: int) -> bool:
        return position < self.settings.warmup_steps


class Guard(Part[OptimiserConfig]):
    """A cut of the policy's learning rate after a rollout that was too far from the reference.

    A KL per token above `guard_kl` sets the factor for the next `guard_steps` gradient steps; another one within that
    time starts the count again, it does not cut deeper.
    """

    keeps = ("remaining",)
    remaining = 0
    """Gradient steps that are still cut."""

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.optimiser.guard

    def step(self, measured: Mapping[str, float]) -> Step:
        factor = self.settings.guard_factor if self.remaining > 0 else 1.0
        return Step(factor, metrics={"policy/lr_factor": factor})

    def stepped(self) -> None:
        self.remaining = max(self.remaining - 1, 0)

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if measured["objective/kl_per_token"] > self.settings.guard_kl:
            self.remaining = self.settings.guard_steps
        return {}


class Hinge(Part[KlConfig]):
    """A learning rate that falls as the policy leaves the reference: by min(1, threshold / KL) in each gradient step,
    with `kl.hinge` in nats per token."""

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.kl.hinge is not None

    def step(self, measured: Mapping[str, float]) -> Step:
        assert self.settings.hinge is not None
        factor = hinge(measured["policy/kl_ref_per_token"], self.settings.hinge)
        return Step(factor, metrics={"policy/kl_hinge": factor})


class TargetKl(Part[AlgorithmConfig]):
    """The epochs of an update end before a step whose KL to the policy that sampled is above `STOP_FACTOR` times
    `algorithm.target_kl`, in nats per token."""

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.algorithm.target_kl is not None

    def step(self, measured: Mapping[str, float]) -> Step:
        assert self.settings.target_kl is not None
        return Step(ends=measured["policy/approxkl"] > STOP_FACTOR * self.settings.target_kl)

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        return {TAKEN: measured[TAKEN]}
