"""The KL penalty's part of a micro-batch's loss, as what the chunked head can differentiate: a loss of each token.

A penalty on whole responses is made into one of tokens as a surrogate of whole responses is: by a first pass through
the head (`pipeline.training.surrogate_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pipeline.algorithms.mathematics.kl import k2
from pipeline.algorithms.terms import Tokens, kl_penalty
from pipeline.config.kl import KlConfig
from pipeline.training.surrogate_loss import of_rows, to_tokens


@dataclass(frozen=True)
class Penalty:
    """beta times the KL to the reference, before the weights of the aggregation; N valid tokens."""

    loss: Callable[[slice, Tensor], Tensor]
    """From a slice of the tokens and their new log-probs (n,) to losses (n,) whose gradient, not value, is the
    penalty's."""
    value: Callable[[Tensor], Tensor]
    """From all new log-probs (N,) to the penalty of each token (N,), for metrics."""


def penalty_of(batch: Tokens, mask: Tensor, now: Tensor | None, kl_coef: float, kl: KlConfig) -> Penalty | None:
    """The penalty that `kl` asks for in the loss, if any; mask (B, T) of the rows, and of a penalty on whole responses
    `now` (N,), the log-probs of this very network."""
    if kl.place != "loss":
        return None
    if kl.by_sequence:
        assert now is not None
        return on_responses(batch, mask, now, kl_coef)

    def loss(tokens: slice, new_logprobs: Tensor) -> Tensor:
        losses = kl_penalty(batch, tokens, new_logprobs, kl_coef, kl)
        assert losses is not None
        return losses

    return Penalty(loss, lambda new_logprobs: loss(slice(None), new_logprobs))


def on_responses(batch: Tokens, mask: Tensor, now: Tensor, kl_coef: float) -> Penalty:
    """β d² / 2 of a response, d = Σₜ (log π - log ref), with the gradient β d ∇ Σₜ log π.

    Its value is spread evenly over the tokens of the response.
    """
    d = of_rows(now - batch.ref_logprobs, mask)
    slopes, values = to_tokens(kl_coef * d, mask), to_tokens(kl_coef * k2(d) / mask.sum(1), mask)
    return Penalty(lambda tokens, new_logprobs: slopes[tokens] * new_logprobs, lambda new_logprobs: values)
