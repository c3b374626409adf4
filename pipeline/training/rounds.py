"""A round of a training whose reward is replaced between rounds: all else goes on as in one long training.

Policy, critic, optimiser, schedules, controllers, orders of prompts and rules that stop a trial are those of the
trial, and do not change with rounds: rounds with one and the same reward are the training without rounds, bit for bit.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM, freeze, load_snapshot
from pipeline.resources.ledger import Ledger, added
from pipeline.run.layout import write_json
from pipeline.run.store import MANIFEST, Artifact

TENSORS, PLAIN = "state.safetensors", "state.json"
SPENT = "log/spent.json"
"""Spending of a stage, for the ledger of the trial; no two runs spend the same seconds."""
DIGITS = 20


@dataclass(frozen=True)
class Round:
    """The round of a trial that is trained, and what it begins with."""

    number: int
    count: int
    start: CausalLM | None = None
    """The policy that it begins with, frozen; None in the first: the reference."""
    begin: Callable[[], dict[str, Any]] | None = None
    """Puts the metrics of the rounds before into place, and returns the state in which they ended; None in the
    first."""


def last_update(updates: int, number: int, count: int) -> int:
    """The update, of `updates` in all, with which round `number` of `count` ends.

    >>> [last_update(12, number, 4) for number in (1, 2, 3, 4)]
    [3, 6, 9, 12]
    """
    return updates * number // count


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a trainer as two files whose bytes depend on its values alone.

    A pickle would not do: it also records which of its equal strings are one object.
    """
    tensors: dict[str, Tensor] = {}
    plain = _packed(dict(state), "", tensors)
    save_file(tensors, folder / TENSORS)
    (folder / PLAIN).write_text(json.dumps(plain), "utf-8")


def load_state(folder: Path) -> dict[str, Any]:
    """Read what `save_state` wrote, tensors on the CPU, tuples as lists."""
    state: dict[str, Any] = _unpacked(json.loads((folder / PLAIN).read_text("utf-8")), load_file(folder / TENSORS))
    return state


def _packed(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Plain JSON of a value; mappings as lists of pairs, since their keys may be numbers, and tensors by name."""
    if isinstance(value, torch.Tensor):
        tensors[place] = value.detach().cpu().clone().contiguous()
        return {"tensor": place}
    if isinstance(value, Mapping):
        return {"pairs": [[key, _packed(value[key], f"{place}/{key}", tensors)] for key in value]}
    if isinstance(value, list | tuple):
        return [_packed(one, f"{place}/{index}", tensors) for index, one in enumerate(value)]
    return value


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return {key: _unpacked(one, tensors) for key, one in value["pairs"]}


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


def name_of(artifact: Artifact) -> str:
    """Name an artifact in metadata: ``train-1/<digest>``. Its key would also change where only the code before it
    does."""
    return f"{artifact.stage}/{artifact.digest[:DIGITS]}"


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


def leave(out: Path, left: Mapping[str, Any], ledger: Ledger) -> None:
    """Write what the next round begins with."""
    save_state(out, left)
    write_json(out / SPENT, ledger.state())


def described(cfg: TrialConfig, last_train: Artifact | None, **artifacts: Artifact) -> dict[str, Any]:
    """The networks of a round by their part in it, for metadata; nothing in a trial with one round."""
    if cfg.rounds == 1:
        return {}
    names = {what: name_of(artifact) for what, artifact in artifacts.items()}
    return {"round": {"number": number_of(last_train), "count": cfg.rounds, **names}}


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
