"""What adjusts beta, the entropy bonus and the learning rate while a trial runs. All state is in `state`, which
checkpoints keep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from pipeline.config.schedule import ERROR_CLIP, Schedule
from pipeline.config.trial import TrialConfig

STOP_FACTOR = 1.5
OLD_KL_TOLERANCE, OLD_KL_FACTOR = 1.5, 2.0
"""PPO-penalty: the coefficient moves where the KL is off its target by the first factor, and then by the second."""
OLD_KL_LIMIT = 2.0**20
"""How far the coefficient may go from where it started, up or down, so that it never rounds to 0 or infinity."""


def scheduled(schedule: Schedule, progress: float) -> float:
    """The coefficient at `progress` in [0, 1], 0 in the first update and 1 in the last: beta, or that of the entropy
    bonus.

    linear: c₀ + (c₁ - c₀) p;  cosine: c₁ + (c₀ - c₁) (1 + cos πp) / 2;  piecewise: that of the last stage whose
    fraction is at most p, c₀ before the first; fixed: c₀; adaptive: c₀ where it starts. c₀ is ``start``, c₁ is
    ``end``.

    >>> scheduled(Schedule("linear", 0.1, 0.02, ()), 0.25)
    0.08
    """
    start, end = schedule.start, schedule.end
    match schedule.control:
        case "fixed" | "adaptive":
            return start
        case "linear":
            return start + (end - start) * progress
        case "cosine":
            return end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))
        case "piecewise":
            reached = [value for fraction, value in schedule.stages if fraction <= progress]
            return reached[-1] if reached else start
        case _:
            assert_never(schedule.control)


def elapsed(cfg: TrialConfig, update: int) -> float:
    """Progress in an update, counted from 0: update / (updates - 1), in [0, 1]; 0 where there is only one."""
    return update / max(cfg.train.updates - 1, 1)


def adapted(kl_coef: float, kl_per_sequence: float, target: float, episodes: int, horizon: float) -> float:
    """beta after a rollout of `episodes` sequences whose KL was `kl_per_sequence`, nats per sequence as is `target`.

    err = clip(KL / target - 1, -0.2, 0.2);  β (1 + err · episodes / horizon), `horizon` in episodes. Never negative for
    a horizon above 0.2 · episodes, which the configuration demands. Ziegler 2019 (arXiv 1909.08593), section 2.2.
    """
    return _multiplied(kl_coef, kl_per_sequence / target - 1, episodes, horizon)


def adapted_bonus(ent_coef: float, entropy: float, target: float, episodes: int, horizon: float) -> float:
    """The entropy bonus's coefficient after a rollout of `episodes` sequences whose mean entropy was `entropy`, nats
    per token as is `target`.

    err = clip(1 - H / target, -0.2, 0.2);  c (1 + err · episodes / horizon), `horizon` in episodes: an entropy below
    its target raises the bonus. Ziegler's rule for beta (`adapted`), of an entropy.
    """
    return _multiplied(ent_coef, 1 - entropy / target, episodes, horizon)


def _multiplied(coef: float, error: float, episodes: int, horizon: float) -> float:
    return coef * (1 + min(max(error, -ERROR_CLIP), ERROR_CLIP) * episodes / horizon)


def multiplier(weight: float, mean: float, floor: float, lr: float, most: float) -> float:
    """λ after a rollout in which a part of the reward had this mean: min(max(λ + lr (floor - mean), 0), most).

    Gradient ascent on the dual of "maximise the reward while the part's mean is at least its floor". Altman 1999,
    Constrained Markov Decision Processes; for RLHF Dai et al. 2023 (arXiv 2310.12773).

    >>> multiplier(0.5, -1.0, 0.0, 0.25, 10.0), multiplier(0.5, 4.0, 0.0, 0.25, 10.0)
    (0.75, 0.0)
    """
    return min(max(weight + lr * (floor - mean), 0.0), most)


def doubled_or_halved(coef: float, kl: float, target: float) -> float:
    """The coefficient of the penalty on KL(old || new) after an update that ended at `kl`; both nats per token.

        2 β  where  kl > 1.5 target,   β / 2  where  kl < target / 1.5,   β otherwise

    Schulman 2017 (arXiv 1707.06347), section 4.

    >>> [doubled_or_halved(1.0, kl, 0.01) for kl in (0.016, 0.01, 0.006)]
    [2.0, 1.0, 0.5]
    """
    if kl > OLD_KL_TOLERANCE * target:
        return coef * OLD_KL_FACTOR
    return coef / OLD_KL_FACTOR if kl < target / OLD_KL_TOLERANCE else coef


def hinge(kl_per_token: float, threshold: float | None) -> float:
    """Factor on a step whose policy is `kl_per_token` nats per token away from the reference: min(1, threshold / KL).

    It acts on the learning rate: Adam divides a scale of the loss out again. It never reaches 0, since a policy
    that is held still has no way back.
    """
    if threshold is None or kl_per_token <= threshold:
        return 1.0
    return threshold / kl_per_token


def out_of_reach(approxkl: float, target_kl: float | None) -> bool:
    """Whether the epochs end before this step: approxkl, nats per token, above 1.5 times its target."""
    return target_kl is not None and approxkl > STOP_FACTOR * target_kl


@dataclass
class KlController:
    """beta: fixed, on a schedule, or driven towards a target KL."""

    cfg: TrialConfig
    kl_coef: float

    @classmethod
    def of(cls, cfg: TrialConfig) -> KlController:
        return cls(cfg, cfg.kl.beta)

    def start(self, update: int) -> None:
        """An update begins, counted from 0."""
        if self.cfg.kl.control != "adaptive":
            self.kl_coef = scheduled(self.cfg.kl.schedule, elapsed(self.cfg, update))

    def observe(self, kl_per_sequence: float) -> None:
        """Take the KL of one rollout into account, nats per sequence."""
        if self.cfg.kl.control == "adaptive":
            self.kl_coef = adapted(
                self.kl_coef, kl_per_sequence, self.cfg.kl.target, self.cfg.train.batch_size, self.cfg.kl.horizon
            )

    def state(self) -> dict[str, float]:
        return {"kl_coef": self.kl_coef}

    def load(self, state: dict[str, float]) -> None:
        self.kl_coef = state["kl_coef"]


@dataclass
class EntropyController:
    """Weight of the entropy bonus: fixed, on a schedule, or driven towards a target entropy."""

    cfg: TrialConfig
    coef: float

    @classmethod
    def of(cls, cfg: TrialConfig) -> EntropyController:
        return cls(cfg, cfg.entropy.coef)

    def start(self, update: int) -> None:
        """An update begins, counted from 0."""
        if self.cfg.entropy.control != "adaptive":
            self.coef = scheduled(self.cfg.entropy.schedule, elapsed(self.cfg, update))

    def observe(self, entropy_per_token: float) -> None:
        """Take the exact entropy of one rollout into account, nats per token."""
        knobs = self.cfg.entropy
        if knobs.control == "adaptive":
            episodes = self.cfg.train.batch_size
            self.coef = adapted_bonus(self.coef, entropy_per_token, knobs.target, episodes, knobs.horizon)

    def state(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]


@dataclass
class FloorController:
    """Weight of the part of the reward that has a floor: dual ascent on its Lagrange multiplier."""

    cfg: TrialConfig
    value: float

    @classmethod
    def of(cls, cfg: TrialConfig) -> FloorController:
        return cls(cfg, cfg.floor.weight)

    @property
    def weight(self) -> float | None:
        """The weight now; None where no part has a floor."""
        return None if self.cfg.floor.part is None else self.value

    def observe(self, mean: float) -> None:
        """Take the mean of the part over one rollout into account, std of reference samples."""
        floor = self.cfg.floor
        self.value = multiplier(self.value, mean, floor.at, floor.lr, floor.max_weight)

    def state(self) -> dict[str, float]:
        return {"value": self.value}

    def load(self, state: dict[str, float]) -> None:
        self.value = state["value"]


@dataclass
class OldKlController:
    """PPO-penalty's coefficient of KL(old || new), doubled or halved after each update."""

    enabled: bool
    target: float
    start: float
    value: float

    @classmethod
    def of(cls, cfg: TrialConfig) -> OldKlController:
        start = cfg.algorithm.old_kl_coef
        return cls(cfg.algorithm.trust_region == "kl_penalty", cfg.algorithm.old_kl_target, start, start)

    @property
    def coef(self) -> float | None:
        """Weight in the loss; None without such a penalty."""
        return self.value if self.enabled else None

    def observe(self, kl: float) -> None:
        """Take into account how far an update has moved the policy, nats per token."""
        moved = doubled_or_halved(self.value, kl, self.target)
        self.value = min(max(moved, self.start / OLD_KL_LIMIT), self.start * OLD_KL_LIMIT)

    def state(self) -> dict[str, float]:
        return {"value": self.value}

    def load(self, state: dict[str, float]) -> None:
        self.value = state["value"]


