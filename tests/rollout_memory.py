"""Peak memory of an update by the number of episodes in its rollout, on a CPU, each in a fresh process.

PYTHONPATH=tests:. python tests/rollout_memory.py [episodes ...]
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from helpers import Recorder, trial_config

from pipeline.config.model import ModelConfig
from pipeline.models import cpu
from pipeline.models.loading import freeze, scratch_model
from pipeline.models.policy import ActorCritic, Episodes
from pipeline.resources.ledger import Ledger
from pipeline.resources.machine import fresh_marks, peak_gib
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions
from pipeline.rewards.learned import LearnedReward, new_reward_model
from pipeline.run.metrics_log import MetricsLog
from pipeline.training.checkpoint import Files
from pipeline.training.given import Networks, TrainingData
from pipeline.training.judging import Scores
from pipeline.training.trainer import Trainer

SIZES = (64, 256, 1024, 4096)
ROWS, VOCAB, PROMPT, RESPONSE = 64, 2048, 8, 32
"""Episodes at once, and the sizes of the network's input and output: the logits of 4,096 episodes take 1 GiB."""
PAD, EOS = 0, 1


def trainer(episodes: int, folder: Path) -> Trainer:
    """A trial of a single update on a small network, with a reward model."""
    config = trial_config(
        train__steps=4,
        train__batch_size=episodes,
        train__num_epochs=1,
        train__num_mini_batches=4,
        train__response_length=RESPONSE,
        optimiser__lr=1e-6,
        runtime__rollout_batch_size=ROWS,
        runtime__micro_batch_size=16,
    )
    sizes = ModelConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)
    reference, policy, scorer = (freeze(scratch_model(sizes, VOCAB, PAD, EOS, 64, seed=3)) for _ in range(3))
    reward = LearnedReward(freeze(new_reward_model(scorer, 0, torch.device("cpu"))), Room("rows", ROWS))

    def score(some: Episodes, rows: Sequence[int]) -> Scores:
        texts = [" ".join(map(str, row)) for row in some.responses.tolist()]
        points = reward(Completions(some, texts, texts))
        return Scores(points, points, [str(row) for row in rows], texts)

    path = folder / "metrics.jsonl"
    queries = torch.randint(2, VOCAB, (256, PROMPT), generator=torch.Generator().manual_seed(0))
    return Trainer(
        config,
        Networks(ActorCritic(policy.requires_grad_(True)), reference),
        TrainingData(queries, torch.ones_like(queries, dtype=torch.bool), {"eos_id": EOS, "pad_id": PAD}),
        score,
        Files(lambda offset: MetricsLog(path), folder / "checkpoints"),
        Recorder(),
        Ledger(),
    )


def peak(episodes: int, said: Connection) -> None:
    """Send the MiB that an update adds to the resident set of this process."""
    with tempfile.TemporaryDirectory() as folder:
        one = trainer(episodes, Path(folder))
        fresh_marks()
        before = peak_gib()
        one._one_update()
        said.send((peak_gib() - before) * 1024)


def measured(sizes: Iterable[int]) -> Iterator[tuple[int, float]]:
    """(episodes, MiB at the peak of an update), each in a process that has computed nothing before."""
    context = multiprocessing.get_context("fork")
    for episodes in sizes:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=peak, args=(episodes, there))
        process.start()
        there.close()
        yield episodes, here.recv()
        process.join()


if __name__ == "__main__":
    torch.set_num_threads(1)
    cpu.keep_freed_memory()
    for count, mib in measured(map(int, sys.argv[1:] or SIZES)):
        kept = (mib * 2**20) / (count * RESPONSE)
        print(f"{count:5d} episodes: {mib:6.1f} MiB at the peak, {kept:6.0f} bytes for each token", flush=True)
