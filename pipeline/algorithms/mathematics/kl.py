"""Estimators of the Kullback-Leibler divergence KL(pi || ref), in nats.

With ``d = log π - log ref`` on tokens sampled from π (Schulman 2020, "Approximating KL Divergence"): k1 is unbiased
and may be negative on a sample, k2 is biased and never negative, k3 is both unbiased and never negative.
`exact_kl` sums over the vocabulary and has no sampling noise; it and `entropy` take exp(log_pi) as `pi` from a caller
that has it. All work entry by entry, without a mask: the caller averages over valid tokens. Results have the dtype of
the arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 80.0
"""Nats; e⁸⁰ = 6e34 leaves room for an advantage and a sum over tokens in fp32, which ends at 3e38."""


def limited(d: Tensor) -> Tensor:
    """Return min(d, 80) with the gradient of d, as the argument of exp; any shape.

    Beyond 88 nats exp is infinite in fp32, and where a clip makes its gradient 0, the product of both is NaN. The norm
    of an unbounded loss's gradient can still be infinite.
    """
    return d - d.detach() + d.detach().clamp(max=LARGEST_LOG_RATIO)


def k2(d: Tensor) -> Tensor:
    """d² / 2, in nats; any shape."""
    return 0.5 * d * d


def k3(d: Tensor) -> Tensor:
    """exp(-d) - 1 + d, in nats; any shape. By expm1, since the difference of near-equal numbers loses its digits."""
    d = -limited(-d)
    return (-d).expm1() + d


def exact_kl(log_pi: Tensor, log_ref: Tensor, pi: Tensor | None = None) -> Tensor:
    """Σᵥ π(v) (log π(v) - log ref(v)).

    log_pi, log_ref (..., V) normalised and finite log-probabilities, as log-softmax gives them; returns (...) in nats
    per token, never negative but for rounding. (0 times log 0 would be NaN; a token that softmax rounds to 0 counts 0.)
    """
    return expectation(log_pi.exp() if pi is None else pi, log_pi - log_ref)


def entropy(log_pi: Tensor, pi: Tensor | None = None) -> Tensor:
    """-Σᵥ π(v) log π(v).

    log_pi (..., V) normalised and finite log-probabilities; returns (...) in nats per token, between 0 and log V.
    """
    return -expectation(log_pi.exp() if pi is None else pi, log_pi)


def expectation(pi: Tensor, values: Tensor) -> Tensor:
    """Σᵥ π(v) values(v); both (..., V), returns (...) in their dtype.

    Autocast would take it for a matrix product and compute it in half precision, in which most of π is 0.
    """
    with torch.autocast(pi.device.type, enabled=False):
        mean: Tensor = torch.linalg.vecdot(pi, values)
    return mean
