"""Peak memory on a CPU, each measured in a process of its own: of whole trials beside its forecast, and of an update by
the number of episodes in its rollout.

    PYTHONPATH=tests:. python tests/memory_check.py [size ...]
    PYTHONPATH=tests:. python tests/memory_check.py rollouts [episodes ...]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipeline.config.loading import load_config
from pipeline.data.corpus import load_corpus
from pipeline.data.settings import DataConfig
from pipeline.forecast.advice import predict
from pipeline.models.tokenizers import train_tokenizer

COMMON = {
    "data.sft_texts": 2000, "data.train_prompts": 64, "data.heldout_prompts": 8, "evaluate.prompts": 8,
    "sft.steps": 2, "sft.batch_size": 16, "reward.learned.pairs": 32, "reward.learned.heldout_pairs": 8,
    "reward.calibration_samples": 32, "reward.learned.epochs": 3, "reward.learned.batch_size": 32, "train.steps": 4,
    "train.batch_size": 32, "train.num_mini_batches": 2, "train.num_epochs": 2, "train.response_length": 32,
    "optimiser.lr": 1e-6, "optimiser.guard": False, "runtime.micro_batch_size": 16, "runtime.rollout_batch_size": 32,
}  # fmt: skip
QWEN2 = {"model_type": "qwen2", "vocab_size": 32_000, "tie_word_embeddings": True, "max_position_embeddings": 512}
FOUR, EIGHT = ({"num_attention_heads": heads, "num_key_value_heads": heads} for heads in (4, 8))
SMALL = {**QWEN2, **FOUR, "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 704}
LARGE = {**QWEN2, **EIGHT, "hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1408}
GPT2 = {"model_type": "gpt2", "vocab_size": 50_257, "n_embd": 512, "n_layer": 9, "n_head": 8, "n_positions": 512,
        "tie_word_embeddings": True}  # fmt: skip
WIDE = {"runtime.micro_batch_size": 32, "train.batch_size": 64, "runtime.rollout_batch_size": 64}
SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "10M": (SMALL, {}),
    "10M-separate": (SMALL, {"critic.kind": "separate"}),
    "10M-lora": (SMALL, {"adapter.kind": "lora"}),
    "42M": (LARGE, {}),
    "42M-recomputed": (LARGE, {"runtime.gradient_checkpointing": True}),
    "42M-wide-batch": (LARGE, WIDE),
    "gpt2-56M": (GPT2, {}),
}


def measure(name: str, root: Path, parts: bool = False) -> dict[str, tuple[float, float]]:
    """(predicted, measured) peak of each stage, GiB; the trial runs through the same commands as any other.

    Its base is a random network in the hub's layout, whose tokenizer knows fewer words than its vocabulary has places.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes, changes = SIZES[name]
    tokenizer = train_tokenizer(load_corpus(DataConfig(sft_texts=2000)).train, 700)
    config = AutoConfig.for_model(**sizes, bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    AutoModelForCausalLM.from_config(config).save_pretrained(root / "base")
    tokenizer.save_pretrained(root / "base")
    settings = {**COMMON, **changes, "model.base": str(root / "base")}
    command = [sys.executable, "-m", "ablate", "run", "--profile", "tiny", "--out", str(root / "out")]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    found = predict(load_config("tiny", settings))
    assert found is not None
    peaks = {}
    for stage, components in found.stages.items():
        cost = json.loads(next((root / "out" / "store" / stage).glob("*/log/cost.json")).read_text())
        peaks[stage] = found.stage_gib(stage), cost["peak_memory_gib"]
        if parts:
            print("   ", stage, {key: round(size, 2) for key, size in components.items()}, flush=True)
    return peaks


# --- rollouts ------------------------------------------------------------------------------------------------------

ROWS, VOCAB, PROMPT, RESPONSE = 64, 2048, 8, 32
"""Episodes at once, and the sizes of the network's input and output: the logits of 4,096 episodes take 1 GiB."""
PAD, EOS = 0, 1


def peak(episodes: int, said: Connection) -> None:
    """Send the MiB that an update adds to the resident set of this process: a trial on a small network, with a reward
    model."""
    import torch
    from helpers import Recorder, trial_config

    from pipeline.config.model import ModelConfig
    from pipeline.models.loading import freeze, scratch_model
    from pipeline.models.out_of_memory import Room
    from pipeline.models.policy import ActorCritic, Episodes
    from pipeline.resources.ledger import Ledger
    from pipeline.resources.machine import fresh_marks, peak_gib
    from pipeline.rewards.base import Completions
    from pipeline.rewards.learned import LearnedReward, new_reward_model
    from pipeline.run.metrics_log import MetricsLog
    from pipeline.training.checkpoint import Files
    from pipeline.training.given import Networks, TrainingData
    from pipeline.training.judging import Scores
    from pipeline.training.trainer import Trainer

    config = trial_config(
        train__steps=4, train__batch_size=episodes, train__num_epochs=1, train__num_mini_batches=4,
        train__response_length=RESPONSE, optimiser__lr=1e-6, runtime__rollout_batch_size=ROWS,
        runtime__micro_batch_size=16,
    )  # fmt: skip
    sizes = ModelConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)
    reference, policy, scorer = (freeze(scratch_model(sizes, VOCAB, PAD, EOS, 64, seed=3)) for _ in range(3))
    reward = LearnedReward(freeze(new_reward_model(scorer, 0, torch.device("cpu"))), Room("rows", ROWS))

    def score(some: Episodes, rows: Sequence[int]) -> Scores:
        texts = [" ".join(map(str, row)) for row in some.responses.tolist()]
        points = reward(Completions(some, texts, texts))
        return Scores(points, points, [str(row) for row in rows], texts)

    queries = torch.randint(2, VOCAB, (256, PROMPT), generator=torch.Generator().manual_seed(0))
    data = TrainingData(queries, torch.ones_like(queries, dtype=torch.bool), {"eos_id": EOS, "pad_id": PAD})
    networks = Networks(ActorCritic(policy.requires_grad_(True)), reference)
    with tempfile.TemporaryDirectory() as folder:
        files = Files(lambda offset: MetricsLog(Path(folder) / "metrics.jsonl"), Path(folder) / "checkpoints")
        one = Trainer(config, networks, data, score, files, Recorder(), Ledger())
        fresh_marks()
        before = peak_gib()
        one._one_update()
        said.send((peak_gib() - before) * 1024)


def rollouts(sizes: Sequence[int]) -> None:
    """Print the peak of an update by its number of episodes, each in a process that has computed nothing before."""
    import torch

    from pipeline.models.cpu import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    context = multiprocessing.get_context("fork")
    for count in sizes or (64, 256, 1024, 4096):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=peak, args=(count, there))
        process.start()
        there.close()
        mib = here.recv()
        process.join()
        kept = (mib * 2**20) / (count * RESPONSE)
        print(f"{count:5d} episodes: {mib:6.1f} MiB at the peak, {kept:6.0f} bytes for each token", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rollouts"]:
        rollouts([int(one) for one in sys.argv[2:]])
    for one in [] if sys.argv[1:2] == ["rollouts"] else sys.argv[1:] or SIZES:
        with tempfile.TemporaryDirectory() as place:
            for stage, (predicted, measured) in measure(one, Path(place), parts=True).items():
                percent = f"{100 * (predicted / measured - 1):+.0f} %"
                print(
                    f"{one:16s} {stage:9s} predicted {predicted:.2f} GiB, measured {measured:.2f} GiB, {percent}",
                    flush=True,
                )
