from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder
from tinytrial import EOS, PAD, VOCAB, model, run, trainer
from torch import Tensor

from pipeline.models.out_of_memory import MemoryFull, Room, is_out_of_memory
from pipeline.models.policy import Episodes
from pipeline.models.sampling import EagerSampler
from pipeline.models.seeding import uniforms
from pipeline.models.trunk import trunk
from pipeline.rewards.base import Completions
from pipeline.rewards.learned import LearnedReward, RewardModel
from pipeline.rewards.settings import RewardConfig
from pipeline.run.metrics import merged
from pipeline.stages.evaluate import drift

ROWS = 12
KNOBS = {"train__steps": 8, "train__batch_size": 16, "runtime": {"micro_batch_size": 8, "rollout_batch_size": 16}}


def limited(network: Any, too_many: Callable[[int, bool], bool]) -> Any:
    """Have forwards of a network fail where `too_many` (rows, with gradients) is true; returns the hook."""

    def check(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        rows = kwargs["packing"].rows if "packing" in kwargs else len(kwargs["input_ids"])
        if too_many(rows, torch.is_grad_enabled() and not torch.is_inference_mode_enabled()):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    return network.register_forward_pre_hook(check, with_kwargs=True)


def test_training_goes_on_with_half_the_micro_batch_and_the_same_results(tmp_path: Path) -> None:
    """Halved twice, with a warning each."""
    watch, calls = Recorder(), [0]

    def second_part_fails(rows: int, gradients: bool) -> bool:
        # The first micro-batch has left its gradient when the second finds no room.
        calls[0] += gradients and rows > 2
        return gradients and rows > 2 and calls[0] > 1

    one = trainer(tmp_path / "a", watch, **KNOBS)
    limited(trunk(one.actor.lm), second_part_fails)
    assert one.run().status == "complete"
    _, wanted, _ = run(tmp_path / "b", **KNOBS)
    rows = merged(tmp_path / "a" / "metrics.jsonl")
    assert rows.keys() == wanted.keys()
    for step, row in wanted.items():
        assert rows[step] == pytest.approx(row, rel=1e-3, abs=1e-5), step
    assert [warning.split(";")[0] for warning in watch.warnings] == [
        f"out of memory with runtime.micro_batch_size = {size}: from here on {size // 2}" for size in (8, 4)
    ]


def test_a_trial_that_not_even_one_episode_fits_ends_as_budget_with_the_policy_of_its_last_step(tmp_path: Path) -> None:
    one, steps = trainer(tmp_path, **KNOBS), [0]
    limited(trunk(one.actor.lm), lambda rows, gradients: gradients and steps[0] >= 5)
    take = one.state.steps.optimiser.step

    def count(*args: Any, **kwargs: Any) -> Any:
        steps[0] += 1
        return take(*args, **kwargs)

    one.state.steps.optimiser.step = count
    outcome, rows = one.run(), merged(tmp_path / "metrics.jsonl")
    assert (outcome.status, outcome.steps) == ("budget", 5)
    assert str(outcome.reason).startswith(
        "out of memory with a single row at once (runtime.micro_batch_size came down to 1)"
    )
    assert max(step for step, row in rows.items() if "policy/pg_loss" in row) == 5
    assert one.ledger.peak_gib > 0
    assert all(bool(tensor.isfinite().all()) for tensor in one.actor.state_dict().values())
    _, untroubled, _ = run(tmp_path / "b", **KNOBS)
    assert rows[5] == pytest.approx(untroubled[5], rel=1e-3, abs=1e-5)


def episodes(room: Room, network: Any) -> Episodes:
    queries = torch.randint(2, VOCAB, (ROWS, 4), generator=torch.Generator().manual_seed(0))
    noise = uniforms(ROWS, 6, 0, "test")
    return EagerSampler(network, 1.0, room, EOS, PAD).sample(queries, torch.ones_like(queries).bool(), noise)


@pytest.mark.parametrize("what", ["sampling", "scoring", "measuring"])
def test_a_pass_with_a_third_of_the_memory_gives_the_same(what: str) -> None:
    asked, policy, network = episodes(Room("rows", 99), model()), model(), model()
    reward = RewardModel.new(network, RewardConfig(), torch.device("cpu"))
    passes: dict[str, Callable[[Room], list[Tensor]]] = {
        "sampling": lambda room: list(vars(episodes(room, network)).values()),
        "scoring": lambda room: [LearnedReward(reward, room)(Completions(asked, [""] * ROWS, [""] * ROWS))],
        "measuring": lambda room: list(drift(policy, network, asked, 1.0, room)),
    }
    work = passes[what]
    warnings: list[str] = []
    wanted = work(Room("rows", ROWS))
    hook = limited(trunk(network), lambda rows, gradients: rows > 3)
    for one, other in zip(work(Room("rows", ROWS, warnings.append)), wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert [line.partition(";")[0] for line in warnings] == [
        f"out of memory with rows = {size}: from here on {size // 2}" for size in (12, 6)
    ]
    hook.remove()
    limited(trunk(network), lambda rows, gradients: True)
    with pytest.raises(MemoryFull, match="single row"):
        work(Room("rows", ROWS))


def test_a_slice_that_is_done_is_not_done_again() -> None:
    asked: list[tuple[int, int]] = []

    def work(rows: slice) -> int:
        asked.append((rows.start, rows.stop))
        if rows.start >= 4 and rows.stop - rows.start > 2:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return rows.stop - rows.start

    room = Room("rows", 4)
    assert room.over(11, work) == [4, 2, 2, 2, 1]
    assert asked == [(0, 4), (4, 8), (4, 6), (6, 8), (8, 10), (10, 11)]
    # The last slice is short: half of it is tried next, not half of what the room would allow.
    short = Room("rows", 100)
    assert short.over(3, lambda rows: rows.start if rows.stop - rows.start == 1 else work(slice(9, 99))) == [0, 1, 2]
    assert short.rows == 1


@pytest.mark.parametrize(
    ("said", "memory"),
    [
        ("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", False),
    ],
)
def test_how_torch_says_that_memory_ran_out(said: str, memory: bool) -> None:
    assert is_out_of_memory(RuntimeError(said)) is memory