@dataclass
class LrGuard:
    """Cuts the policy's learning rate for a while when the policy is too far from the reference.

    A rollout whose KL per token exceeds `threshold` sets the factor for the next `hold` gradient steps;
    another one within that time starts the count again, it does not cut deeper.
    """

    enabled: bool
    threshold: float
    cut: float
    hold: int
    remaining: int = 0

    @classmethod
    def of(cls, cfg: TrialConfig) -> LrGuard:
        return cls(cfg.optimiser.guard, cfg.optimiser.guard_kl, cfg.optimiser.guard_factor, cfg.optimiser.guard_steps)

    @property
    def factor(self) -> float:
        """What to multiply the policy's learning rate by now."""
        return self.cut if self.remaining > 0 else 1.0

    def observe(self, kl_per_token: float) -> None:
        """Take the KL of one rollout into account, nats per token."""
        if self.enabled and kl_per_token > self.threshold:
            self.remaining = self.hold

    def step(self) -> None:
        """One gradient step has been taken."""
        self.remaining = max(self.remaining - 1, 0)

    def state(self) -> dict[str, int]:
        return {"remaining": self.remaining}

    def load(self, state: dict[str, int]) -> None:
        self.remaining = state["remaining"]


def lr_schedule(cfg: TrialConfig, position: int) -> float:
    """Factor on the learning rates at a gradient step, by its place among those planned: linear to 0, or constant."""
    match cfg.optimiser.lr_schedule:
        case "linear":
            return 1 - position / cfg.train.steps
        case "constant":
            return 1.0
        case _:
            assert_never(cfg.optimiser.lr_schedule)
