"""Real PPO, GRPO and RLOO trainers of TRL, set up from our own configuration; and a witness of what PPO computes.

The settings are translated in one place, so that whoever compares ours with them compares the same experiment.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM, Qwen2ForSequenceClassification
from transformers.trainer_callback import PrinterCallback
from trl.experimental.ppo import PPOConfig, PPOTrainer

from pipeline.config.trial import TrialConfig

TokenReward = Callable[[Tensor], Tensor]
"""Token ids (B, L) to the reward of every prefix (B, L)."""


class TokenRewardModel(nn.Module):
    """A function of tokens in the shape of TRL's reward models: a backbone and a `score` on its hidden states."""

    base_model_prefix = "backbone"

    def __init__(self, reward: TokenReward) -> None:
        super().__init__()
        self.reward = reward

    def backbone(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=(self.reward(input_ids).unsqueeze(-1),))

    def score(self, hidden: Tensor) -> Tensor:
        return hidden


def tokenizer(vocab: int, *, eos_id: int, pad_id: int) -> PreTrainedTokenizerFast:
    """A word-level tokenizer over ``t0 .. t<vocab>``; one more than the network has, as padding it cannot sample."""
    words = {f"t{index}": index for index in range(vocab + 1)}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="t0")))
    made.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    made.pad_token, made.eos_token, made.padding_side = f"t{pad_id}", f"t{eos_id}", "left"
    return made


def critic_of(policy: Qwen2ForCausalLM) -> Qwen2ForSequenceClassification:
    """A separate critic on a copy of the policy's trunk, its head at zero."""
    config = deepcopy(policy.config)
    config.num_labels = 1
    critic = Qwen2ForSequenceClassification(config)
    critic.model.load_state_dict(policy.model.state_dict())
    nn.init.zeros_(critic.score.weight)
    return critic.eval()


def _settings(cfg: TrialConfig, folder: Path, queries: Tensor) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "use_cpu": queries.device.type == "cpu", "bf16": False, "gradient_checkpointing": False,
        "seed": cfg.train.seed, "gradient_accumulation_steps": 1, "temperature": cfg.train.temperature,
        "learning_rate": cfg.optimiser.lr, "lr_scheduler_type": cfg.optimiser.lr_schedule,
        "adam_epsilon": cfg.optimiser.adam_eps, "max_grad_norm": cfg.optimiser.max_grad_norm,
    }  # fmt: skip


def ppo_trainer(
    cfg: TrialConfig,
    policy: Qwen2ForCausalLM,
    reference: Qwen2ForCausalLM,
    critic: Qwen2ForSequenceClassification,
    reward: TokenReward,
    queries: Tensor,
    words: PreTrainedTokenizerFast,
    folder: Path,
    **changes: Any,
) -> PPOTrainer:
    """TRL's trainer on these networks and prompts (n, P), its settings read from `cfg`; it takes what it has a name
    for.

    Each of its ``num_mini_batches`` is one optimiser step only with ``gradient_accumulation_steps=1``, so that is what
    it gets. `changes` are settings of TRL that win.
    """
    settings = _settings(cfg, folder, queries) | {
        "num_sample_generations": 0, "total_episodes": cfg.train.updates * cfg.train.batch_size,
        "per_device_train_batch_size": cfg.train.batch_size, "local_rollout_forward_batch_size": cfg.train.batch_size,
        "num_mini_batches": cfg.train.num_mini_batches, "num_ppo_epochs": cfg.train.num_epochs,
        "response_length": cfg.train.response_length, "kl_coef": cfg.kl.beta, "cliprange": cfg.algorithm.clip.epsilon,
        "cliprange_value": cfg.critic.cliprange, "vf_coef": cfg.critic.vf_coef, "gamma": cfg.algorithm.gamma,
        "lam": cfg.algorithm.gae_lambda, "whiten_rewards": False, "missing_eos_penalty": None,
    }  # fmt: skip
    policy.generation_config.pad_token_id = words.pad_token_id
    trainer = PPOTrainer(
        args=PPOConfig(**(settings | changes)),
        processing_class=words,
        model=policy,
        ref_model=reference,
        reward_model=TokenRewardModel(reward),
        value_model=critic,
        train_dataset=Dataset.from_dict({"input_ids": queries.tolist()}),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def group_trainer(
    cfg: TrialConfig, policy: Qwen2ForCausalLM, reward: TokenReward, queries: Tensor, folder: Path, **changes: Any
) -> Any:
    """TRL's trainer of GRPO or RLOO, as `cfg` names it, on prompts (n, P), with a copy of `policy` as the reference.
    EOS is a token that the network cannot sample, so that every response has its full length."""
    words = tokenizer(policy.vocab_size, eos_id=policy.vocab_size, pad_id=policy.vocab_size)
    config, trainer, plain = trl.RLOOConfig, trl.RLOOTrainer, {}
    if cfg.algorithm.name == "grpo":
        config, trainer = trl.GRPOConfig, trl.GRPOTrainer
        plain = {"loss_type": "grpo", "use_bias_correction_kl": False}
    policy.save_pretrained(folder / "reference")
    policy.config._name_or_path = str(folder / "reference")  # TRL loads it from there

    def score(query: list[list[int]], completion_ids: list[list[int]], **_: Any) -> list[float]:
        rows = [[*row, *ids] for row, ids in zip(query, completion_ids, strict=True)]
        return reward(torch.tensor(rows))[:, -1].tolist()

    settings = _settings(cfg, folder, queries) | plain | {
        "logging_strategy": "no", "max_steps": cfg.train.steps, "num_generations": cfg.train.responses_per_prompt,
        "per_device_train_batch_size": cfg.train.mini_batch_size, "generation_batch_size": cfg.train.batch_size,
        "num_iterations": cfg.train.num_epochs, "max_completion_length": cfg.train.response_length,
        "beta": cfg.kl.beta, "epsilon": cfg.algorithm.clip.epsilon,
    }  # fmt: skip
    prompts = Dataset.from_dict({"prompt": words.batch_decode(queries), "query": queries.tolist()})
    return trainer(policy, score, config(**(settings | changes)), prompts, processing_class=words)


class Witness:
    """Reads the local variables of `PPOTrainer.train` while it runs, instead of typing its formulas again.

    `steps` holds one dictionary a micro-batch, taken when the loss is handed over for its backward pass;
    `update` those of the whole batch, taken when an update is logged. Gradients are those after the backward pass.
    """

    def __init__(self, trainer: PPOTrainer) -> None:
        self.steps: list[dict[str, Any]] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.update: dict[str, Any] = {}
        self.trainer = trainer
        self._backward, trainer.accelerator.backward = trainer.accelerator.backward, self._on_backward
        trainer.log = self._on_log

    def _on_backward(self, loss: Tensor, **options: Any) -> None:
        self.steps.append(_tensors(sys._getframe(1).f_locals))
        self._backward(loss, **options)
        self.gradients.append(
            {name: p.grad.clone() for name, p in self.trainer.model.named_parameters() if p.grad is not None}
        )

    def _on_log(self, metrics: dict[str, float], *_: Any) -> None:
        self.update = _tensors(sys._getframe(1).f_locals) | {"metrics": dict(metrics)}


def _tensors(variables: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in variables.items() if isinstance(value, Tensor)}
