"""The surrogate's part of a micro-batch's loss, as what the chunked head can differentiate: a loss of each token.

A surrogate of whole responses depends on the network through their sums S of log-probs alone. Its gradient is that of
``dL/dS x log-prob``, summed over tokens: one pass through the head without gradients measures S and the slopes dL/dS, a
second one is the usual backward with these slopes as weights. Exact, and nothing of size (tokens, vocabulary) is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.algorithms.base import Behaviour, Surrogate
from pipeline.algorithms.terms import Tokens
from pipeline.config.algorithm import AlgorithmConfig
from pipeline.models.micro_batches import MicroBatch
from pipeline.models.policy import to_grid


@dataclass(frozen=True)
class SurrogateLoss:
    """The surrogate's part of the loss; N valid tokens."""

    loss: Callable[[slice, Tensor], Tensor]
    """From a slice of the tokens and their new log-probs (n,) to losses (n,) whose gradient, not value, is the
    surrogate's."""
    sums: Callable[[Tensor], dict[str, Tensor]]
    """From all new log-probs (N,) to the metrics summed, so that a division by the mini-batch's tokens averages
    them."""
    weight: Tensor | None
    """(N,) of the KL penalty and the entropy bonus of a token: what the gradient of its log-probability is multiplied
    with for a unit of advantage. So a beta means the same in the loss as in the reward. None: 1 everywhere."""

    def weighted(self, tokens: slice, losses: Tensor) -> Tensor:
        """Penalties or bonuses of some tokens, (n,), with their weight in the loss."""
        return losses if self.weight is None else self.weight[tokens] * losses


def of_tokens(surrogate: Surrogate, batch: Tokens, weight: Tensor | None, cfg: AlgorithmConfig) -> SurrogateLoss:
    """Every token for itself; weight (N,) in the loss, None for 1."""

    def loss(tokens: slice, new_logprobs: Tensor) -> Tensor:
        losses = surrogate(batch.behaviour(tokens), new_logprobs, cfg)[0]
        return losses if weight is None else weight[tokens] * losses

    def sums(new_logprobs: Tensor) -> dict[str, Tensor]:
        losses, metrics = surrogate(batch.behaviour(), new_logprobs, cfg)
        return summed({**metrics, "policy/pg_loss": losses if weight is None else weight * losses})

    return SurrogateLoss(loss, sums, weight)


def of_sequences(
    surrogate: Surrogate,
    batch: Tokens,
    mask: Tensor,
    now: Tensor,
    weight: Tensor,
    per_sequence: Tensor,
    cfg: AlgorithmConfig,
    micro_batch: MicroBatch | None = None,
) -> SurrogateLoss:
    """Every response as a whole; mask (B, T) of the rows, now (N,) log-probs of this very network, weight (B,) of a
    response in the loss.

    `per_sequence` () is valid tokens / responses of the mini-batch: it turns a mean over tokens into a mean over
    responses.
    """
    lengths = mask.sum(1)
    share = torch.ones_like(lengths, dtype=now.dtype)
    if cfg.ratio == "sequence_mean":
        share = share / lengths
    behaviour = Behaviour(of_rows(batch.logprobs, mask, share), to_grid(batch.advantages, mask)[:, 0])
    level = of_rows(now, mask, share).requires_grad_()
    with torch.enable_grad():
        losses, metrics = surrogate(behaviour, level, cfg)
        (slope,) = torch.autograd.grad(losses.sum(), level)
    slopes = to_tokens(slope * weight * share, mask, micro_batch)
    scaled = {name: value * per_sequence for name, value in summed(metrics).items()}
    scaled |= summed({"policy/pg_loss": losses * weight})
    weights = to_tokens(weight * share, mask, micro_batch)
    return SurrogateLoss(lambda tokens, new: slopes[tokens] * new, lambda new: scaled, weights)


def of_rows(flat: Tensor, mask: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """Sums over each response, times its `share` (B,): flat (N,) and mask (B, T) of the rows; (B,)."""
    # In fp64, so that the columns of padding, which go with the micro-batch, do not move the last digit.
    return (to_grid(flat, mask).double().sum(1) * share).to(flat.dtype)


def to_tokens(rows: Tensor, mask: Tensor, micro_batch: MicroBatch | None = None) -> Tensor:
    """The number of each response on all its valid tokens: rows (B,), mask (B, T); (N,). Those of a `micro_batch`
    without asking the device."""
    return rows.unsqueeze(1).expand(mask.shape)[mask] if micro_batch is None else rows[micro_batch.row]


def summed(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums in fp32, detached."""
    return {name: column.detach().sum(dtype=torch.float32) for name, column in metrics.items()}
