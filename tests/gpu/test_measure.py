"""Memory by stage and component, seconds by phase and episodes per second of a trial of the profile `t4` on random
weights, each beside its forecast."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from shutil import disk_usage
from typing import Any

import pytest
import torch
from gpu.hardware import DEVICE, GIB, measured_trial, peak_gib, rates, write_base
from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.forecast.advice import changed, predict
from pipeline.resources.ledger import Ledger
from pipeline.resources.roofline import t4_seconds
from pipeline.run.layout import Layout
from pipeline.run.progress import Silent
from pipeline.training import trainer as trainer_module
from pipeline.training import update as update_module
from pipeline.trial import execution, run_trial

pytestmark = pytest.mark.gpu
DISK_GIB = {"qwen0.5b": 40.0, "tiny": 0.2}
PHASES = ("generate", "score", "train")
PASSING = ("activations", "half-precision copies", "cache")
"""Components of the forecast that are there for a part of a step; the allocator cannot tell them apart."""
Row = dict[str, Any]


class Probe(Silent):
    """Looks at a trial while it runs; changes nothing but that phases end when the device has finished."""

    def __init__(self) -> None:
        self.updates: list[Row] = []
        """What the ledger held after each update, with the seconds of the head."""
        self.notes: list[str] = []
        self.at_head = self.head_s = 0.0
        """Bytes allocated when the head begins, at most (all that a step keeps, and its activations); its seconds."""
        self.components: dict[str, float] = {}
        self.trainer: Any = None

    def stage(self, name: str, state: str, detail: str = "") -> None:
        gc.collect()
        if state == "building" and (left := allocated()) > GIB / 10:
            self.notes.append(f"{left / GIB:.2f} GiB were still allocated when stage {name} began")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        ledger = self.trainer.ledger
        kinds = {kind: dict(getattr(ledger, kind)) for kind in ("seconds", "flops", "bytes")}
        self.updates.append({"wall": ledger.wall_s, "head": self.head_s, **kinds})

    def warn(self, message: str) -> None:
        self.notes.append(message)

    def attach(self, patch: pytest.MonkeyPatch) -> None:
        """Watch every trial of this process from here on."""
        timed, run, head = Ledger.timed, trainer_module.Trainer.run, update_module.head_backward

        @contextmanager
        def finished(ledger: Ledger, phase: str) -> Iterator[None]:
            with timed(ledger, phase):
                yield
                wait()

        def running(trainer: Any) -> Any:
            self.trainer = trainer
            outcome = run(trainer)
            self.components = components(trainer)
            return outcome

        def heading(*args: Any, **kwargs: Any) -> Any:
            wait()
            self.at_head, began = max(self.at_head, allocated()), time.perf_counter()
            found = head(*args, **kwargs)
            wait()
            self.head_s += time.perf_counter() - began
            return found

        patch.setattr(Ledger, "timed", finished)
        patch.setattr(trainer_module.Trainer, "run", running)
        patch.setattr(update_module, "head_backward", heading)


def allocated() -> float:
    return float(torch.cuda.memory_allocated()) if DEVICE == "cuda" else 0.0


def wait() -> None:
    """Until the device has done what it was asked."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def components(trainer: Any) -> dict[str, float]:
    """Bytes that live as long as a trial, by what they are for; on the device of the trial."""
    actor, seen = trainer.actor, set[int]()

    def size(tensors: Iterable[Any]) -> float:
        """Bytes of storages that were not counted before."""
        total = 0.0
        for one in tensors:
            if isinstance(one, Tensor) and one.device.type == trainer.device.type and one.data_ptr() not in seen:
                seen.add(one.data_ptr())
                total += one.untyped_storage().nbytes()
        return total

    states = trainer.state.steps.optimiser.state.values()
    return {
        "policy": size(actor.lm.parameters()),
        "critic": size(actor.parameters()),
        "gradients": size(one.grad for one in actor.parameters()),
        "optimiser": size(one for state in states for one in state.values()),
        "reference": size(getattr(trainer.rollout_context.reference, "parameters", list)()),
        "reward": size(one for one in gc.get_objects() if type(one) is torch.nn.Parameter),
    }


def beside(what: str, predicted: float, measured: float | None) -> Row:
    """A row: GiB, and by how many percent the measured value is above the forecast."""
    missed = 100 * (measured / predicted - 1) if measured is not None and predicted else None
    return {"what": what, "forecast, GiB": predicted, "measured, GiB": measured, "above forecast, %": missed}


