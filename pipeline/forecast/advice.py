"""Whether a trial can fit before any of it is spent, and the cheapest changes that make it fit."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pipeline.config.effects import inert
from pipeline.config.presets import ADVANTAGES
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.forecast.policy_shape import scorer_shapes, shape_of
from pipeline.forecast.subject import Device, ForecastSubject
from pipeline.forecast.work import Forecast, estimate
from pipeline.resources.device import gpu_visible
from pipeline.resources.machine import GIB

Changes = Mapping[str, Any]
SHARED: Changes = {"critic.kind": "shared"}
LORA: Changes = {"adapter.kind": "lora", "adapter.frozen_layers": 0}
FOUR_BIT: Changes = {**LORA, "adapter.quantize": "4bit"}
WHOLE_CRITIC: Changes = {"critic.adapter": "none", "critic.quantize": "none"}
LORA_CRITIC: Changes = {"critic.adapter": "lora"}
EIGHT_BIT_CRITIC: Changes = {**LORA_CRITIC, "critic.quantize": "8bit"}
CONSEQUENCES = ("adapter.frozen_layers",)
"""Keys that are changed only because others are."""


@dataclass(frozen=True)
class Knob:
    """A change of the configuration and what would be predicted with it."""

    changes: Changes
    found: Forecast

    def __str__(self) -> str:
        """Ready for ``--set``, with the figures."""
        keys = ", ".join(f"{key}={_yaml(value)}" for key, value in self.changes.items() if key not in CONSEQUENCES)
        return f"{keys} ({self.found.total_gib:.1f} GiB, {hours(self.found.t4_hours)})"


def predict(config: TrialConfig) -> Forecast | None:
    """Peak memory of every stage and T4-hours; None where the sizes of the base cannot be had."""
    shape = shape_of(config)
    return (
        None
        if shape is None
        else estimate(ForecastSubject(config, shape, device_of(config), scorer_shapes(config), t4_judges(config)))
    )


def device_of(config: TrialConfig) -> Device:
    """Where the trial would run."""
    if config.runtime.device == "auto":
        return "cuda" if gpu_visible() else "cpu"
    return config.runtime.device


def t4_judges(config: TrialConfig) -> bool:
    """Whether a T4's roofline is held against the cap on the wall clock: where `caps.card` asks for it, or no other GPU
    is in use."""
    import torch

    if config.caps.card == "t4" or device_of(config) == "cpu" or not torch.cuda.is_available():
        return True
    return "T4" in torch.cuda.get_device_name().split()


def check_budget(config: TrialConfig, label: str) -> None:
    """Raise `UserError` for a trial that cannot fit, with the knobs that make it fit; `label` names the trial."""
    forecast = predict(config)
    if forecast is None or forecast.fits:
        return
    raise UserError(f"{label} cannot fit: {excess(forecast)}. {remedy(config)}")


def disk_needed(configs: Sequence[TrialConfig], jobs: int) -> tuple[float, float] | None:
    """GiB on disk that one trial needs while it trains, and that all of them need, `jobs` at a time; None where sizes
    are unknown."""
    forecasts = [predict(config) for config in configs]
    known = [trial for trial in forecasts if trial is not None]
    if not known or len(known) < len(forecasts):
        return None
    passing = sorted((trial.disk_gib - trial.left_gib for trial in known), reverse=True)[:jobs]
    whole = max(trial.shared_disk_gib for trial in known) + sum(trial.left_gib for trial in known) + sum(passing)
    return max(trial.disk_gib for trial in known), whole


def check_disk(configs: Sequence[TrialConfig], jobs: int, root: Path) -> str | None:
    """A warning where the disk of `root` may not hold all trials. Raises `UserError` where it cannot hold a single
    one."""
    needed = disk_needed(configs, jobs)
    if needed is None:
        return None
    most, whole = needed
    free = shutil.disk_usage(root).free / GIB
    if most > free:
        raise UserError(
            f"a trial needs {_gib(most)} of disk for checkpoints and the policy, but {root} has only {_gib(free)} free;"
            " use another --out"
        )
    if whole > free:
        return f"{len(configs)} trials need up to {_gib(whole)} of disk, but {root} has only {_gib(free)} free"
    return None


def _gib(size: float) -> str:
    return f"{size:.1f} GiB" if size >= 1 else f"{size:.2g} GiB"


def too_much(forecast: Forecast) -> str:
    """By how much memory and time exceed their caps, in words. Tokens have no forecast: training ends at their cap."""
    gib, time = forecast.total_gib - forecast.cap_gib, (forecast.t4_hours - forecast.cap_hours) * forecast.timed
    over = [f"{gib:.2f} GiB too much memory"] * (gib > 0) + [f"{hours(time)} too long"] * (time > 0)
    return " and ".join(over)


def excess(forecast: Forecast) -> str:
    """What is predicted of what is allowed, with the largest parts."""
    parts = sorted(forecast.memory_gib.items(), key=lambda part: -part[1])[:4]
    said = []
    if forecast.total_gib > forecast.cap_gib:
        most = ", ".join(f"{name} {size:.1f}" for name, size in parts)
        said.append(
            f"{forecast.total_gib:.1f} GiB predicted in stage {forecast.stage} ({most}, ...), caps.memory_gib ="
            f" {forecast.cap_gib:g}"
        )
    if forecast.timed and forecast.t4_hours > forecast.cap_hours:
        said.append(f"{hours(forecast.t4_hours)} predicted on a T4, caps.wall_clock_h = {forecast.cap_hours:g}")
    return "; ".join(said)


def remedy(config: TrialConfig) -> str:
    """The knobs in words."""
    ways = knobs(config)
    if not ways:
        return "No single knob makes it fit, nor all of them together: take a smaller base, or raise the cap"
    either = "Any one of these makes it fit" if len(ways) > 1 else "This makes it fit"
    return f"{either}: {'; '.join(map(str, ways))}"


def knobs(config: TrialConfig) -> list[Knob]:
    """Single changes that make a trial fit, those that change no result first; where none does, as few together as are
    needed."""
    lengths = [
        _largest(config, "train.response_length", 1),
        _largest(config, "train.steps", config.train.steps_per_update),
    ]
    single = [_first(config, ladder) for ladder in _ladders(config)] + lengths
    if fitting := [knob for knob in single if knob is not None]:
        return fitting
    # Batch sizes come last: small ones cost time.
    switches, batches = (
        [ladder[-1] for ladder in _ladders(config) if (len(ladder) > 1) == sizes] for sizes in (False, True)
    )
    shorter: Changes = {"train.response_length": max(config.train.response_length // 4, 1)}
    together = _first(config, accumulate([*switches, shorter, *batches], lambda before, more: {**before, **more}))
    return [together] if together else []


def variants(config: TrialConfig) -> dict[str, Forecast | None]:
    """The same trial with each way to train: what the choice costs."""
    whole: Changes = {"adapter.kind": "none", "adapter.quantize": "none"}
    ways: dict[str, Changes] = {
        "full, shared critic": {**SHARED, **whole},
        "full, separate critic": {**whole, **WHOLE_CRITIC, "critic.kind": "separate"},
        "full, separate 8-bit critic with LoRA": {**whole, "critic.kind": "separate", **EIGHT_BIT_CRITIC},
        "full, no critic": {**whole, "critic.kind": "none"},
        "LoRA, shared critic": {**SHARED, "adapter.quantize": "none", **LORA},
        "LoRA, no critic": {"critic.kind": "none", "adapter.quantize": "none", **LORA},
        "LoRA on 4 bits, shared critic": {**SHARED, **FOUR_BIT},
        "LoRA on 4 bits, separate 8-bit critic with LoRA": {"critic.kind": "separate", **FOUR_BIT, **EIGHT_BIT_CRITIC},
        "LoRA on 4 bits, no critic": {"critic.kind": "none", **FOUR_BIT},
    }
    critics = ("separate",) if natural(config) else ADVANTAGES[config.algorithm.advantage].critics
    return {
        name: predict(changed(config, changes))
        for name, changes in ways.items()
        if changes["critic.kind"] in critics and not (natural(config) and changes["adapter.quantize"] != "none")
    }


def natural(config: TrialConfig) -> bool:
    """Whether the policy takes natural-gradient steps, which need a separate critic and weights that are not
    quantised."""
    return config.algorithm.trust_region == "trpo"


def _ladders(config: TrialConfig) -> list[list[Changes]]:
    """For every knob its settings, the mildest first."""
    cfg, runtime = config, config.runtime
    ladders: list[list[Changes]] = [
        [
            {"runtime.micro_batch_size": rows}
            for rows in _halves(min(runtime.micro_batch_size, cfg.train.mini_batch_size))
        ],
        [
            {"runtime.rollout_batch_size": rows}
            for rows in _halves(min(runtime.rollout_batch_size, cfg.train.batch_size))
        ],
        [{"runtime.gradient_checkpointing": True}] if not runtime.gradient_checkpointing else [],
        [{"runtime.offload_reference": True}] if _can_offload(config) else [],
        [{"train.frozen_dtype": _half(config)}] if _can_halve(config) else [],
        [LORA_CRITIC] if cfg.critic.kind == "separate" and not cfg.critic.has_adapter else [],
        [EIGHT_BIT_CRITIC] if cfg.critic.kind == "separate" and cfg.critic.held == "none" else [],
        [SHARED] if cfg.critic.kind == "separate" and not natural(config) else [],
        [LORA] if cfg.adapter.kind == "none" else [],
        [FOUR_BIT] if cfg.adapter.quantize == "none" and device_of(config) == "cuda" and not natural(config) else [],
        [{"sft.steps": 0}] if config.sft.steps and config.model.base is not None else [],
    ]
    return [ladder for ladder in ladders if ladder]


def _can_offload(config: TrialConfig) -> bool:
    """Whether frozen networks could leave the card, and do not."""
    could = device_of(config) == "cuda" and config.adapter.kind == "none" and config.algorithm.learns
    return could and not config.runtime.offload_reference


def _can_halve(config: TrialConfig) -> bool:
    """Whether frozen networks could be held in half precision, and are not; where that changes nothing: on a card."""
    could = device_of(config) == "cuda" and config.algorithm.learns and config.train.data == "rollouts"
    return could and config.train.frozen_dtype == "fp32"


def _half(config: TrialConfig) -> str:
    """The precision of the products on the card at hand: a T4 has no bf16."""
    return "fp16" if t4_judges(config) else "bf16"


def _halves(rows: int) -> Iterator[int]:
    """Down to 8: with fewer episodes at once a card waits for its weights."""
    while rows >= 16:
        rows //= 2
        yield rows


def _first(config: TrialConfig, ladder: Iterable[Changes]) -> Knob | None:
    for changes in ladder:
        so = changed(config, changes)
        forecast = predict(so)
        if forecast is not None and forecast.fits:
            return Knob({key: value for key, value in changes.items() if inert(so, key) is None}, forecast)
    return None


def _largest(config: TrialConfig, key: str, unit: int) -> Knob | None:
    """The largest multiple of `unit` with which the trial fits, by bisection: less never takes more. None for less than
    a quarter."""
    section, name = key.split(".")
    now = getattr(getattr(config, section), name) // unit
    best, low, high = None, max(now // 4, 1), now
    while low < high:
        middle = (low + high) // 2
        knob = _first(config, [{key: middle * unit}])
        best, low, high = (knob, middle + 1, high) if knob else (best, low, middle)
    return best


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


def _yaml(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
