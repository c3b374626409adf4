"""A round of a training whose reward is replaced between rounds: all else goes on as in one long training.

Policy, critic, optimiser, schedules, controllers, orders of prompts and rules that stop a trial are those of the
trial, and do not change with rounds: rounds with one and the same reward are the training without rounds, bit for bit.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM, freeze, load_snapshot
from pipeline.resources.ledger import KEPT, Ledger, added
from pipeline.run.store import MANIFEST, Artifact
from pipeline.training.checkpoint import load_latest, save

END = "log/end"
"""Folder with the checkpoint in which a round has ended; no two runs spend the same seconds, which it holds too."""
SPENT = "log/spent.json"
"""Spending on the reward of a round, for the ledger of the trial."""
DIGITS = 20


@dataclass(frozen=True)
class Round:
    """The round of a trial that is trained, and what it begins with."""

    number: int
    count: int
    start: CausalLM | None = None
    """The policy that it begins with, frozen; None in the first: the reference."""
    begin: Callable[[], None] | None = None
    """Puts the metrics of the rounds before and the checkpoint in which they ended into place; None in the first."""


def last_update(updates: int, number: int, count: int) -> int:
    """The update, of `updates` in all, with which round `number` of `count` ends.

    >>> [last_update(12, number, 4) for number in (1, 2, 3, 4)]
    [3, 6, 9, 12]
    """
    return updates * number // count


def number_of(last: Artifact | None) -> int:
    """Return the number of the round after an artifact of the last one; the first is 1."""
    return 1 if last is None else int(last.meta["round"]["number"]) + 1


def has_ended(last_train: Artifact | None) -> bool:
    """Return whether a trial was ended in an earlier round: by a cap, a rule that stops it, or divergence."""
    return last_train is not None and last_train.meta["status"] != "complete"


def carried_on(last: Artifact, out: Path) -> dict[str, Any]:
    """Leave what the round before left, in a trial that has ended: later rounds neither collect nor train."""
    shutil.copytree(last.path, out, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)
    meta = {name: value for name, value in last.meta.items() if name != "note"}
    return {**meta, "round": {**last.meta["round"], "number": number_of(last)}, "note": "the trial has ended before"}


def round_of(
    cfg: TrialConfig, out: Path, device: torch.device, ledger: Ledger, reward: Artifact, last_train: Artifact | None
) -> Round | None:
    """The round to train; None in a trial with one."""
    if cfg.rounds == 1:
        return None
    if last_train is None:
        return Round(1, cfg.rounds)
    start = freeze(load_snapshot(last_train.path / "policy", device))

    def begin() -> None:
        shutil.copyfile(last_train.path / "metrics.jsonl", out / ".metrics")
        os.replace(out / ".metrics", out / "metrics.jsonl")
        content = load_latest(last_train.path / END, lambda words: None)
        assert content is not None  # the store has checked the artifact
        # The reward of a later round is made for this trial alone, so the trial is charged for it.
        spent = added(content["spent"], json.loads((reward.path / SPENT).read_text("utf-8")))
        save(out / KEPT, content["update"], {**content, "spent": added(spent, ledger.state())})

    return Round(number_of(last_train), cfg.rounds, start, begin)


def described(cfg: TrialConfig, last_train: Artifact | None, **artifacts: Artifact) -> dict[str, Any]:
    """The networks of a round by their part in it, for metadata; nothing in a trial with one round."""
    if cfg.rounds == 1:
        return {}
    # Not by their keys, which also change where only the code before them does.
    names = {what: f"{one.stage}/{one.digest[:DIGITS]}" for what, one in artifacts.items()}
    return {"round": {"number": number_of(last_train), "count": cfg.rounds, **names}}
