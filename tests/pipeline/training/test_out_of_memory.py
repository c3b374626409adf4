"""Running out of memory: fewer episodes at once, the same results, and an honest end when one is too many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder
from tinytrial import run, trainer

from pipeline.models.anatomy import trunk
from pipeline.models.out_of_memory import MemoryFull, Room
from pipeline.run.metrics_log import merged
from pipeline.training.trainer import Trainer

KNOBS = {"train__steps": 8, "train__batch_size": 16, "runtime": {"micro_batch_size": 8, "rollout_batch_size": 16}}


def limited(one: Trainer, too_many: Callable[[int, bool], bool]) -> Trainer:
    """A trial whose trunk runs out of memory where `too_many` (rows, with gradients) is true."""

    def check(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        rows = kwargs["packing"].rows if "packing" in kwargs else len(kwargs["input_ids"])
        if too_many(rows, torch.is_grad_enabled() and not torch.is_inference_mode_enabled()):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    trunk(one.actor.lm).register_forward_pre_hook(check, with_kwargs=True)
    return one


def test_training_goes_on_with_half_the_micro_batch_and_the_same_results(tmp_path: Path) -> None:
    """Halved twice, with a warning each."""
    watch, calls = Recorder(), [0]

    def second_part_fails(rows: int, gradients: bool) -> bool:
        # The first micro-batch has left its gradient when the second finds no room.
        calls[0] += gradients and rows > 2
        return gradients and rows > 2 and calls[0] > 1

    outcome = limited(trainer(tmp_path / "a", watch, **KNOBS), second_part_fails).run()
    _, wanted, _ = run(tmp_path / "b", **KNOBS)
    rows = merged(tmp_path / "a" / "metrics.jsonl")
    assert outcome.status == "complete"
    assert rows.keys() == wanted.keys()
    for step, row in wanted.items():
        assert rows[step] == pytest.approx(row, rel=1e-3, abs=1e-5), step
    assert [warning.split(";")[0] for warning in watch.warnings] == [
        f"out of memory with runtime.micro_batch_size = {size}: from here on {size // 2}" for size in (8, 4)
    ]


def test_a_trial_that_not_even_one_episode_fits_ends_as_budget_with_the_policy_of_its_last_step(tmp_path: Path) -> None:
    steps = [0]

    def after_five(rows: int, gradients: bool) -> bool:
        return gradients and steps[0] >= 5

    one = limited(trainer(tmp_path, **KNOBS), after_five)
    take = one.state.steps.optimiser.step

    def count(*args: Any, **kwargs: Any) -> Any:
        steps[0] += 1
        return take(*args, **kwargs)

    one.state.steps.optimiser.step = count
    outcome, rows = one.run(), merged(tmp_path / "metrics.jsonl")
    assert (outcome.status, outcome.steps) == ("budget", 5)
    assert outcome.reason is not None
    assert outcome.reason.startswith(
        "out of memory with a single row at once (runtime.micro_batch_size came down to 1)"
    )
    assert max(step for step, row in rows.items() if "policy/pg_loss" in row) == 5
    assert one.ledger.peak_gib > 0
    assert all(bool(tensor.isfinite().all()) for tensor in one.actor.state_dict().values())
    _, untroubled, _ = run(tmp_path / "b", **KNOBS)
    assert rows[5] == pytest.approx(untroubled[5], rel=1e-3, abs=1e-5)


def test_a_cpu_without_memory_is_understood_too() -> None:
    tried: list[int] = []

    def fail(rows: int) -> None:
        tried.append(rows)
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"
            " bytes"
        )

    with pytest.raises(MemoryFull, match="came down to 1"):
        Room("runtime.micro_batch_size", 6).fit(fail)
    assert tried == [6, 3, 1]
