"""A round of a training whose reward is replaced between rounds: all else goes on as in one long training.

Policy, critic, optimiser, schedules, controllers, orders of prompts and rules that stop a trial are those of the
trial, and know of no rounds: rounds with one and the same reward are the training without rounds, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.models.loading import CausalLM

TENSORS, PLAIN = "state.safetensors", "state.json"


@dataclass(frozen=True)
class Round:
    """Which round of a trial is trained, and what it begins with."""

    number: int
    count: int
    start: CausalLM | None = None
    """The policy that it begins with, frozen; None in the first: the reference."""
    begin: Callable[[], dict[str, Any]] | None = None
    """Puts the metrics of the rounds before into place, and returns the state in which they ended; None in the
    first."""


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a trainer as two files whose bytes depend on its values alone.

    A pickle would not do: it also tells which of its equal strings are one object.
    """
    tensors: dict[str, Tensor] = {}
    plain = _packed(dict(state), "", tensors)
    save_file(tensors, folder / TENSORS)
    (folder / PLAIN).write_text(json.dumps(plain), "utf-8")


def load_state(folder: Path) -> dict[str, Any]:
    """What `save_state` wrote, tensors on the CPU, tuples as lists."""
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
    return tensors[value["tensor"]] if "tensor" in value else dict(_pairs(value, tensors))


def _pairs(value: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[tuple[Any, Any]]:
    return ((key, _unpacked(one, tensors)) for key, one in value["pairs"])
