"""What two networks say of sampled tokens, without keeping a (tokens, vocabulary) tensor of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.models.loading import CausalLM
from pipeline.models.policy import gather, log_probs
from pipeline.ppo.kl import entropy, exact_kl

CHUNK_ELEMENTS = 2**26
"""Entries of one (tokens, V) tensor: 256 MiB in fp32. About five are alive at once."""


@dataclass(frozen=True)
class TokenStats:
    """Of N tokens; each (N,), nats."""

    logprobs: Tensor
    ref_logprobs: Tensor
    kl: Tensor
    """Exact, summed over the vocabulary; rounding below 0 is cut."""
    entropy: Tensor
    """Exact, of the first network."""


@torch.no_grad()
def token_stats(model: CausalLM, hidden: Tensor, reference: CausalLM, ref_hidden: Tensor, labels: Tensor, temperature: float) -> TokenStats:
    """Log-probs, exact KL and entropy at `labels` (N,), from hidden states (N, H), a chunk of tokens at a time."""
    size = max(CHUNK_ELEMENTS // int(model.config.vocab_size), 1)
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        log_pi, log_ref = log_probs(model, hidden[rows], temperature), log_probs(reference, ref_hidden[rows], temperature)
        kl = exact_kl(log_pi, log_ref).clamp(min=0)
        parts.append((gather(log_pi, labels[rows]), gather(log_ref, labels[rows]), kl, entropy(log_pi)))
    return TokenStats(*(torch.cat(column) for column in zip(*parts, strict=True)))
