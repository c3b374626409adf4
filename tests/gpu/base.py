"""Random networks in the layout of the hub, with a tokenizer of the built-in reviews; and the trial that is measured on
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.config.data import DataConfig
from pipeline.config.loading import load_config
from pipeline.config.names import TRAINING
from pipeline.config.trial import TrialConfig
from pipeline.data.corpus import load_corpus
from pipeline.data.tokenizer import train_tokenizer
from pipeline.forecast.shapes import PUBLISHED

QWEN: dict[str, Any] = PUBLISHED["Qwen/Qwen1.5-0.5B"] | {
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "initializer_range": 0.02,
}
"""config.json of Qwen/Qwen1.5-0.5B, as far as it says something of shapes."""
MEDIUM = {**QWEN, "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8}
"""8.5 M parameters: activations of a full batch are many times the weights, so that a cap on memory bites."""
TINY = {
    **MEDIUM,
    "vocab_size": 1024,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SHAPES = {"qwen0.5b": QWEN, "medium": MEDIUM, "tiny": {**TINY, "num_key_value_heads": 2}}


def write_base(folder: Path, shape: str) -> Path:
    """A random network of a shape with a tokenizer that knows fewer words than the vocabulary has places; returns the
    folder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = train_tokenizer(load_corpus(DataConfig(sft_texts=2000)).train, 700)
    config = AutoConfig.for_model(**SHAPES[shape], bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measured_trial(base: Path, device: str, shape: str) -> TrialConfig:
    """The profile `t4` for a few updates on built-in reviews, which need no download; in a rehearsal with small
    batches.

    Every phase has the batch, micro-batch and lengths of a real trial of that profile, but for prompts: the reviews are
    short.
    """
    t4 = load_config("t4")
    few = shape != "qwen0.5b"
    steps = t4.train.steps_per_update
    rows: dict[str, Any] = {"runtime.micro_batch_size": 4, "runtime.rollout_batch_size": 8} if few else {}
    changes = {
        "data.sft_texts": 2000,
        "data.train_prompts": 512,
        "data.heldout_prompts": 128,
        "data.prompt_unit": "tokens",
        "data.prompt_length": [8, 20],
        "model.base": str(base),
        "sft.steps": 3,
        "sft.batch_size": 4 if few else t4.sft.batch_size,
        "sft.max_tokens": 24,
        "sft.lr": t4.sft.lr,
        "reward.pairs": 8 if few else 96,
        "reward.heldout_pairs": 8 if few else 32,
        "reward.calibration_samples": 8 if few else 64,
        "reward.batch_size": 4 if few else t4.reward.batch_size,
        "reward.epochs": 1,
        "reward.lr": t4.reward.lr,
        "evaluate.prompts": 8 if few else 128,
        "evaluate.sample_rows": 4,
        "evaluate.reference_draws": 2,
        "runtime.device": device,
        "runtime.micro_batch_size": t4.runtime.micro_batch_size,
        "runtime.rollout_batch_size": t4.runtime.rollout_batch_size,
        "runtime.gradient_checkpointing": t4.runtime.gradient_checkpointing,
        "runtime.checkpoint_updates": 10_000,
    }
    content = load_config("smoke", changes | rows).model_dump()
    content |= {section: getattr(t4, section).model_dump() for section in TRAINING}
    content["train"] |= {"steps": 4 * steps, "batch_size": 8 if few else t4.train.batch_size}
    return TrialConfig.model_validate(content)
