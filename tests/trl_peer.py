"""A real `trl.experimental.ppo.PPOTrainer`, set up from our own configuration; and a witness of what it computes.

The settings are translated in one place, so that whoever compares the two compares the same experiment.
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

from datasets import Dataset
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
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {f"t{index}": index for index in range(vocab + 1)}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="t0")))
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
    it gets. `changes` are settings of TRL that win. Logs go nowhere.
    """
    settings: dict[str, Any] = {
        "output_dir": str(folder), "report_to": "none", "save_strategy": "no", "num_sample_generations": 0,
        "disable_tqdm": True, "use_cpu": queries.device.type == "cpu", "bf16": False, "gradient_checkpointing": False,
        "seed": cfg.train.seed, "total_episodes": cfg.train.updates * cfg.train.batch_size,
        "per_device_train_batch_size": cfg.train.batch_size, "gradient_accumulation_steps": 1,
        "local_rollout_forward_batch_size": cfg.train.batch_size, "num_mini_batches": cfg.train.num_mini_batches,
        "num_ppo_epochs": cfg.train.num_epochs, "response_length": cfg.train.response_length,
        "temperature": cfg.train.temperature, "learning_rate": cfg.optimiser.lr,
        "lr_scheduler_type": cfg.optimiser.lr_schedule, "adam_epsilon": cfg.optimiser.adam_eps,
        "max_grad_norm": cfg.optimiser.max_grad_norm, "kl_coef": cfg.kl.beta, "cliprange": cfg.algorithm.clip.epsilon,
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
