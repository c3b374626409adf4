"""The KL penalty's part of a micro-batch's loss, as what the chunked head can differentiate: a loss of each token.

A penalty on groups of tokens is made into one of tokens as a surrogate of whole responses is: by a first pass through
the head (`pipeline.training.surrogate_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.losses import group_kl_loss
from pipeline.algorithms.mathematics.token_groups import credited, group_ends, group_sums
from pipeline.algorithms.terms import Tokens, kl_penalty
from pipeline.config.kl import KlConfig
from pipeline.models.micro_batches import MicroBatch, picked
from pipeline.models.policy import to_grid


@dataclass(frozen=True)
class Penalty:
    """beta times the KL to the reference, before the weights of the aggregation; N valid tokens."""

    loss: Callable[[slice, Tensor], Tensor]
    """From a slice of the tokens and their new log-probs (n,) to losses (n,) whose gradient, not value, is the
    penalty's."""
    value: Callable[[Tensor], Tensor]
    """From all new log-probs (N,) to the penalty of each token (N,), for metrics."""


def penalty_of(
    batch: Tokens,
    mask: Tensor,
    now: Tensor | None,
    kl_coef: float,
    kl: KlConfig,
    groups: Tensor | None = None,
    micro_batch: MicroBatch | None = None,
) -> Penalty | None:
    """The penalty that `kl` asks for in the loss, if any; mask (B, T) of the rows. Of a penalty on groups of tokens
    also their numbers `groups` (B, T) and `now` (N,), the log-probs of this very network."""
    if kl.place != "loss":
        return None
    if kl.grouped_in("loss"):
        assert now is not None
        assert groups is not None
        return _on_groups(batch, mask, now, kl_coef, kl, groups, micro_batch)

    def loss(tokens: slice, new_logprobs: Tensor) -> Tensor:
        losses = kl_penalty(batch, tokens, new_logprobs, kl_coef, kl)
        assert losses is not None
        return losses

    return Penalty(loss, lambda new_logprobs: loss(slice(None), new_logprobs))


def _on_groups(
    batch: Tokens,
    mask: Tensor,
    now: Tensor,
    kl_coef: float,
    kl: KlConfig,
    groups: Tensor,
    micro_batch: MicroBatch | None,
) -> Penalty:
    """β k2(D) or β k3(D) of each group, D = Σ (log π - log ref) over it. The gradient is β slope(D) ∇ log π of all its
    tokens, or of its last one alone.

    The value is spread evenly over the tokens of the group.
    """
    assert kl.loss_estimator != "ratio_k3"
    whole = group_sums(to_grid(now - batch.ref_logprobs, mask), groups, mask)
    estimate, slope = group_kl_loss(whole, kl.loss_estimator)
    match kl.group_credit:
        case "shared":
            paying = mask
        case "last":
            paying = group_ends(groups, mask)
        case _:
            assert_never(kl.group_credit)
    slopes = picked(torch.where(paying, kl_coef * slope, 0.0), mask, micro_batch)
    values = picked(credited(kl_coef * estimate, groups, mask, "shared"), mask, micro_batch)
    return Penalty(lambda tokens, new_logprobs: slopes[tokens] * new_logprobs, lambda new_logprobs: values)
