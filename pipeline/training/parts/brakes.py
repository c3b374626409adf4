"""Brakes on the policy: warm-up, guard, hinge, target KL, the penalty of PPO-penalty, and rules that end a trial."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.mathematics.kl import k3
from pipeline.algorithms.settings import KlConfig, KlPenaltySettings
from pipeline.config.algorithm import AlgorithmConfig, OptimiserConfig
from pipeline.config.networks import CriticConfig
from pipeline.config.train import TrainConfig
from pipeline.config.trial import TrialConfig
from pipeline.stopping import Watcher
from pipeline.training.experience import LossTerm, Rows
from pipeline.training.part import TAKEN, Part, Step

STOP_FACTOR = 1.5
GUARD_FACTOR, GUARD_STEPS = 0.5, 100
OLD_KL_TOLERANCE = 1.5
START, LIMIT = 1.0, 2.0**20
"""Coefficient of the old KL in the first update, and the largest factor on it, up or down: it never rounds to 0 or
infinity. The start matters for a few updates alone, since each doubles or halves it."""
MOVED = "policy/old_kl"


class WarmUp(Part[CriticConfig]):
    """Gradient steps at the beginning that are the critic's alone, where there is one to train."""

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.critic.warmup_steps > 0 and cfg.critic.kind != "none" and cfg.critic.vf_coef > 0

    def frozen(self, position: int) -> bool:
        return position < self.settings.warmup_steps


class Guard(Part[OptimiserConfig]):
    """A cut of the policy's learning rate after a rollout that was too far from the reference.

    A KL per token above `guard_kl` halves it for the next 100 gradient steps; another one within that time starts the
    count again, it does not cut deeper.
    """

    keeps = ("remaining",)
    remaining = 0
    """Gradient steps that are still cut."""

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.optimiser.guard

    def step(self, measured: Mapping[str, float]) -> Step:
        factor = GUARD_FACTOR if self.remaining > 0 else 1.0
        return Step(factor, metrics={"policy/lr_factor": factor})

    def stepped(self) -> None:
        self.remaining = max(self.remaining - 1, 0)

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if measured["objective/kl_per_token"] > self.settings.guard_kl:
            self.remaining = GUARD_STEPS
        return {}


class Hinge(Part[KlConfig]):
    """A learning rate that falls as the policy leaves the reference: by min(1, threshold / KL) in each gradient step,
    with `kl.hinge` in nats per token.

    It acts on the learning rate, since Adam divides a scale of the loss out again. It never reaches 0: a policy that is
    held still has no way back.
    """

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.kl.hinge is not None

    def step(self, measured: Mapping[str, float]) -> Step:
        assert self.settings.hinge is not None
        kl, threshold = measured["policy/kl_ref_per_token"], self.settings.hinge
        factor = 1.0 if kl <= threshold else threshold / kl
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


class OldKl(Part[KlPenaltySettings]):
    """A penalty on KL(old || new), whose coefficient is doubled or halved after each update: the part of the trust
    region `kl_penalty`. Schulman 2017 (arXiv 1707.06347), section 4."""

    keeps = ("coef",)
    measurements = frozenset({MOVED})
    coef = START

    def loss(self, rows: Rows) -> LossTerm | None:
        # k3 on samples of the old policy: unbiased and never negative; its gradient is (ratio - 1) ∇ log π.
        return LossTerm(
            lambda tokens, logprobs, entropy: rows.weighted(
                tokens, self.coef * k3(rows.old_logprobs[tokens] - logprobs)
            )
        )

    def step(self, measured: Mapping[str, float]) -> Step:
        return Step(metrics={"policy/old_kl_coef": self.coef})

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if policy_moved:
            kl, target, coef = measured[MOVED], self.settings.target, self.coef
            if kl > OLD_KL_TOLERANCE * target:
                coef *= 2
            elif kl < target / OLD_KL_TOLERANCE:
                coef /= 2
            self.coef = min(max(coef, START / LIMIT), START * LIMIT)
        return {MOVED: measured[MOVED]}


class StopRules(Part[TrainConfig]):
    """Ends a trial by what it records (`train.stop`), judged as a falsifier will judge the record."""

    keeps = ("series",)

    def __init__(self, cfg: TrialConfig, settings: TrainConfig) -> None:
        super().__init__(cfg, settings)
        self.series: dict[str, dict[int, float]] = {}

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return bool(cfg.train.stop)

    def recorded(self, step: int, values: Mapping[str, float]) -> None:
        Watcher(self.settings.stop, self.series).observe(step, values)

    def stop(self) -> str | None:
        return Watcher(self.settings.stop, self.series).broken()
