"""A rollout is sampled, scored and measured a micro-batch at a time: of all its episodes only numbers of each token are
kept, and the micro-batches change no byte."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tinytrial import run, trainer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.training import health

ROLLOUT: dict[str, Any] = {"train__batch_size": 64, "train__steps": 8}
KEPT_BYTES = 60
"""Of each token of a rollout: its number (8), the noise that drew it (8), log-probs of policy and reference, KL,
entropy and value (20), advantage and return (8), a mask (1) and its prompt's share. Its hidden state would take 64
more, its logits 124."""


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are made and still there."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes, self.now, self.peak, self.largest = dict[int, int](), 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                self._saw(one.untyped_storage())
        return out

    def _saw(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.sizes:
            self.sizes[key] = size
            self.now += size
            self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


def live(folder: Path, episodes: int) -> Live:
    """An update with so many episodes in its rollout, eight at once."""
    rows = {"rollout_batch_size": 8, "micro_batch_size": 4}
    one = trainer(folder, runtime=rows, train__batch_size=episodes, train__steps=4, train__missing_eos="none")
    with Live() as found:
        one._one_update()
    return found


@pytest.mark.slow
def test_memory_grows_by_numbers_of_each_token_alone(tmp_path: Path) -> None:
    few, many = (live(tmp_path / str(size), size) for size in (64, 192))
    tokens = 10 * (192 - 64)
    assert (many.peak - few.peak) / tokens < KEPT_BYTES
    assert many.largest <= max(few.largest, 5 * 192 * 10 * 4), "what was measured of each token, in fp32"


@pytest.mark.parametrize("rows", [16, 32, 48])
def test_micro_batches_of_a_rollout_change_no_byte(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, series, state = run(tmp_path / "whole", runtime={"rollout_batch_size": 64}, **ROLLOUT)
    monkeypatch.setattr(health, "TOGETHER", rows - 5)
    outcome, found, ended = run(tmp_path / "micro_batches", runtime={"rollout_batch_size": rows}, **ROLLOUT)
    assert outcome == whole
    assert found == series
    assert all(torch.equal(tensor, state[name]) for name, tensor in ended.items())


def test_repetition_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    responses = torch.randint(0, 3, (50, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.arange(50).remainder(10)[:, None]
    at_once = health.repetition(responses, mask)
    assert 0.1 < at_once < 0.9
    for micro_batch in (1, 7, 50):
        monkeypatch.setattr(health, "TOGETHER", micro_batch)
        assert health.repetition(responses, mask) == at_once
