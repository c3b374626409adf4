"""TRL's GRPO and RLOO trainers under the meter, by another interpreter: they need TRL 1.16 (`HOW` in `__main__.py`)."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path
from typing import Any

import torch
from benchmarks.meter import Meter
from benchmarks.sizes import Size, reward
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer


class Phases(TrainerCallback):
    """Counts all but generation and scoring as training; an update ends with the last step on a rollout."""

    def __init__(self, meter: Meter, steps: int) -> None:
        self.meter, self.steps = meter, steps

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.meter.switch("train")

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step % self.steps == 0:
            self.meter.end_update()
            self.meter.switch("train")


def build(size: Size, method: str, device: torch.device, precision: str, folder: Path, meter: Meter) -> Any:
    """A trainer, ready to run: as many responses to a prompt, episodes, gradient steps and passes as ours. It logs and
    saves nothing. The token that ends a response is one that the network cannot sample.

    Generation is a method of TRL that another one calls, which then measures and scores.
    """
    cfg, policy = size.settings(method), size.network()
    words = _tokenizer(size)
    policy.save_pretrained(folder / "policy")
    policy.config._name_or_path = str(folder / "policy")  # TRL loads the reference from there
    policy.generation_config.eos_token_id = words.eos_token_id
    plain: dict[str, Any] = {"loss_type": "grpo", "scale_rewards": "group", "use_bias_correction_kl": False}
    config, trainer_class, own = (GRPOConfig, GRPOTrainer, plain) if method == "grpo" else (RLOOConfig, RLOOTrainer, {})

    def score(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        last = size.prompt - 1 + torch.tensor([len(ids) for ids in completion_ids])
        rows = torch.zeros(len(prompts), size.prompt + size.response, dtype=torch.long)
        for row, query, response in zip(rows, words(prompts)["input_ids"], completion_ids, strict=True):
            row[: len(query) + len(response)] = torch.tensor(query + response)
        return reward(rows).gather(1, last.unsqueeze(1)).squeeze(1).tolist()

    trainer = trainer_class(
        model=policy,
        reward_funcs=score,
        args=config(
            output_dir=str(folder), report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
            use_cpu=device.type == "cpu", bf16=False, gradient_checkpointing=False, seed=cfg.train.seed,
            max_steps=cfg.train.steps, num_generations=cfg.train.responses_per_prompt,
            per_device_train_batch_size=cfg.train.mini_batch_size, gradient_accumulation_steps=1,
            generation_batch_size=cfg.train.batch_size, num_iterations=cfg.train.num_epochs,
            max_completion_length=cfg.train.response_length, temperature=cfg.train.temperature,
            learning_rate=cfg.optimiser.lr, lr_scheduler_type=cfg.optimiser.lr_schedule,
            adam_epsilon=cfg.optimiser.adam_eps, max_grad_norm=cfg.optimiser.max_grad_norm, beta=cfg.kl.beta,
            epsilon=cfg.algorithm.clip.epsilon, **own,
        ),
        train_dataset=Dataset.from_dict({"prompt": words.batch_decode(size.prompts())}),
        processing_class=words,
        callbacks=[Phases(meter, cfg.train.steps_per_update)],
    )  # fmt: skip
    generate, rollout = trainer._generate, trainer._generate_and_score_completions

    def generation(*args: Any) -> Any:
        with meter.timed("generate"):
            return generate(*args)

    def whole(*args: Any) -> Any:
        with meter.timed("score"):
            return rollout(*args)

    trainer._generate, trainer._generate_and_score_completions = generation, whole
    return trainer.train


def _tokenizer(size: Size) -> PreTrainedTokenizerFast:
    """Words ``t0 .. t<vocab>``: one more than the network has."""
    vocabulary = {f"t{index}": index for index in range(size.vocab + 1)}
    splits = Tokenizer(WordLevel(vocabulary, unk_token="t0"))
    splits.pre_tokenizer = WhitespaceSplit()
    words = PreTrainedTokenizerFast(tokenizer_object=splits, padding_side="left")
    words.eos_token = words.pad_token = f"t{size.vocab}"
    return words
