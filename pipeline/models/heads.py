"""The heads of a network: fp32 output, whatever autocast computes the rest in; that of a language model goes by chunks.

A logit of -70 rounded to bf16 is off by up to 0.25, and log-softmax turns that into errors of a log-probability.

Nothing of size (tokens, vocabulary) outlives its chunk of tokens. The loss of a token depends on its own
log-probability and entropy alone, so a chunk's gradient is known as soon as the chunk is: it goes back through the head
at once, and the trunk gets one gradient for all tokens. A loss of whole responses is made into such losses by a first
pass, `head_logprobs` (`pipeline.training.surrogate`). The perplexity of a network on texts is measured the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.algorithms.mathematics.kl import entropy, exact_kl, expectation
from pipeline.models.out_of_memory import Room, bucket, chunk_tokens
from pipeline.models.precision import Precision
from pipeline.models.tokenizers import collate
from pipeline.models.trunk import CausalLM, states


class Fp32Head(nn.Linear):
    """A head of a language model or of a classifier: (..., H) to logits (..., V). Autocast rounds its operands, not its
    output."""

    _copy: tuple[tuple[Any, ...], Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, torch's name
        """Logits in fp32; without autocast the plain linear map."""
        device = input.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(input)
        weight = self._half(torch.get_autocast_dtype(device))
        logits: Tensor = _HalfProduct.apply(input.flatten(0, -2), self.weight, weight)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            logits = logits + self.bias
        return logits.view(*input.shape[:-1], -1)

    def _half(self, dtype: torch.dtype) -> Tensor:
        """The weight in half precision. That of a trained head is kept until the weight changes, as autocast would keep
        it."""
        if not self.weight.requires_grad:
            return self.weight.to(dtype)
        made_of = (self.weight._version, self.weight.data_ptr(), dtype)
        if self._copy is None or self._copy[0] != made_of:
            # Sampling runs in inference mode, and its tensors could not be saved for a backward.
            with torch.inference_mode(False), torch.no_grad():
                self._copy = made_of, self.weight.to(dtype)
        return self._copy[1]


class _HalfProduct(torch.autograd.Function):
    """Logits (N, V) in fp32 of states (N, H) and a weight (V, H), all products from half-precision operands.

    The weight's copy in half precision comes beside it; the gradient goes to the weight itself.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, copy: Tensor) -> Tensor:
        rounded = states.to(copy.dtype)
        ctx.save_for_backward(rounded, copy)
        ctx.dtype = states.dtype
        return product(rounded, copy.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rounded, copy = ctx.saved_tensors
        by_logits = gradients[0].to(copy.dtype)
        by_states = product(by_logits, copy).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        by_weight = product(by_logits.t(), rounded) if ctx.needs_input_grad[1] else None
        return by_states, by_weight, None


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two half-precision matrices, summed and returned in fp32."""
    with torch.autocast(left.device.type, enabled=False):
        if left.device.type == "cuda":  # on tensor cores; a product of fp32 operands takes a T4 eight times as long
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left.float(), right.float())


def fp32_logits(model: Any) -> Any:
    """Have the language-modelling head of `model` be an `Fp32Head`, in place: weights, ties and names stay. Returns the
    model."""
    _widen(model.get_output_embeddings())
    return model


def fp32_classes(model: Any) -> Any:
    """The same for the head of a classifier: its linear map to as many numbers as there are labels."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features == model.config.num_labels:
            _widen(module)
    return model


def _widen(head: Any) -> None:
    if type(head) is nn.Linear:
        head.__class__ = Fp32Head


def full_precision(head: nn.Linear, states: Tensor) -> Tensor:
    """Apply a head (H, n) to states (N, H): (N, n) in fp32, its operands too; (N,) where n is 1."""
    with torch.autocast(states.device.type, enabled=False):
        values: Tensor = head(states.float()).squeeze(-1)
    return values


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


def log_probs(model: CausalLM, hidden: Tensor, temperature: float) -> Tensor:
    """Normalised log-probabilities (N, V) in fp32, of logits / temperature."""
    logits: Tensor = model.get_output_embeddings()(hidden)
    return torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)


def gather(log_pi: Tensor, labels: Tensor) -> Tensor:
    """The entries of (N, V) at labels (N,); returns (N,)."""
    return log_pi.gather(1, labels.unsqueeze(1)).squeeze(1)


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


LARGEST = 50.0
"""Nats per token from which on perplexities are equal: a collapsed network gives a number that files and plots can
hold."""


def perplexity(model: CausalLM, rows: list[list[int]], room: Room, ask: int | None = None) -> float:
    """exp(sum of -log π / tokens) at temperature 1, over the tokens that SFT learns, as it measures it.

    A ratio of sums: long texts weigh more. Raises `MemoryFull`.
    """
    nats = float(text_nats(model, rows, room, ask).sum())
    return math.exp(min(nats / learned_tokens(rows, ask), LARGEST))


def learned_tokens(rows: list[list[int]], ask: int | None) -> int:
    """Count the tokens after the first of each text, or after its first `ask`, which ends a prompt."""
    return sum(len(row) - 1 - (0 if ask is None else row.index(ask)) for row in rows)


def text_states(
    model: CausalLM, rows: list[list[int]], device: torch.device, ask: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (N, H) that predict the tokens of texts after their first, or after their first `ask`; these
    tokens, and the text of each, (N,) int64."""
    ids, mask = collate(rows, device)
    learned = mask[:, 1:]
    if ask is not None:
        learned = learned & ((ids == ask).cumsum(1)[:, :-1] > 0)
    row, column = learned.nonzero(as_tuple=True)
    return states(model, ids[:, :-1], mask.sum(1) - 1, row, column), ids[row, column + 1], row


@torch.inference_mode()
def text_nats(model: CausalLM, rows: list[list[int]], room: Room, ask: int | None = None) -> Tensor:
    """-log π of each text's tokens after the first, or after its first `ask`, summed; (n,) float64 on the CPU, nats.
    Raises `MemoryFull`."""
    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # so that little of a batch is padding
    found = torch.zeros(len(rows), dtype=torch.float64)

    def fill(part: slice) -> None:
        hidden, labels, row = text_states(model, [rows[index] for index in order[part]], device, ask)
        nats = -head_logprobs(model, hidden, labels, 1.0).double()
        found[order[part]] = torch.zeros(len(order[part]), dtype=torch.float64).index_add(0, row.cpu(), nats.cpu())

    with Precision.of(device).autocast():
        room.over(len(rows), fill, bucket(device, len(rows)))
    return found
