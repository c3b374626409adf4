"""Memory by stage and component, seconds by phase and episodes per second of a real trial, each beside its forecast.

`python -m gpu.measure FILE` runs one trial of the profile `t4` on random weights through the same functions as any
trial, and appends JSON lines to FILE as it goes.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from shutil import disk_usage
from typing import Any

import torch
from gpu.base import measured_trial, write_base
from gpu.card import GIB, datasheet
from gpu.page import miss
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

DISK_GIB = {"qwen0.5b": 40.0, "tiny": 0.2}
PHASES = ("generate", "score", "train")
PASSING = {"activations", "half-precision copies", "cache"}
"""Components of the forecast that are there for a part of a step; the allocator cannot tell them apart."""


@dataclass
class Probe(Silent):
    """Looks at a trial while it runs; changes nothing but that phases end when the device has finished."""

    device: str
    updates: list[dict[str, Any]] = field(default_factory=list)
    """What the ledger held after each update."""
    warnings: list[str] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)
    """Bytes still allocated when a stage began: what the stages before it have not given back."""
    at_head: float = 0.0
    """Bytes allocated when the head begins, at most: all that a step keeps, and its activations."""
    head_s: float = 0.0
    components: dict[str, float] = field(default_factory=dict)
    trainer: Any = None

    def stage(self, name: str, state: str, detail: str = "") -> None:
        if state == "building":
            gc.collect()
            self.left[name] = self.allocated()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        ledger = self.trainer.ledger
        self.updates.append(
            {
                "wall": ledger.wall_s,
                "seconds": dict(ledger.seconds),
                "flops": dict(ledger.flops),
                "bytes": dict(ledger.bytes),
            }
            | {"head": self.head_s}
        )

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def allocated(self) -> float:
        return float(torch.cuda.memory_allocated()) if self.device == "cuda" else 0.0

    def wait(self) -> None:
        """Until the device has done what it was asked."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def attach(self) -> None:
        """Watch every trial of this process from here on."""
        timed, run, head = Ledger.timed, trainer_module.Trainer.run, update_module.head_backward

        @contextmanager
        def finished(ledger: Ledger, phase: str) -> Iterator[None]:
            with timed(ledger, phase):
                yield
                self.wait()

        def running(trainer: Any) -> Any:
            self.trainer = trainer
            outcome = run(trainer)
            self.components = components(trainer)
            return outcome

        def heading(*args: Any, **kwargs: Any) -> Any:
            self.wait()
            self.at_head = max(self.at_head, self.allocated())
            began = time.perf_counter()
            found = head(*args, **kwargs)
            self.wait()
            self.head_s += time.perf_counter() - began
            return found

        Ledger.timed = finished  # type: ignore[method-assign]
        trainer_module.Trainer.run = running  # type: ignore[method-assign]
        update_module.head_backward = heading


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

    found = {"policy": size(actor.lm.parameters()), "critic": size(actor.parameters())}
    found["gradients"] = size(one.grad for one in actor.parameters())
    found["optimiser"] = size(one for state in trainer.state.steps.optimiser.state.values() for one in state.values())
    found["reference"] = size(getattr(trainer.rollout_context.reference, "parameters", list)())
    found["reward"] = size(one for one in gc.get_objects() if type(one) is torch.nn.Parameter)
    return found


def memory_by_component(forecast: Mapping[str, float], probe: Probe, peak_gib: float) -> list[dict[str, Any]]:
    """The PPO stage's forecast and what was seen of it, GiB; what passes is told apart only at the head."""
    found = {name: size / GIB for name, size in probe.components.items() if size or forecast.get(name)}
    lasting, at_head = sum(found.values()), probe.at_head / GIB
    lines = [_beside(name, forecast.get(name, 0.0), size) for name, size in found.items()]
    passing = sum(size for name, size in forecast.items() if name in PASSING)
    lines.append(
        _beside("activations, half-precision copies, cache (held at the head)", passing, max(at_head - lasting, 0.0))
    )
    lines.append(
        _beside(
            "logits (on top of that at the peak)",
            forecast.get("logits", 0.0),
            max(peak_gib - max(at_head, lasting), 0.0),
        )
    )
    others = {name: size for name, size in forecast.items() if name not in {*found, *PASSING, "logits"} and size}
    lines += [_beside(f"{name} (not measured apart)", size, None) for name, size in others.items()]
    return [*lines, _beside("all", sum(forecast.values()), peak_gib)]


def _beside(what: str, predicted: float, measured: float | None) -> dict[str, Any]:
    missed = None if measured is None else miss(predicted, measured)
    return {"what": what, "predicted_gib": predicted, "measured_gib": measured, "miss_percent": missed}


def seconds_by_phase(updates: list[dict[str, Any]], rates: tuple[float, float]) -> list[dict[str, Any]]:
    """Of each phase of an update: the median over all updates but the first, beside the rooflines of this card and of a
    T4."""
    steps = [_between(one, other) for one, other in pairwise(updates)]
    lines = []
    for phase in PHASES:
        spent = [step["seconds"].get(phase, 0.0) for step in steps]
        flops, moved = (statistics.median(step[kind].get(phase, 0.0) for step in steps) for kind in ("flops", "bytes"))
        seconds, least = statistics.median(spent), max(flops / rates[0], moved / rates[1])
        line = {"phase": phase, "seconds": seconds, "tflop": flops / 1e12, "gb": moved / 1e9, "n": len(spent)}
        line |= {
            "roofline_s": least,
            "of_roofline": least / seconds if seconds else None,
            "t4_s": t4_seconds(phase, flops, moved),
        }
        lines.append(line)
    head = statistics.median(step["head"] for step in steps)
    return [*lines, {"phase": "of train: head", "seconds": head, "n": len(steps)}]


