"""What a trial writes: checkpoints while it trains, and the networks that it leaves."""

from __future__ import annotations

from pipeline.forecast.subject import ForecastSubject, Trained

DISK_BYTES = 200e6
"""Bytes per second that a checkpoint is copied from the card, hashed and written with; assumed of a cloud machine's
disk."""
KEPT = 3
"""Checkpoints on disk at once: two that are kept, and the one being written."""


def checkpoint_bytes(trial: ForecastSubject, trained: Trained) -> float:
    """Size of one checkpoint: what is trained, and Adam's two moments of it, in fp32."""
    return 12.0 * (trained.parameters + Trained.of_critic(trial.shape, trial.config).parameters)


def checkpoint_hours(trial: ForecastSubject, trained: Trained, hours: float) -> float:
    """Hours that checkpoints add to a trial of `hours`: as many as their cadence asks for, at most their share of the
    time."""
    runtime, cfg = trial.config.runtime, trial.config
    each = checkpoint_bytes(trial, trained) / DISK_BYTES / 3600
    wanted = cfg.train.updates // runtime.checkpoint_updates * each
    return wanted if runtime.checkpoint_share is None else min(wanted, runtime.checkpoint_share * hours)


def disk_by_part(trial: ForecastSubject, trained: Trained) -> dict[str, float]:
    """Bytes at the peak of a trial's training, the stages before it left out."""
    left = {
        "policy": 4.0 * trial.shape.parameters,
        "critic": 4.0 * Trained.of_critic(trial.shape, trial.config).parameters,
    }
    # An earlier round leaves what the next one begins with, and a later one has a reward of its own.
    each = sum(left.values()) + checkpoint_bytes(trial, trained) + 4.0 * trial.learned * trial.shape.trunk
    earlier = {"earlier rounds": (trial.config.rounds - 1) * each}
    return {"checkpoints": KEPT * checkpoint_bytes(trial, trained), **left, **earlier}


def shared_disk(trial: ForecastSubject) -> float:
    """Bytes of the reference and of learned rewards, which the trials of a study have in common."""
    return 4.0 * (trial.shape.parameters + trial.learned * trial.reward_shape.trunk)
