"""Controllers of beta, the entropy bonus and the learning rate; `pipeline.training.parts` keep their state."""

from __future__ import annotations

import math
from typing import assert_never

from pipeline.config.trial import TrialConfig
from pipeline.schedule_settings import Scheduled

ERROR_CLIP = 0.2
"""Adaptive: the largest relative error that one rollout may report (Ziegler 2019)."""
OLD_KL_TOLERANCE, OLD_KL_FACTOR = 1.5, 2.0
"""PPO-penalty: the coefficient moves where the KL is off its target by the first factor, and then by the second."""


def scheduled(schedule: Scheduled, progress: float) -> float:
    """The coefficient at `progress` in [0, 1], 0 in the first update and 1 in the last: beta, or that of the entropy
    bonus.

    linear: c₀ + (c₁ - c₀) p;  cosine: c₁ + (c₀ - c₁) (1 + cos πp) / 2;  fixed: c₀;  adaptive: c₀, where it
    starts. c₀ is ``start``, c₁ is ``end``.

    >>> from pipeline.algorithms.kl_settings import KlConfig
    >>> scheduled(KlConfig(control="linear", beta=0.1, end=0.02), 0.25)
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
        case _:
            assert_never(schedule.control)


def elapsed(cfg: TrialConfig, update: int) -> float:
    """Progress in an update, counted from 0: update / (updates - 1), in [0, 1]; 0 where there is only one."""
    return update / max(cfg.train.updates - 1, 1)


def adapted(coef: float, error: float, episodes: int, horizon: float) -> float:
    """An adaptive coefficient after a rollout of `episodes` sequences.

        c (1 + clip(error, -0.2, 0.2) · episodes / horizon)

    `horizon` in episodes. beta has error = KL / target - 1, both in nats per sequence: Ziegler 2019 (arXiv 1909.08593),
    section 2.2. The entropy bonus has error = 1 - H / target, in nats per token: an entropy below its target raises
    the bonus. Never negative for a horizon above 0.2 · episodes, which the configuration demands.
    """
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


def hinge(kl_per_token: float, threshold: float) -> float:
    """Factor on a step whose policy is `kl_per_token` nats per token away from the reference: min(1, threshold / KL).

    It acts on the learning rate: Adam divides a scale of the loss out again. It never reaches 0, since a policy
    that is held still has no way back.
    """
    return 1.0 if kl_per_token <= threshold else threshold / kl_per_token


def lr_schedule(cfg: TrialConfig, position: int) -> float:
    """Factor on the learning rates at a gradient step, by its place among those planned: linear to 0, or constant."""
    match cfg.optimiser.lr_schedule:
        case "linear":
            return 1 - position / cfg.train.steps
        case "constant":
            return 1.0
        case _:
            assert_never(cfg.optimiser.lr_schedule)
