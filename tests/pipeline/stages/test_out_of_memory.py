"""Running out of memory outside of PPO's training: every pass of rows through a network goes on with fewer of them,
with equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tinytrial import EOS, PAD, VOCAB, model

from pipeline.models.anatomy import trunk
from pipeline.models.out_of_memory import MemoryFull, Room, is_out_of_memory
from pipeline.models.policy import Episodes
from pipeline.models.sampling import EagerSampler
from pipeline.models.seeding import uniforms
from pipeline.rewards.base import Completions
from pipeline.rewards.learned import LearnedReward, RewardModel
from pipeline.rewards.settings import RewardConfig
from pipeline.stages.evaluate import drift

CPU = torch.device("cpu")
ROWS, FITTING = 12, 3


@contextmanager
def memory_for(rows: int, network: Any) -> Iterator[list[int]]:
    """Forwards of a network with more rows fail; yields the rows of those that succeed."""
    done: list[int] = []

    def check(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        asked = kwargs["packing"].rows if "packing" in kwargs else len(kwargs["input_ids"])
        if asked > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        done.append(asked)

    hook = network.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield done
    finally:
        hook.remove()


def episodes() -> Episodes:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randint(2, VOCAB, (ROWS, 4), generator=generator)
    noise = torch.rand(ROWS, 6, generator=generator)
    return EagerSampler(model(), 1.0, Room("rows", 99), EOS, PAD).sample(
        queries, torch.ones_like(queries).bool(), noise
    )


def halved(work: Callable[[Room], Any], network: Any) -> None:
    """`work` gives with a third of the memory what it gives with all of it, and warns."""
    warnings: list[str] = []
    wanted = work(Room("rows", ROWS))
    with memory_for(FITTING, network):
        found = work(Room("rows", ROWS, warnings.append))
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-4, atol=1e-6)
    assert [line.partition(";")[0] for line in warnings] == [
        "out of memory with rows = 12: from here on 6",
        "out of memory with rows = 6: from here on 3",
    ]
    with memory_for(0, network), pytest.raises(MemoryFull, match="single row"):
        work(Room("rows", ROWS))


def test_sampling() -> None:
    network, queries = model(), episodes().query_responses[:, :4]
    noise = uniforms(ROWS, 6, 0, "test")

    def work(room: Room) -> list[torch.Tensor]:
        found = EagerSampler(network, 1.0, room, EOS, PAD).sample(queries, torch.ones_like(queries).bool(), noise)
        return [found.query_responses, found.lengths]

    halved(work, trunk(network))


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


def test_scoring_by_a_reward_model() -> None:
    reward, asked = RewardModel.new(model(), RewardConfig(), CPU), episodes()
    halved(lambda room: [LearnedReward(reward, room)(Completions(asked, [""] * ROWS, [""] * ROWS))], trunk(reward.lm))


def test_drift_in_the_evaluation() -> None:
    policy, reference, asked = model(), model(), episodes()
    halved(lambda room: list(drift(policy, reference, asked, 1.0, room)), trunk(reference))
