"""What adjusts beta and the learning rate between updates. All state is in `state`, which checkpoints keep."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config import PpoConfig

ERROR_CLIP = 0.2


@dataclass
class KlController:
    """beta: fixed, or driven towards a target KL (Ziegler 2019, arXiv 1909.08593, section 2.2).

    err = clip(KL / target - 1, -0.2, 0.2);  beta *= 1 + err * episodes / horizon. KL in nats per sequence.
    """

    kl_coef: float
    adaptive: bool
    target: float
    horizon: float

    @classmethod
    def of(cls, cfg: PpoConfig) -> KlController:
        return cls(cfg.kl_coef, cfg.kl_control == "adaptive", cfg.kl_target, cfg.kl_horizon)

    def observe(self, kl_per_sequence: float, episodes: int) -> None:
        """Take the KL of one rollout of `episodes` sequences into account."""
        if self.adaptive:
            error = min(max(kl_per_sequence / self.target - 1, -ERROR_CLIP), ERROR_CLIP)
            self.kl_coef *= 1 + error * episodes / self.horizon

    def state(self) -> dict[str, float]:
        return {"kl_coef": self.kl_coef}

    def load(self, state: dict[str, float]) -> None:
        self.kl_coef = state["kl_coef"]


@dataclass
class LrGuard:
    """Cuts the learning rate for a while when the policy is too far from the reference.

    A rollout whose KL per token exceeds `threshold` sets the factor for the next `hold` gradient steps;
    another one within that time starts the count again, it does not cut deeper.
    """

    enabled: bool
    threshold: float
    cut: float
    hold: int
    remaining: int = 0

    @classmethod
    def of(cls, cfg: PpoConfig) -> LrGuard:
        return cls(cfg.lr_guard, cfg.lr_guard_kl, cfg.lr_guard_factor, cfg.lr_guard_steps)

    @property
    def factor(self) -> float:
        """What to multiply the learning rate by now."""
        return self.cut if self.remaining > 0 else 1.0

    def observe(self, kl_per_token: float) -> None:
        """Take the KL of one rollout into account."""
        if self.enabled and kl_per_token > self.threshold:
            self.remaining = self.hold

    def step(self) -> None:
        """One gradient step has been taken."""
        self.remaining = max(self.remaining - 1, 0)

    def state(self) -> dict[str, int]:
        return {"remaining": self.remaining}

    def load(self, state: dict[str, int]) -> None:
        self.remaining = state["remaining"]


def schedule(cfg: PpoConfig, steps_taken: int) -> float:
    """Factor on the learning rates of the next gradient step: linear to 0 at the end of the trial, or constant."""
    return 1 - steps_taken / cfg.steps if cfg.lr_schedule == "linear" else 1.0