def memory_by_component(forecast: Mapping[str, float], probe: Probe, peak: float) -> list[Row]:
    """The PPO stage's forecast and what was seen of it, GiB; what passes is told apart only at the head."""
    found = {name: size / GIB for name, size in probe.components.items() if size or forecast.get(name)}
    lasting, at_head = sum(found.values()), probe.at_head / GIB
    passing = sum(forecast.get(name, 0.0) for name in PASSING)
    logits = max(peak - max(at_head, lasting), 0.0)
    others = {name: size for name, size in forecast.items() if name not in {*found, *PASSING, "logits"} and size}
    return [
        *(beside(name, forecast.get(name, 0.0), size) for name, size in found.items()),
        beside(f"{', '.join(PASSING)} (held at the head)", passing, max(at_head - lasting, 0.0)),
        beside("logits (on top of that at the peak)", forecast.get("logits", 0.0), logits),
        *(beside(f"{name} (not measured apart)", size, None) for name, size in others.items()),
        beside("all", sum(forecast.values()), peak),
    ]


def seconds_by_phase(updates: list[Row], rates: tuple[float, float]) -> list[Row]:
    """Of each phase of an update: the median over all updates but the first, beside the rooflines of this card and of a
    T4."""
    steps = list(pairwise(updates))

    def median(kind: str, phase: str) -> float:
        return statistics.median(after[kind].get(phase, 0.0) - before[kind].get(phase, 0.0) for before, after in steps)

    rows = []
    for phase in PHASES:
        seconds, flops, moved = (median(kind, phase) for kind in ("seconds", "flops", "bytes"))
        least = max(flops / rates[0], moved / rates[1])
        share = least / seconds if seconds else None
        row = {
            "phase": phase,
            "seconds (median)": seconds,
            "n": len(steps),
            "TFLOP": flops / 1e12,
            "GB moved": moved / 1e9,
        }
        row |= {"roofline of this card, s": least, "share of roofline": share}
        rows.append(row | {"forecast for a T4, s": t4_seconds(phase, flops, moved)})
    head = statistics.median(after["head"] - before["head"] for before, after in steps)
    return [*rows, dict.fromkeys(rows[0]) | {"phase": "of train: head", "seconds (median)": head, "n": len(steps)}]


def fitted(config: TrialConfig, room_gib: float) -> tuple[TrialConfig, list[str]]:
    """The trial with as many rows at once as the forecast allows in `room_gib`, and what was changed."""
    notes = []
    while (found := predict(config)) is not None and found.total_gib > room_gib and config.runtime.micro_batch_size > 1:
        names = ("micro_batch_size", "rollout_batch_size")
        rows = {f"runtime.{name}": max(getattr(config.runtime, name) // 2, 1) for name in names}
        fewer = changed(config, rows)
        assert fewer is not None
        config = fewer
        notes = [f"measured with fewer rows at once, since the card has room for {room_gib:.1f} GiB: {rows}"]
    return config, notes


def test_a_trial_of_the_profile_t4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: pytest.RecordProperty
) -> None:
    shape = os.environ["GPU_SHAPE"]
    if (free := disk_usage(tmp_path).free / GIB) < DISK_GIB[shape]:
        pytest.skip(f"{free:.0f} GiB are free on the disk of {tmp_path}, {DISK_GIB[shape]:.0f} are needed (set TMPDIR)")
    flops, moved = rates()
    source = f"roofline of this card, as measured: {flops / 1e12:.3g} TFLOP/s and {moved / 1e9:.4g} GB/s"
    config, notes = measured_trial(write_base(tmp_path / "base", shape), DEVICE, shape), list[str]()
    if DEVICE == "cuda":
        config, notes = fitted(config, torch.cuda.mem_get_info()[0] / GIB)
    forecast, probe = predict(config), Probe()
    assert forecast is not None
    probe.attach(monkeypatch)
    outcome = run_trial(config, Layout(tmp_path / "out"), probe)
    peaks = {name: peak_gib(outcome, name) for name in forecast.stages}
    stages = [beside(stage, forecast.stage_gib(stage), peak) for stage, peak in peaks.items()]
    walls = [after["wall"] - before["wall"] for before, after in pairwise(probe.updates)]
    rate = config.train.batch_size / statistics.median(walls)
    on_cpu = "rehearsal on a CPU: memory is the resident set, and no figure speaks of a card"
    notes = [
        source if DEVICE == "cuda" else on_cpu,
        f"shape {shape}: {forecast.parameters / 1e6:.1f} M parameters, {forecast.trained / 1e6:.1f} M trained",
        f"{execution(config)['precision']}; PPO ended as {outcome.status} after {outcome.steps} gradient steps",
        f"{rate:.3g} episodes/s: {config.train.batch_size} episodes an update, each used in"
        f" {config.train.num_epochs} epochs; median of {len(walls)} updates after the first",
        *notes,
        *probe.notes,
    ]
    record_property("episodes/s", f"{rate:.3g}")
    record_property("largest miss of a stage's memory", f"{max(abs(one['above forecast, %']) for one in stages):.0f} %")
    record_property("notes", notes)
    record_property("memory by stage", stages)
    record_property(
        "memory of training by component", memory_by_component(forecast.stages["train"], probe, peaks["train"])
    )
    record_property("seconds by phase of an update", seconds_by_phase(probe.updates, (flops, moved)))
    assert outcome.status == "complete", outcome.reason
