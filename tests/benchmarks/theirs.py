"""TRL's trainers under the meter, with their logs to nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.meter import Meter
from benchmarks.sizes import EOS, Size, reward
from transformers import TrainerCallback
from trl.experimental.ppo import ppo_trainer as trl_ppo
from trl_peer import critic_of, group_trainer, ppo_trainer, tokenizer


class EndOfUpdate(TrainerCallback):
    """Counts the steps of TRL, of which an update has `steps`."""

    def __init__(self, meter: Meter, steps: int) -> None:
        self.meter, self.steps = meter, steps

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step % self.steps == 0:
            self.meter.end_update()


def build(size: Size, kind: str, device: torch.device, precision: str, folder: Path, meter: Meter) -> Any:
    """A trainer, ready to run. Its pad token is one that the network cannot sample.

    Generation is a function of TRL. PPO's scoring ends where the first epoch draws its permutation, its training where
    an update is logged, and its step is an update; GRPO and RLOO score in the function that generates.
    """
    policy, prompts, options = size.network(), size.prompts(), {"use_cpu": device.type == "cpu"}
    if kind == "ppo":
        networks = policy, size.network(), critic_of(policy), reward
        words, steps = tokenizer(size.vocab, eos_id=EOS, pad_id=size.vocab), 1
        trainer = ppo_trainer(size.settings("shared"), *networks, prompts, words, folder, **options)
        meter.wrap(trl_ppo, "batch_generation", "generate", after="score")
        meter.wrap(np.random, "permutation", "train", after="train")
        meter.wrap(trainer, "log", "log", after="rest")
    else:
        trainer = group_trainer(size.settings(kind), policy, reward, prompts, folder, **options)
        steps = trainer.args.steps_per_generation * trainer.num_iterations
        meter.wrap(trainer, "_generate", "generate")
        meter.wrap(trainer, "_generate_and_score_completions", "score", after="train")
    trainer.add_callback(EndOfUpdate(meter, steps))
    return trainer.train
