"""What two networks say of sampled tokens, without keeping a (tokens, vocabulary) tensor of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import entropy, exact_kl
from pipeline.models.lm_head import chunks
from pipeline.models.loading import CausalLM
from pipeline.models.policy import gather, log_probs


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
def token_stats(
    model: CausalLM, hidden: Tensor, reference: CausalLM, ref_hidden: Tensor, labels: Tensor, temperature: float
) -> TokenStats:
    """Log-probs, exact KL and entropy at `labels` (N,), from hidden states (N, H), a chunk of tokens at a time."""
    parts: list[tuple[Tensor, ...]] = []
    for rows in chunks(labels, int(model.config.vocab_size)):
        log_pi, log_ref = (
            log_probs(model, hidden[rows], temperature),
            log_probs(reference, ref_hidden[rows], temperature),
        )
        pi = log_pi.exp()
        kl = exact_kl(log_pi, log_ref, pi).clamp(min=0)
        parts.append((gather(log_pi, labels[rows]), gather(log_ref, labels[rows]), kl, entropy(log_pi, pi)))
    return TokenStats(*(torch.cat(column) for column in zip(*parts, strict=True)))
