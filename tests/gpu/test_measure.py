from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from shutil import disk_usage
from typing import Any

import pytest
import torch
import yaml
from gpu.hardware import DEVICE, GIB, QWEN, TINY, peak_gib
from helpers import Recorder, random_base

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.forecast.advice import predict
from pipeline.resources.ledger import Ledger, t4_seconds
from pipeline.run.layout import Layout
from pipeline.training import trainer as trainer_module
from pipeline.trial import execution, run_trial

pytestmark = pytest.mark.gpu
SIZES, DISK_GIB = (QWEN, 40.0) if DEVICE == "cuda" else (TINY, 0.2)
KINDS = ("seconds", "flops", "bytes")
Row = dict[str, Any]


class Probe(Recorder):
    """Keeps the ledger of a running trial; changes nothing but that phases end when the device has finished."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.updates: list[Row] = []
        """The ledger's sums after each update."""
        timed, run = Ledger.timed, trainer_module.Trainer.run

        @contextmanager
        def finished(ledger: Ledger, phase: str) -> Iterator[None]:
            with timed(ledger, phase):
                yield
                if DEVICE == "cuda":
                    torch.cuda.synchronize()

        def running(trainer: Any) -> Any:
            self.trainer = trainer
            return run(trainer)

        patch.setattr(Ledger, "timed", finished)
        patch.setattr(trainer_module.Trainer, "run", running)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        ledger = self.trainer.ledger
        self.updates.append({"wall": ledger.wall_s} | {kind: dict(getattr(ledger, kind)) for kind in KINDS})


def seconds_by_phase(updates: list[Row]) -> list[Row]:
    """Medians over all updates but the first, beside the forecast for a T4."""
    rows = []
    for phase in ("generate", "score", "train"):
        seconds, flops, moved = (
            statistics.median(
                after[kind].get(phase, 0.0) - before[kind].get(phase, 0.0) for before, after in pairwise(updates)
            )
            for kind in KINDS
        )
        row = {"phase": phase, "seconds (median)": seconds, "n": len(updates) - 1, "TFLOP": flops / 1e12}
        rows.append(row | {"GB moved": moved / 1e9, "forecast for a T4, s": t4_seconds(phase, flops, moved)})
    return rows


def measured_trial(base: str) -> TrialConfig:
    """The profile `t4` for a few updates on built-in reviews, which need no download; small batches in a rehearsal.

    Every phase has the batch, micro-batch and lengths of a real trial of that profile, but for prompts: the reviews are
    short.
    """
    settings = yaml.safe_load(Path(__file__).with_name("measured.yaml").read_text("utf-8"))
    changes = {**settings["all"], **(settings["rehearsal"] if DEVICE == "cpu" else {})}
    steps = 4 * load_config("t4").train.steps_per_update
    return load_config("t4", {**changes, "model.base": base, "train.steps": steps, "runtime.device": DEVICE})


def test_a_trial_of_the_profile_t4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    if (free := disk_usage(tmp_path).free / GIB) < DISK_GIB:
        pytest.skip(f"{free:.0f} GiB are free on the disk of {tmp_path}, {DISK_GIB} are needed (set TMPDIR)")
    config = measured_trial(str(random_base(tmp_path / "base", SIZES)))
    forecast, probe = predict(config), Probe(monkeypatch)
    outcome = run_trial(config, Layout(tmp_path / "out"), probe)
    walls = [after["wall"] - before["wall"] for before, after in pairwise(probe.updates)]
    rate = config.train.batch_size / statistics.median(walls)
    peaks = [(stage, forecast.peaks[stage], peak_gib(outcome, stage)) for stage in forecast.stages]
    memory = [
        {"stage": stage, "forecast, GiB": guess, "measured, GiB": peak, "above forecast, %": 100 * (peak / guess - 1)}
        for stage, guess, peak in peaks
    ]
    recorded: dict[str, Any] = {
        "episodes/s": f"{rate:.3g}, median of {len(walls)} updates of {config.train.batch_size} episodes",
        "precision": execution(config)["precision"],
        "parameters": f"{forecast.parameters / 1e6:.1f} M, {forecast.trained / 1e6:.1f} M trained",
        "notes": "; ".join(probe.warnings),
        "memory by stage": memory,
        "seconds by phase of an update": seconds_by_phase(probe.updates),
    }
    for name, value in recorded.items():
        record_property(name, value)
    assert outcome.status == "complete", outcome.reason
