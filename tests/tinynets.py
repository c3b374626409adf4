"""Networks of many architectures with a few hundred weights, and episodes for them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pipeline.models.policy import Episodes, response_mask
from pipeline.models.trunk import packed_attention
from pipeline.rewards.base import Completions

SIZES = {
    "hidden_size": 32, "n_embd": 32, "num_hidden_layers": 3, "n_layer": 3, "num_attention_heads": 4, "n_head": 4,
    "num_key_value_heads": 4, "intermediate_size": 48, "n_inner": 48, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip


def network(architecture: str, attention: str = "", seed: int = 0, **changes: Any) -> Any:
    """Tiny random weights, from configuration alone; with our attention unless another is given."""
    config = AutoConfig.for_model(architecture, vocab_size=50)
    for key, value in {**SIZES, **changes}.items():
        if hasattr(config, key):
            setattr(config, key, value)
    if getattr(config, "layer_types", None):
        config.layer_types = (config.layer_types * 2)[: config.num_hidden_layers]
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention or packed_attention()).eval()


def episodes(queries: list[int], lengths: list[int]) -> Episodes:
    """Random tokens: prompts of these lengths, left-padded, and responses of these."""
    rows, context, width = len(queries), max(queries), max(lengths)
    tokens = torch.randint(2, 50, (rows, context + width), generator=torch.Generator().manual_seed(1))
    query_mask = torch.arange(context) >= context - torch.tensor(queries)[:, None]
    return Episodes(
        tokens, query_mask, response_mask(torch.tensor(lengths), width), torch.zeros(rows, dtype=torch.bool)
    )


UNEVEN = episodes([6, 3, 1, 4, 2], [7, 1, 3, 7, 5])
EVEN = episodes([3, 3], [4, 4])


def completions(*rows: tuple[str, str]) -> Completions:
    """Prompts and completions as text; the tokens are any, and no response ended by itself."""
    ones = torch.ones(len(rows), 1, dtype=torch.bool)
    episodes = Episodes(torch.zeros(len(rows), 2, dtype=torch.long), ones, ones, ~ones[:, 0])
    return Completions(episodes, [prompt for prompt, _ in rows], [text for _, text in rows])
