"""The sizes of a network that its work and its memory depend on, and those of some published models.

Only forecasts read this file. No stage does, so another model in the table leaves every key as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen1.5-0.5B": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 50_257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "tie_word_embeddings": True,
    },
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": {
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
}
"""What the config files of some models on the hub say, so that a plan needs no network."""


@dataclass(frozen=True)
class Shape:
    """A decoder-only network in numbers; all but the last two are counts of parameters or widths."""

    vocab: int
    hidden: int
    layers: int
    attention: int
    """Width of all attention heads together."""
    kv: int
    """Numbers cached per position: keys and values of all layers."""
    maps: int
    """Weights of the linear maps in all blocks: a position is multiplied by each once."""
    ports: int
    """Inputs and outputs of these maps, summed: what a LoRA adapter of rank 1 adds."""
    blocks: int
    """Parameters of all blocks."""
    outside: int
    """Parameters of embeddings and final norm."""
    head: int
    """Parameters of the language-modelling head that are not the embedding's."""
    kept_fp32: float
    """Bytes per position that a forward in fp32 keeps for its backward, over all layers."""
    kept_half: float
    """The same where matrix products run in half precision."""

    @property
    def trunk(self) -> int:
        """Parameters without a language-modelling head."""
        return self.blocks + self.outside

    @property
    def parameters(self) -> int:
        """All parameters, a tied head counted once."""
        return self.trunk + self.head


@dataclass(frozen=True)
class ScorerShape:
    """A classifier in numbers."""

    parameters: int
    maps: int
    """Weights of its linear maps."""
    block_bytes: float
    """Bytes per position that one block works on."""


BASE_CLASSIFIER = ScorerShape(parameters=125_000_000, maps=85_000_000, block_bytes=4.0 * (4 * 768 + 2 * 3072))
"""What is assumed of a classifier whose configuration cannot be had: twelve layers of width 768, with a vocabulary of
50,000."""
