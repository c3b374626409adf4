"""The clipped losses, token by token. Averaging is left to the caller, who knows the mini-batch.

A sum over tokens divided by the token count of the *mini-batch* makes the gradient independent of how the
mini-batch is cut into micro-batches; a mean of means would not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(new_logprobs: Tensor, logprobs: Tensor, advantages: Tensor, cliprange: float) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, negated, and whether the clipped term is the active one.

        ratio = exp(new_logprobs - logprobs)
        loss = max(-A ratio, -A clip(ratio, 1 - ε, 1 + ε))

    All (N,) over valid tokens; returns losses (N,) and bool (N,). Schulman 2017 (arXiv 1707.06347), eq. 7.
    """
    ratio = (new_logprobs - logprobs).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    return torch.maximum(plain, clipped), clipped > plain


def value_loss(vpred: Tensor, values: Tensor, returns: Tensor, cliprange_value: float) -> tuple[Tensor, Tensor]:
    """Half the clipped squared error, and whether the clipped term is the active one.

        loss = ½ max((V - R)², (clip(V, V_old - ε, V_old + ε) - R)²)

    All (N,) over valid tokens, `values` from the rollout; returns losses (N,) in squared score units and
    bool (N,). The factor ½ belongs to the loss, so c1 = 0.1 here is 0.05 of a loss without it.
    """
    near = torch.minimum(torch.maximum(vpred, values - cliprange_value), values + cliprange_value)
    plain, clipped = (vpred - returns) ** 2, (near - returns) ** 2
    return 0.5 * torch.maximum(plain, clipped), clipped > plain
