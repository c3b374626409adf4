"""The language-modelling head, a chunk of tokens at a time: nothing of size (tokens, vocabulary) outlives its chunk.

The loss of a token depends on its own log-probability and entropy alone, so a chunk's gradient is known as soon
as the chunk is: it goes back through the head at once, and the trunk gets one gradient for all tokens. A loss of whole
responses is made into such losses by a first pass, `head_logprobs` (`pipeline.training.surrogate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import entropy, exact_kl, expectation
from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import chunk_tokens
from pipeline.models.policy import gather, log_probs

TokenLoss = Callable[[slice, Tensor, Tensor], Tensor]
"""Maps a slice of the N tokens and their new log-probs and entropies (n,) to the sum of their losses."""


@dataclass(frozen=True)
class HeadPass:
    """Results of the head, detached; N valid tokens, H width."""

    logprobs: Tensor
    """(N,) of the labels, nats, fp32."""
    entropy: Tensor
    """(N,) exact over the vocabulary, nats, fp32."""
    gradient: Tensor
    """(N, H) of the loss, with respect to the hidden states."""


def chunks(labels: Tensor, vocab: int) -> Iterator[slice]:
    """Slices of the labels (N,), or of anything of N rows, whose (n, vocab) tensors are small
    (`pipeline.models.out_of_memory.chunk_tokens`)."""
    size, tokens = chunk_tokens(vocab, labels.device.type == "cuda"), len(labels)
    for start in range(0, tokens, size):
        yield slice(start, min(start + size, tokens))


@torch.no_grad()
def head_logprobs(lm: CausalLM, hidden: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Log-probabilities (N,) of the labels at hidden (N, H), nats, fp32; without gradients."""
    slices = chunks(labels, int(lm.config.vocab_size))
    hidden = hidden.detach()  # A module that is called on a tensor with a gradient trips torch's FLOP counter here.
    return torch.cat([gather(log_probs(lm, hidden[rows], temperature), labels[rows]) for rows in slices])


def head_backward(
    lm: CausalLM, hidden: Tensor, labels: Tensor, temperature: float, token_loss: TokenLoss, scale: Tensor
) -> HeadPass:
    """Forward and backward of ``scale * sum of token_loss`` through the head of `lm`.

    hidden (N, H), labels (N,), scale (): accumulates the gradients of the head's parameters and returns that of
    `hidden`, for the trunk. With π = softmax(z / τ), y the label and H the entropy,

        ∂log π(y)/∂z = (1ᵧ - π) / τ,   ∂H/∂z = -π (log π + H) / τ
    """
    logprobs, entropies, gradients = [], [], []
    for rows in chunks(labels, int(lm.config.vocab_size)):
        leaf = hidden[rows].detach().requires_grad_()
        logits = lm.get_output_embeddings()(leaf)
        with torch.no_grad():
            tempered = logits.detach() if temperature == 1 else logits / temperature
            # Not log_pi.exp(): the softmax has a faster exponential.
            log_pi, pi = torch.log_softmax(tempered, dim=-1), torch.softmax(tempered, dim=-1)
            picked = labels[rows].unsqueeze(1)
            logprob, entropy = log_pi.gather(1, picked).squeeze(1), -expectation(pi, log_pi)
        by_logprob, by_entropy = _token_gradients(token_loss, rows, logprob, entropy, scale / temperature)
        with torch.no_grad():
            if by_entropy is None:
                gradient = pi.mul_(-by_logprob)
            else:
                gradient = log_pi.add_(entropy.unsqueeze(1)).mul_(by_entropy).add_(by_logprob).mul_(pi).neg_()
            gradient.scatter_add_(1, picked, by_logprob)
        logits.backward(gradient)
        logprobs.append(logprob)
        entropies.append(entropy)
        gradients.append(torch.as_tensor(leaf.grad))
    return HeadPass(torch.cat(logprobs), torch.cat(entropies), torch.cat(gradients))


def _token_gradients(
    token_loss: TokenLoss, rows: slice, logprobs: Tensor, entropy: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Derivatives of the scaled loss by each token's log-prob and entropy, (n, 1); the latter None where it has no part
    in it."""
    logprobs, entropy = logprobs.detach().requires_grad_(), entropy.detach().requires_grad_()
    loss = token_loss(rows, logprobs, entropy)
    by_logprob, by_entropy = torch.autograd.grad(loss, (logprobs, entropy), allow_unused=True)
    return (by_logprob * scale).unsqueeze(1), None if by_entropy is None else (by_entropy * scale).unsqueeze(1)


@dataclass(frozen=True)
class TokenStats:
    """Statistics of N tokens; each (N,), nats."""

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
