"""The clipped losses, token by token. Averaging is left to the caller, which has the mini-batch.

All tensors are (N,) over the valid tokens of some rows: padding has been left out before, so there is no mask here.
Log-probabilities in nats; advantages in score units, or whitened and without a unit, as are the policy's losses.
A sum over tokens divided by the token count of the *mini-batch* makes the gradient independent of how the
mini-batch is cut into micro-batches; a mean of means would not.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.kl import k2, k3, limited


def policy_loss(
    new_logprobs: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float | None = None
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, negated, and whether the clipped term is the active one.

        ratio = exp(new_logprobs - logprobs)
        loss = max(-A ratio, -A clip(ratio, 1 - low, 1 + high))

    Returns losses (N,) and bool (N,), whose mean is the clip fraction; a tie is not clipped. `logprobs` are those of
    the behaviour policy. Schulman 2017 (arXiv 1707.06347), eq. 7, with the sign turned to be minimised and ε =
    `low`, which is also the bound above 1 unless `high` is given: "clip-higher" of Yu 2025 (DAPO, arXiv 2503.14476).
    """
    ratio = limited(new_logprobs - logprobs).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + (low if high is None else high))
    return torch.maximum(plain, clipped), clipped > plain


def capped_weight_loss(new_logprobs: Tensor, logprobs: Tensor, advantages: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """The log-probability weighted by the ratio, which is capped and held constant; and whether the cap was reached.

        loss = -min(ratio, cap) A new_logprobs, with no gradient through the ratio

    A clipped token loses its gradient, a capped one keeps it. Returns losses (N,) and bool (N,). CISPO: MiniMax 2025
    (arXiv 2506.13585), eq. 4. Others give 1 + ε where `cap` is the bound of the ratio itself.
    """
    ratio = (new_logprobs - logprobs).detach().exp()
    return -ratio.clamp(max=cap) * advantages * new_logprobs, ratio > cap


def kl_loss(d: Tensor, estimator: Literal["k2", "k3"]) -> Tensor:
    """KL to the reference as a term of the loss: k2 or k3 of d = log π - log ref, of a token or summed over a group.

    d, any shape, in nats, as the result. The gradient of k2 is d ∇log π, whose mean under π is the gradient of
    KL(π || ref); that of k3 is (1 - exp(-d)) ∇log π, whose mean is the gradient of KL(ref || π), nearly the same for
    small d. The gradient of k1, ∇log π, is 0 on average: a penalty without effect (Tang and Munos 2025, arXiv
    2506.09477). k3 in the loss is GRPO's choice (Shao 2024, arXiv 2402.03300, eq. 4). With a group as one draw, a token
    also pays for the drift that it leads to in its group.
    """
    return k2(d) if estimator == "k2" else k3(d)


def kl_slope(d: Tensor, estimator: Literal["k2", "k3"]) -> Tensor:
    """Slope of `kl_loss` by d, which is its gradient by every log-prob in it: d, or 1 - exp(-d); without a unit."""
    return d if estimator == "k2" else -limited(-d).expm1()


def value_loss(vpred: Tensor, values: Tensor, returns: Tensor, cliprange: float) -> tuple[Tensor, Tensor]:
    """Half the clipped squared error, and whether the clipped term is the active one.

        loss = ½ max((V - R)², (clip(V, V_old - ε, V_old + ε) - R)²)

    `vpred` of now, `values` of the rollout, `returns`: score units. Returns losses (N,) in squared score units and bool
    (N,), whose mean is the clip fraction. The factor ½ belongs to the loss, so c1 = 0.1 here is 0.05 of a loss without
    it. As in OpenAI's `baselines` (ppo2) and Ziegler 2019's code; not in Schulman 2017.
    """
    near = torch.minimum(torch.maximum(vpred, values - cliprange), values + cliprange)
    plain, clipped = (vpred - returns) ** 2, (near - returns) ** 2
    return 0.5 * torch.maximum(plain, clipped), clipped > plain
