"""Whether a trial can fit before any of it is spent, and the cheapest changes that make it fit."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import torch

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.config.effects import inert
from pipeline.config.runtime import CapsConfig
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.forecast.memory import disk_by_part, memory_by_stage, shared_disk
from pipeline.forecast.shapes import on_card, subject_of
from pipeline.forecast.work import other_hours, training_hours
from pipeline.resources.machine import GIB

Changes = Mapping[str, Any]
LORA: Changes = {"adapter.kind": "lora", "adapter.frozen_layers": 0}
FOUR_BIT: Changes = {**LORA, "adapter.quantize": "4bit"}
EIGHT_BIT_CRITIC: Changes = {"critic.adapter": "lora", "critic.quantize": "8bit"}
WHOLE: Changes = {"adapter.kind": "none", "adapter.quantize": "none"}
POLICIES = {"full": WHOLE, "LoRA": {**LORA, "adapter.quantize": "none"}, "LoRA on 4 bits": FOUR_BIT}
CRITICS: Mapping[str, Changes] = {
    "shared critic": {"critic.kind": "shared"},
    "separate critic": {"critic.kind": "separate", "critic.adapter": "none", "critic.quantize": "none"},
    "separate 8-bit critic with LoRA": {"critic.kind": "separate", **EIGHT_BIT_CRITIC},
    "no critic": {"critic.kind": "none"},
}


@dataclass(frozen=True)
class Forecast:
    """A prediction for one trial. Hours are those of a T4, and of reading images on the CPU."""

    parameters: int
    trained: int
    stages: dict[str, dict[str, float]]
    """Memory of each stage by component, GiB."""
    hours: dict[str, float]
    """Of training, by phase."""
    own_hours: dict[str, float]
    """By stage, of what a trial has for itself beside its training; not held against `caps.wall_clock_h`."""
    shared_hours: dict[str, float]
    """By stage, of what the trials of a study have in common."""
    disk: dict[str, float]
    """On disk at the peak of training, by part, GiB."""
    shared_disk_gib: float
    """On disk, of what the trials of a study have in common."""
    caps: CapsConfig
    timed: bool
    """Whether the T4-hours are held against `caps.wall_clock_h`."""

    @property
    def stage(self) -> str:
        """The stage that needs most memory."""
        return max(self.stages, key=self.stage_gib)

    def stage_gib(self, stage: str) -> float:
        return sum(self.stages[stage].values())

    @property
    def total_gib(self) -> float:
        """Of the stage that needs most."""
        return self.stage_gib(self.stage)

    @property
    def disk_gib(self) -> float:
        """On disk at the peak of training."""
        return sum(self.disk.values())

    @property
    def left_gib(self) -> float:
        """What a trial leaves on disk."""
        return self.disk_gib - self.disk.get("checkpoints", 0.0)

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
    """Memory, time and disk of a trial; None where the sizes of the base cannot be had."""
    trial = subject_of(config)
    if trial is None:
        return None
    learns, (own, shared) = config.algorithm.learns, other_hours(trial)
    return Forecast(
        parameters=trial.shape.parameters,
        trained=trial.policy.parameters,
        stages={stage: _in_gib(parts) for stage, parts in memory_by_stage(trial).items()},
        hours=training_hours(trial) if learns else {},
        own_hours=own,
        shared_hours=shared,
        disk=_in_gib(disk_by_part(trial)),
        shared_disk_gib=shared_disk(trial) / GIB,
        caps=config.caps,
        timed=t4_judges(config),
    )


def t4_judges(config: TrialConfig) -> bool:
    """Whether a T4's roofline is held against the cap on the wall clock: where `caps.card` asks for it, or no other GPU
    is in use."""
    other = on_card(config) and torch.cuda.is_available() and "T4" not in torch.cuda.get_device_name().split()
    return config.caps.card == "t4" or not other


def _in_gib(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: size / GIB for name, size in parts.items() if size}


def check_budget(config: TrialConfig, label: str) -> None:
    """Raise `UserError` for a trial that cannot fit, with the knobs that make it fit; `label` names the trial."""
    found = predict(config)
    if found is None or found.fits:
        return
    over, stage = [], found.stage
    if found.total_gib > found.caps.memory_gib:
        largest = sorted(found.stages[stage].items(), key=lambda part: -part[1])[:4]
        over.append(
            f"{found.total_gib:.1f} GiB predicted in stage {stage}"
            f" ({', '.join(f'{name} {size:.1f}' for name, size in largest)}, ...),"
            f" caps.memory_gib = {found.caps.memory_gib:g}"
        )
    if found.late:
        over.append(f"{hours(found.t4_hours)} predicted on a T4, caps.wall_clock_h = {found.caps.wall_clock_h:g}")
    raise UserError(f"{label} cannot fit: {'; '.join(over)}. {remedy(config)}")


def check_disk(configs: Sequence[TrialConfig], jobs: int, root: Path) -> str | None:
    """A warning where the disk of `root` may not hold all trials, `jobs` at a time. Raises `UserError` where it cannot
    hold a single one."""
    known = [found for found in map(predict, configs) if found is not None]
    if not known or len(known) < len(configs):
        return None
    free, most = shutil.disk_usage(root).free / GIB, max(trial.disk_gib for trial in known)
    if most > free:
        raise UserError(
            f"a trial needs {_gib(most)} of disk for checkpoints and the policy, but {root} has only {_gib(free)} free;"
            " use another --out"
        )
    passing = sorted((trial.disk_gib - trial.left_gib for trial in known), reverse=True)[:jobs]
    whole = max(trial.shared_disk_gib for trial in known) + sum(trial.left_gib for trial in known) + sum(passing)
    needed = f"{len(configs)} trials need up to {_gib(whole)} of disk, but {root} has only {_gib(free)} free"
    return needed if whole > free else None


def too_much(found: Forecast) -> str:
    """By how much memory and time exceed their caps, in words. Tokens have no forecast: training ends at their cap."""
    gib, time = found.total_gib - found.caps.memory_gib, found.t4_hours - found.caps.wall_clock_h
    return " and ".join([f"{gib:.2f} GiB too much memory"] * (gib > 0) + [f"{hours(time)} too long"] * found.late)


def remedy(config: TrialConfig) -> str:
    """The knobs in words, ready for ``--set``, with the figures."""
    ways = [
        f"{', '.join(f'{key}={_yaml(value)}' for key, value in changes.items() if key != 'adapter.frozen_layers')}"
        f" ({found.total_gib:.1f} GiB, {hours(found.t4_hours)})"
        for changes, found in knobs(config)
    ]
    if not ways:
        return "No single knob makes it fit, nor all of them together: take a smaller base, or raise the cap"
    either = "Any one of these makes it fit" if len(ways) > 1 else "This makes it fit"
    return f"{either}: {'; '.join(ways)}"


def knobs(config: TrialConfig) -> list[tuple[Changes, Forecast]]:
    """Single changes that make a trial fit, each with the forecast, those that change no result first; where none does,
    as few together as are needed."""
    ladders, train = _ladders(config), config.train
    single = [_first(config, ladder) for ladder in ladders]
    single += [
        _largest(config, "train.response_length", train.response_length, 1),
        _largest(config, "train.steps", train.steps, train.steps_per_update * config.rounds),
    ]
    if fitting := [knob for knob in single if knob is not None]:
        return fitting
    # Batch sizes come last: small ones cost time.
    switches, batches = ([ladder[-1] for ladder in ladders if (len(ladder) > 1) == sizes] for sizes in (False, True))
    shorter: Changes = {"train.response_length": max(train.response_length // 4, 1)}
    together: Iterable[Changes] = accumulate([*switches, shorter, *batches], lambda before, more: {**before, **more})
    return [knob for knob in [_first(config, together)] if knob is not None]


def _ladders(config: TrialConfig) -> list[list[Changes]]:
    """For every knob that can be turned its settings, the mildest first."""
    cfg, runtime, card = config, config.runtime, on_card(config)
    asks, natural, separate = card and cfg.algorithm.learns, _natural(cfg), cfg.critic.kind == "separate"
    rollouts, half = cfg.train.data == "rollouts", "fp16" if t4_judges(cfg) else "bf16"  # a T4 has no bf16
    ladders: list[tuple[bool, list[Changes]]] = [
        (True, _halves("runtime.micro_batch_size", min(runtime.micro_batch_size, cfg.train.mini_batch_size))),
        (True, _halves("runtime.rollout_batch_size", min(runtime.rollout_batch_size, cfg.train.batch_size))),
        (not runtime.gradient_checkpointing, [{"runtime.gradient_checkpointing": True}]),
        (asks and cfg.adapter.kind == "none" and not runtime.offload_reference, [{"runtime.offload_reference": True}]),
        (asks and rollouts and cfg.train.frozen_dtype == "fp32", [{"train.frozen_dtype": half}]),
        (separate and not cfg.critic.has_adapter, [{"critic.adapter": "lora"}]),
        (separate and cfg.critic.held == "none", [EIGHT_BIT_CRITIC]),
        (separate and not natural, [{"critic.kind": "shared"}]),
        (cfg.adapter.kind == "none", [LORA]),
        (cfg.adapter.quantize == "none" and card and not natural, [FOUR_BIT]),
        (bool(cfg.sft.steps) and cfg.model.base is not None, [{"sft.steps": 0}]),
    ]
    return [ladder for can, ladder in ladders if can and ladder]


def _halves(key: str, rows: int) -> list[Changes]:
    """Down to 8: with fewer episodes at once a card waits for its weights."""
    return [{key: rows // 2**times} for times in range(1, rows.bit_length()) if rows // 2**times >= 8]


def _first(config: TrialConfig, ladder: Iterable[Changes]) -> tuple[Changes, Forecast] | None:
    """The first of some changes with which the trial fits, without those of them that have no effect."""
    for changes in ladder:
        so = changed(config, changes)
        found = predict(so)
        if found is not None and found.fits:
            return {key: value for key, value in changes.items() if inert(so, key) is None}, found
    return None


def _largest(config: TrialConfig, key: str, now: int, unit: int) -> tuple[Changes, Forecast] | None:
    """The largest multiple of `unit` with which the trial fits, by bisection: less never takes more. None for less than
    a quarter."""
    best, low, high = None, max(now // unit // 4, 1), now // unit
    while low < high:
        middle = (low + high) // 2
        knob = _first(config, [{key: middle * unit}])
        best, low, high = (knob, middle + 1, high) if knob else (best, low, middle)
    return best


def variants(config: TrialConfig) -> dict[str, Forecast | None]:
    """The same trial with each way to train that its algorithm allows: what the choice costs."""
    critics = ("separate",) if _natural(config) else ADVANTAGES[config.algorithm.advantage].critics
    return {
        f"{policy}, {critic}": predict(changed(config, {**how, **with_critic}))
        for (policy, how), (critic, with_critic) in product(POLICIES.items(), CRITICS.items())
        if with_critic["critic.kind"] in critics and not (_natural(config) and how["adapter.quantize"] != "none")
    }


def _natural(config: TrialConfig) -> bool:
    """Whether the policy takes natural-gradient steps, which need a separate critic and weights that are not
    quantised."""
    return bool(config.algorithm.trust_region == "trpo")


def changed(config: TrialConfig, changes: Changes) -> TrialConfig:
    """The configuration with some dotted keys changed."""
    content = config.model_dump()
    for key, value in changes.items():
        section, name = key.split(".", 1)
        content[section][name] = value
    return TrialConfig.model_validate(content)


def hours(value: float) -> str:
    """Hours; very short times in seconds."""
    return f"{value:.2f} h" if value >= 0.01 else f"{value * 3600:.2g} s"


def _gib(size: float) -> str:
    return f"{size:.1f} GiB" if size >= 1 else f"{size:.2g} GiB"


def _yaml(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
