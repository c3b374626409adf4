"""Check of a trial against its caps before it starts, and changes that make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ValidationError

from pipeline.config.base import replaced
from pipeline.config.trial import CapsConfig, TrialConfig
from pipeline.errors import UserError
from pipeline.forecast.memory import ForecastSubject, memory_by_stage, on_card, shape_of
from pipeline.forecast.work import other_hours, training_hours

Changes = Mapping[str, Any]
CHANGES: tuple[Changes, ...] = (
    {"runtime.gradient_checkpointing": True},
    {"critic.adapter": "lora"},
    {"critic.adapter": "lora", "critic.quantize": "8bit"},
    {"critic.kind": "shared"},
    {"adapter.kind": "lora"},
    {"adapter.kind": "lora", "adapter.quantize": "4bit"},
    {"sft.steps": 0},
)
"""Changes that may make a trial fit, the mildest first."""
SHARES = (7 / 8, 3 / 4, 5 / 8, 1 / 2, 3 / 8, 1 / 4)
"""Shares of the training's steps, or of the response's length, that are tried as advice."""


@dataclass(frozen=True)
class Forecast:
    """A prediction for one trial. Hours are those of a T4; OCR, which runs on the CPU, is left out."""

    parameters: int
    trained: int
    stages: dict[str, dict[str, float]]
    """Memory of each stage by component [GiB]."""
    hours: dict[str, float]
    """Hours of training, by phase."""
    other_hours: dict[str, float]
    """Hours of the other stages, most of which the trials of a study share; not compared with `caps.wall_clock_h`."""
    caps: CapsConfig
    timed: bool
    """True where the T4-hours are compared with `caps.wall_clock_h`: not where another GPU is used."""

    @property
    def peaks(self) -> dict[str, float]:
        return {stage: sum(parts.values()) for stage, parts in self.stages.items()}

    @property
    def total_gib(self) -> float:
        return max(self.peaks.values())

    @property
    def t4_hours(self) -> float:
        return sum(self.hours.values())

    @property
    def late(self) -> bool:
        return self.timed and self.t4_hours > self.caps.wall_clock_h

    @property
    def fits(self) -> bool:
        return not self.late and self.total_gib <= self.caps.memory_gib


def predict(config: TrialConfig) -> Forecast | None:
    """Memory and time of a trial; None where the sizes of the base are not available."""
    shape = shape_of(config)
    if shape is None:
        return None
    trial = ForecastSubject(config, shape, on_card(config))
    return Forecast(
        parameters=trial.shape.parameters,
        trained=trial.policy.parameters,
        stages=memory_by_stage(trial),
        hours=training_hours(trial) if config.algorithm.learns else {},
        other_hours=other_hours(trial),
        caps=config.caps,
        timed=not (trial.on_card and torch.cuda.is_available() and "T4" not in torch.cuda.get_device_name().split()),
    )


def own_others(config: TrialConfig) -> list[str]:
    """Stages beside the training that a trial does not share with others."""
    return ["reference", "evaluate"] if config.rounds > 1 else ["evaluate"]


def check_budget(config: TrialConfig, label: str) -> None:
    """Raise `UserError` for a trial that exceeds its caps, with changes that make it fit; `label` names the trial."""
    found = predict(config)
    if found is None or found.fits:
        return
    over, stage = [], max(found.stages, key=found.peaks.__getitem__)
    if found.total_gib > found.caps.memory_gib:
        largest = sorted(found.stages[stage].items(), key=lambda part: -part[1])[:4]
        over.append(
            f"{found.total_gib:.1f} GiB predicted in stage {stage}"
            f" ({', '.join(f'{name} {size:.1f}' for name, size in largest)}, ...),"
            f" caps.memory_gib = {found.caps.memory_gib:g}"
        )
    if found.late:
        over.append(f"{hours(found.t4_hours)} predicted on a T4, caps.wall_clock_h = {found.caps.wall_clock_h:g}")
    raise UserError(f"{label} would exceed its caps: {'; '.join(over)}. {remedy(config)}")


def remedy(config: TrialConfig) -> str:
    """The changes in words, ready for ``--set``, with the figures."""
    ways = [
        f"{', '.join(f'{key}={str(value).lower()}' for key, value in changes.items())}"
        f" ({found.total_gib:.1f} GiB, {hours(found.t4_hours)})"
        for changes, found in fitting_changes(config)
    ]
    if not ways:
        return "No single knob makes it fit: take a smaller base, or raise the cap"
    return f"{'Any one of these' if len(ways) > 1 else 'This'} makes it fit: {'; '.join(ways)}"


def fitting_changes(config: TrialConfig) -> list[tuple[Changes, Forecast]]:
    """Changes that each make a trial fit by itself, with their forecasts, those that keep the result first."""
    train, unit = config.train, config.train.steps_per_update * config.rounds
    ladders: list[list[Changes]] = [
        *([change] for change in CHANGES),
        [{"train.response_length": int(train.response_length * share)} for share in SHARES],
        [{"train.steps": int(train.steps * share) // unit * unit} for share in SHARES],
        # Down to 8: with fewer rows a card waits for its weights.
        [{"runtime.micro_batch_size": rows} for rows in (64, 32, 16, 8) if rows < config.runtime.micro_batch_size],
    ]
    fitting = []
    for ladder in ladders:
        for changes in ladder:
            if (so := changed(config, changes)) and (found := predict(so)) and found.fits:
                fitting.append((changes, found))
                break
    return fitting


def changed(config: TrialConfig, changes: Changes) -> TrialConfig | None:
    """The configuration with some dotted keys changed; None where that is refused."""
    try:
        return TrialConfig.model_validate(replaced(config, changes).model_dump())
    except ValidationError:
        return None


def hours(value: float) -> str:
    """Hours; very short times in seconds."""
    return f"{value:.2f} h" if value >= 0.01 else f"{value * 3600:.2g} s"
