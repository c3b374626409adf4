"""Our trainer under the meter, with its real metrics log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.meter import Meter
from benchmarks.sizes import PAD, Size, reward

from pipeline.models import precision as precision_module
from pipeline.models.loading import freeze
from pipeline.models.policy import ActorCritic, Episodes
from pipeline.models.trunk import trunk
from pipeline.resources.ledger import Ledger
from pipeline.run.metrics import MetricsLog
from pipeline.run.progress import Reporter
from pipeline.training.judging import Scores, TrainingData
from pipeline.training.trainer import Trainer

NEVER = -1
"""EOS token that the network cannot sample, so that every response has its full length."""


class Watch(Reporter):
    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def progress(self, stage: str, done: int, total: int, note: str = "") -> None:
        self.meter.end_update()

    def warn(self, message: str) -> None:
        raise AssertionError(message)


def build(size: Size, kind: str, device: torch.device, precision: str, folder: Path, meter: Meter) -> Any:
    """A trainer, ready to run; `kind` as in `Size.settings`. On a GPU the precision is the one asked for, not the best
    that the card has."""
    precision_module.mixed_precision = lambda _: precision
    meter.wrap(MetricsLog, "append", "log")
    meter.wrap(MetricsLog, "flush", "log")
    cfg, queries = size.settings(kind), size.prompts()

    def score(episodes: Episodes, rows: Sequence[int]) -> Scores:
        scores = reward(episodes.query_responses)[:, -1]
        return Scores(scores, scores, [""] * len(rows), [""] * len(rows))

    policy = size.network().to(device)
    ledger = Ledger()
    ledger.timed = meter.timed  # type: ignore[method-assign]
    critic = trunk(size.network().to(device)) if kind == "separate" else None
    actor = ActorCritic(policy, critic, has_critic=cfg.critic.kind != "none")
    trainer = Trainer(
        cfg,
        (actor, freeze(size.network().to(device))),
        TrainingData(queries, torch.ones_like(queries, dtype=torch.bool), {"eos_id": NEVER, "pad_id": PAD}),
        score,
        folder,
        Watch(meter),
        ledger,
    )
    return trainer.run
