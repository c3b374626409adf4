"""Optimisations for a CPU alone, in one place; a run on a card enters none of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

BUCKET = 16
"""Episodes that go through a network together where no gradient is needed: so few that they stay in a core's cache."""
LOGITS = 2**18
"""Logits that a token is drawn from at once: what the cache of a core holds."""
SHORT = 128
"""Rows up to this many tokens have the attention for short ones."""


def bucket(device: torch.device, rows: int) -> int:
    """Return how many of these rows go through a network together where no gradient is needed: on a card, all."""
    return min(rows, BUCKET) if device.type == "cpu" else rows


def ask_no_card(optimiser: Optimizer) -> None:
    """Keep an optimiser of weights on the CPU from asking a card whether it captures a graph: that alone would open a
    CUDA context."""
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):  # torch 2.13, and 2.11
        if hasattr(optimiser, name):
            setattr(optimiser, name, lambda: None)


def is_short(query: Tensor, key: Tensor) -> bool:
    """Return whether `short_attention` can, and should, take a query and a key of shape (B, h, L, d) each."""
    return query.shape == key.shape and query.shape[2] <= SHORT and not torch.is_autocast_enabled("cpu")


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        width = query.shape[2]
        q, k, v = (tensor.flatten(0, 1) for tensor in (query, key, value))
        future = query.new_full((width, width), -torch.inf).triu(1)
        p = torch.softmax(torch.baddbmm(future, q, k.transpose(1, 2), alpha=scale), dim=-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.save_for_forward(q, k, v, p)
        ctx.scale, ctx.shape = scale, query.shape
        return torch.bmm(p, v).view(query.shape).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        q, k, v, p = ctx.saved_tensors
        out = gradients[0].transpose(1, 2).flatten(0, 1)
        scores = torch._softmax_backward_data(torch.bmm(out, v.transpose(1, 2)), p, -1, p.dtype)
        by_q, by_k = torch.bmm(scores, k).mul_(ctx.scale), torch.bmm(scores.transpose(1, 2), q).mul_(ctx.scale)
        return by_q.view(ctx.shape), by_k.view(ctx.shape), torch.bmm(p.transpose(1, 2), out).view(ctx.shape), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        q, k, v, p = ctx.saved_tensors
        by_q, by_k, by_v = (tensor.flatten(0, 1) for tensor in tangents[:3])
        scores = (torch.bmm(by_q, k.transpose(1, 2)) + torch.bmm(q, by_k.transpose(1, 2))).mul_(ctx.scale)
        weights = p * (scores - (p * scores).sum(-1, keepdim=True))
        out = torch.bmm(weights, v) + torch.bmm(p, by_v)
        return out.view(ctx.shape).transpose(1, 2).contiguous()


def short_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention (B, h, L, d) to (B, L, h, d) by plain matrix products.

    For short rows, where torch's fused kernel, made for long ones, takes 1.3 to 1.5 times as long.
    """
    attended: Tensor = _ShortAttention.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
    return attended
