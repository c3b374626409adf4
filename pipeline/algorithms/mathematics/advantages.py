"""Returns and generalised advantage estimation on responses of different lengths."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns, in score units.

        δₜ = rₜ + γ Vₜ₊₁ - Vₜ,   Aₜ = δₜ + γ λ Aₜ₊₁,   Rₜ = Aₜ + Vₜ

    rewards, values (B, T) in score units and one dtype, which the results keep; mask (B, T) True on valid tokens, a
    prefix of each row; γ and λ in [0, 1]. V after the last valid token is 0: the episode has ended, and whatever stands
    on invalid tokens is never read. Returns advantages and returns, both (B, T) and 0 on invalid tokens; λ = 1 makes
    the returns Monte Carlo, λ = 0 the advantages TD errors. Schulman 2016 (arXiv 1506.02438), eq. 16.
    """
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    rewards, values = torch.where(mask, rewards, zero), torch.where(mask, values, zero)
    following = torch.cat([values[:, 1:], values.new_zeros(values.shape[0], 1)], dim=1)
    delta = rewards + gamma * following - values
    advantages = torch.zeros_like(values)
    carry = values.new_zeros(values.shape[0])
    for t in reversed(range(values.shape[1])):
        # Rows that have ended carry 0, so the first valid token from the right starts afresh.
        carry = torch.where(mask[:, t], delta[:, t] + gamma * lam * carry, zero)
        advantages[:, t] = carry
    return advantages, torch.where(mask, advantages + values, zero)


def to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Rewards from each token to the end of its response, Σₛ γˢ⁻ᵗ rₛ over s ≥ t.

    rewards (B, T) in score units; mask (B, T) True on valid tokens, a prefix of each row; returns (B, T), 0 on invalid
    tokens.
    """
    zero = torch.zeros_like(rewards)
    return gae(rewards, zero, mask, gamma, 1.0)[0]


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(R - V) / Var(R) over valid tokens.

    values, returns (B, T) in score units; mask (B, T) True on valid tokens. A fraction of at most 1, 0 for a critic
    that gives the mean; an offset of the critic does not count. NaN where the returns do not vary.
    """
    r, v = returns[mask], values[mask]
    spread = r.var(correction=0)
    return float(1 - (r - v).var(correction=0) / spread) if spread > 0 else float("nan")
