"""One of several rounds of the stage `train`: what it begins with, and what it leaves to the next one.

Leaves ``state.safetensors`` and ``state.json`` beside what every training leaves, but for the last round.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipeline.config.trial import TrialConfig
from pipeline.models.loading import freeze, load_snapshot
from pipeline.resources.ledger import Ledger, added
from pipeline.run.layout import write_json
from pipeline.run.store import Artifact
from pipeline.stages.rounds import SPENT, name_of, number_of
from pipeline.training.given import Outcome
from pipeline.training.rounds import Round, load_state, save_state
from pipeline.training.trainer import Trainer


def round_of(
    cfg: TrialConfig, out: Path, device: torch.device, ledger: Ledger, reward: Artifact, last_train: Artifact | None
) -> Round | None:
    """The round to train; None in a trial with one."""
    if cfg.rounds == 1:
        return None
    if last_train is None:
        return Round(1, cfg.rounds)
    start = freeze(load_snapshot(last_train.path / "policy", device))
    return Round(number_of(last_train), cfg.rounds, start, _beginning(out, ledger, reward, last_train))


def leave(out: Path, trainer: Trainer, outcome: Outcome) -> None:
    """Write what the next round begins with, where there will be one."""
    if outcome.status == "complete" and trainer.round.number < trainer.round.count:
        save_state(out, trainer.left())
        write_json(out / SPENT, trainer.ledger.state())


def described(cfg: TrialConfig, sft: Artifact, reward: Artifact, last_train: Artifact | None) -> dict[str, Any]:
    """The networks of a round, for the metadata of its artifact; nothing in a trial with one."""
    if cfg.rounds == 1:
        return {}
    named = {"reference": sft, "start": last_train or sft, "reward": reward}
    numbers = {"number": number_of(last_train), "count": cfg.rounds}
    return {"round": {**numbers, **{what: name_of(artifact) for what, artifact in named.items()}}}


def _beginning(out: Path, ledger: Ledger, reward: Artifact, last_train: Artifact) -> Callable[[], dict[str, Any]]:
    """The reward of a later round is made for this trial alone, so the trial is charged for it."""

    def begin() -> dict[str, Any]:
        shutil.copyfile(last_train.path / "metrics.jsonl", out / ".metrics")
        os.replace(out / ".metrics", out / "metrics.jsonl")
        before = added(_spent(last_train), _spent(reward))
        return {**load_state(last_train.path), "spent": added(before, ledger.state())}

    return begin


def _spent(artifact: Artifact) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((artifact.path / SPENT).read_text("utf-8"))
    return content
