"""TRL's PPO trainer under the meter, with its logs to nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.meter import Meter
from benchmarks.sizes import EOS, Size, reward
from transformers import TrainerCallback
from trl.experimental.ppo import ppo_trainer as trl_ppo
from trl_peer import critic_of, ppo_trainer, tokenizer


class EndOfUpdate(TrainerCallback):
    """Receives the end of every update."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.meter.end_update()


def build(size: Size, kind: str, device: torch.device, precision: str, folder: Path, meter: Meter) -> Any:
    """A trainer, ready to run. Its pad token is one that the network cannot sample.

    Generation is a function of TRL; scoring ends where the first epoch draws its permutation, training where an update
    is logged.
    """
    policy, words = size.network(), tokenizer(size.vocab, eos_id=EOS, pad_id=size.vocab)
    networks = policy, size.network(), critic_of(policy), reward
    prompts, settings = size.prompts(), size.settings("shared")
    trainer = ppo_trainer(settings, *networks, prompts, words, folder, use_cpu=device.type == "cpu")
    trainer.add_callback(EndOfUpdate(meter))
    generate, permutation, log = trl_ppo.batch_generation, np.random.permutation, trainer.log

    def generation(*args: Any) -> Any:
        with meter.timed("generate"):
            made = generate(*args)
        meter.switch("score")
        return made

    def epoch(n: int) -> Any:
        meter.switch("train")
        return permutation(n)

    def logging(*args: Any) -> None:
        meter.switch("log")
        log(*args)
        meter.switch("rest")

    trl_ppo.batch_generation, np.random.permutation, trainer.log = generation, epoch, logging
    return trainer.train