def _between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What one update added."""
    found: dict[str, Any] = {key: after[key] - before[key] for key in ("wall", "head")}
    for key in ("seconds", "flops", "bytes"):
        found[key] = {phase: value - before[key].get(phase, 0.0) for phase, value in after[key].items()}
    return found


def fitted(config: TrialConfig, room_gib: float) -> tuple[TrialConfig, list[str]]:
    """The trial with as many rows at once as the forecast allows in `room_gib`, and what was changed."""
    notes = []
    while (found := predict(config)) is not None and found.total_gib > room_gib and config.runtime.micro_batch_size > 1:
        rows = {
            f"runtime.{name}": max(getattr(config.runtime, name) // 2, 1)
            for name in ("micro_batch_size", "rollout_batch_size")
        }
        config = changed(config, rows)
        notes = [f"measured with fewer rows at once, since the card has room for {room_gib:.1f} GiB: {rows}"]
    return config, notes


def measure(
    device: str, shape: str, folder: Path, write: Callable[[dict[str, Any]], None], rates: tuple[float, float]
) -> None:
    """Run the trial and write what was seen of it."""
    config = measured_trial(write_base(folder / "base", shape), device, shape)
    notes = []
    if device == "cuda":
        config, notes = fitted(config, torch.cuda.mem_get_info()[0] / GIB)
    forecast = predict(config)
    assert forecast is not None
    probe = Probe(device)
    probe.attach()
    outcome = run_trial(config, Layout(folder / "out"), probe)
    costs = {name: outcome.artifacts[name].path / "log" / "cost.json" for name in forecast.stages}
    peaks = {name: json.loads(path.read_text("utf-8"))["peak_memory_gib"] for name, path in costs.items()}
    stages = [_beside(stage, forecast.stage_gib(stage), peak) for stage, peak in peaks.items()]
    parts = memory_by_component(forecast.stages["train"], probe, peaks["train"])
    phases = seconds_by_phase(probe.updates, rates)
    walls = [_between(one, other)["wall"] for one, other in pairwise(probe.updates)]
    rate = config.train.batch_size / statistics.median(walls)
    notes += [
        (
            f"shape {shape}: {forecast.parameters / 1e6:.1f} M parameters, {forecast.trained / 1e6:.1f} M trained;"
            " random weights"
        ),
        f"{execution(config)['precision']}; PPO ended as {outcome.status} after {outcome.steps} gradient steps"
        + (f": {outcome.reason}" if outcome.reason else ""),
        (
            f"{rate:.3g} episodes/s: {config.train.batch_size} episodes an update, each used in"
            f" {config.train.num_epochs} epochs; median of {len(walls)} updates after the first"
        ),
        *(
            f"{size / GIB:.2f} GiB were still allocated when stage {name} began"
            for name, size in probe.left.items()
            if size > GIB / 10
        ),
        *probe.warnings,
    ]
    write(
        {
            "memory_by_stage": stages,
            "memory_by_component": parts,
            "seconds_by_phase": phases,
            "episodes_per_s": rate,
            "notes": notes,
        }
    )
    write(
        {
            "name": "a trial of the profile t4 on random weights",
            "status": "passed" if outcome.status == "complete" else "failed",
            "why": outcome.reason or "",
            "values": {"largest miss of a stage's memory": f"{max(abs(one['miss_percent']) for one in stages):.0f} %"},
        }
    )


def rates_of(card: Mapping[str, Any]) -> tuple[tuple[float, float], str]:
    """FLOP/s and bytes/s of the roofline, and where they come from."""
    if known := datasheet(card["name"]):
        return (
            known,
            f"roofline of this card: {known[0] / 1e12:g} TFLOP/s and {known[1] / 1e9:g} GB/s (vendor's datasheet)",
        )
    measured = card["half_flops"], card["copy_bytes"]
    words = f"roofline of this card: {measured[0] / 1e12:.3g} TFLOP/s and {measured[1] / 1e9:.3g} GB/s as measured here"
    return measured, f"{words}; the table of datasheets lacks {card['name']}"


def main(out: Path) -> None:
    """Measure, with the device, the shape and the card of the environment."""
    device, shape = os.environ["GPU_DEVICE"], os.environ["GPU_SHAPE"]

    def write(line: dict[str, Any]) -> None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    with tempfile.TemporaryDirectory() as name:
        free = disk_usage(name).free / GIB
        if free < DISK_GIB[shape]:
            why = f"{free:.0f} GiB are free on the disk of {name}, {DISK_GIB[shape]:.0f} are needed (set TMPDIR)"
            write({"name": "a trial of the profile t4 on random weights", "status": "not tested", "why": why})
            return
        rates, source = rates_of(json.loads(os.environ["GPU_CARD"]))
        known = (
            source
            if device == "cuda"
            else "rehearsal on a CPU: memory is the resident set, and no figure speaks of a card"
        )
        write({"notes": [known]})
        measure(device, shape, Path(name), lambda line: write(_with_note(line, known)), rates)


def _with_note(line: dict[str, Any], note: str) -> dict[str, Any]:
    return {**line, "notes": [note, *line["notes"]]} if "notes" in line else line


if __name__ == "__main__":
    main(Path(sys.argv[1]))
