"""An algorithm's surrogate on a micro-batch, as what the chunked head can differentiate: a loss of each token.

A surrogate of whole responses depends on the network through their sums S of log-probs alone. Its gradient is that of
``dL/dS x log-prob``, summed over tokens: one pass through the head without gradients measures S and the slopes dL/dS, a
second one is the usual backward with these slopes as weights. Exact, and nothing of size (tokens, vocabulary) is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.algorithms.base import Algorithm, Behaviour
from pipeline.algorithms.terms import Tokens
from pipeline.config.algorithm import AlgorithmConfig
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
    weight: Tensor | float = 1.0
    """Of the KL penalty and the entropy bonus of a token: they are summed over a response where the surrogate is one of
    responses, so that a beta means the same in the loss as in the reward."""


def of_tokens(algorithm: Algorithm, batch: Tokens, cfg: AlgorithmConfig) -> SurrogateLoss:
    """Every token for itself."""

    def sums(new_logprobs: Tensor) -> dict[str, Tensor]:
        loss, metrics = algorithm.surrogate(batch.behaviour(), new_logprobs, cfg)
        return summed({**metrics, "policy/pg_loss": loss})

    return SurrogateLoss(lambda part, new: algorithm.surrogate(batch.behaviour(part), new, cfg)[0], sums)


def of_sequences(
    algorithm: Algorithm, batch: Tokens, mask: Tensor, now: Tensor, per_sequence: Tensor, cfg: AlgorithmConfig
) -> SurrogateLoss:
    """Every response as a whole; mask (B, T) of the rows, now (N,) log-probs of this very network.

    `per_sequence` () is valid tokens / responses of the mini-batch: it turns a mean over tokens into a mean over
    responses.
    """

    def per_row(flat: Tensor) -> Tensor:
        # In fp64, so that the columns of padding, which go with the micro-batch, do not move the last digit.
        return to_grid(flat, mask).double().sum(1).to(flat.dtype)

    behaviour = Behaviour(per_row(batch.logprobs), to_grid(batch.advantages, mask)[:, 0])
    total = per_row(now).requires_grad_()
    with torch.enable_grad():
        loss, metrics = algorithm.surrogate(behaviour, total, cfg)
        (slope,) = torch.autograd.grad(loss.sum(), total)
    slopes = (slope * per_sequence).unsqueeze(1).expand(mask.shape)[mask]
    scaled = {name: value * per_sequence for name, value in summed({**metrics, "policy/pg_loss": loss}).items()}
    return SurrogateLoss(lambda part, new: slopes[part] * new, lambda new: scaled, per_sequence)


def summed(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums in fp32, detached."""
    return {name: column.detach().sum(dtype=torch.float32) for name, column in metrics.items()}
