"""Estimators of the Kullback-Leibler divergence KL(pi || ref), in nats.

With ``d = logprobs - ref_logprobs`` on tokens sampled from pi (Schulman 2020, "Approximating KL Divergence"):
k1 is unbiased and may be negative on a sample, k2 is biased and never negative, k3 is both unbiased and
never negative. `exact_kl` sums over the vocabulary and has no sampling noise.
"""

from __future__ import annotations

from torch import Tensor


def k1(d: Tensor) -> Tensor:
    """d; any shape."""
    return d


def k2(d: Tensor) -> Tensor:
    """d² / 2; any shape."""
    return 0.5 * d * d


def k3(d: Tensor) -> Tensor:
    """exp(-d) - 1 + d; any shape. By expm1, since the difference of near-equal numbers loses its digits."""
    return (-d).expm1() + d


def exact_kl(log_pi: Tensor, log_ref: Tensor) -> Tensor:
    """Σᵥ π(v) (log π(v) - log ref(v)).

    log_pi, log_ref (..., V) normalised log-probabilities; returns (...).
    """
    return (log_pi.exp() * (log_pi - log_ref)).sum(-1)


def entropy(log_pi: Tensor) -> Tensor:
    """-Σᵥ π(v) log π(v), in nats; log_pi (..., V) normalised; returns (...)."""
    return -(log_pi.exp() * log_pi).sum(-1)
