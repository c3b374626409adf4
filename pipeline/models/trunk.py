"""The trunk of a causal language model: its parts, which `transformers` names differently from one architecture to the
next, recomputation, and rows of different lengths laid end to end, so that it does no work on padding.

Of packed rows only attention gets a grid. Shapes: B rows, L the longest, M tokens in all, N of them read, H width, h
heads of width d.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import UserError

CausalLM = Any
"""A transformers model with a language-modelling head; transformers carries no usable static types."""


def trunk(model: CausalLM) -> Any:
    """The network below the language-modelling head; of a network without a head, itself."""
    return getattr(model, model.base_model_prefix, model)


def blocks_of(network: CausalLM) -> list[nn.Module]:
    """The blocks of a trunk; of an unknown build, the trunk as a whole."""
    body = trunk(getattr(network, "adapted", network))
    count = getattr(network.config, "num_hidden_layers", 0)
    # Nearly always a child of the trunk, where it is found at once.
    for module in chain(body.children(), body.modules()):
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return [body]


@contextmanager
def recomputing(networks: Sequence[CausalLM], chosen: bool) -> Iterator[None]:
    """Forwards of these networks within the block compute activations twice where `chosen`, instead of keeping them
    (gradient checkpointing); they must not fill a cache of keys.

    transformers ties its own to the training mode, in which some architectures draw random numbers in ways that no list
    of theirs covers: functional dropout, dropped layers, noise on a router. Here networks are in evaluation mode
    throughout.
    """
    blocks: list[Any] = [block for network in networks for block in blocks_of(network)] if chosen else []
    before = [vars(block).get("forward") for block in blocks]  # none, but where a library has put a forward of its own
    for block in blocks:
        # Nothing is random, so no generator needs to be put back for the second time.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            del block.forward
            if own is not None:
                block.forward = own


def recomputes(block: Any) -> bool:
    """Return whether a block will compute its activations a second time for the backward."""
    return getattr(vars(block).get("forward"), "func", None) is checkpoint


def check_room(model: CausalLM, key: str, tokens: int, beside: int = 0) -> None:
    """Raise `UserError` when `tokens` (the value of `key`) and `beside` (tokens of the longest prompt) do not fit."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and tokens + beside > positions:
        prompt = f" with prompts of up to {beside} tokens" if beside else ""
        raise UserError(
            f"{key} = {tokens}:{prompt} this goes beyond the model's {positions} positions; at most"
            f" {max(positions - beside, 0)}"
        )


ARCHITECTURES = frozenset((
    "gemma", "gpt2", "gpt_neox", "granite", "llama", "mistral", "olmo2", "phi", "phi3", "qwen2", "qwen3", "smollm3",
    "starcoder2",
))  # fmt: skip
"""Those that hand a packing down to their attention, and whose last block adds `mlp`, a map of each position by itself,
at its end."""
PACKED = "packed sdpa"
"""Name of our attention among those of transformers."""


SHORT = 128
"""Rows up to this many tokens have the attention for short ones."""


@dataclass(frozen=True)
class Packing:
    """Places of the tokens of a grid (B, L) when its rows, of their own lengths, are laid end to end."""

    rows: int
    width: int
    cells: Tensor
    """(M,) the cell of each token, counted row by row; ascending."""
    read: Tensor
    """(N,) the tokens whose states are needed, counted among the M; ascending."""

    @classmethod
    def of(cls, lengths: Tensor, width: int, row: Tensor, column: Tensor) -> Packing:
        """Rows that begin in column 0, of lengths (B,); read are the cells (row, column), each (N,), row by row.

        >>> packing = Packing.of(torch.tensor([2, 3]), 3, torch.tensor([0, 1]), torch.tensor([1, 0]))
        >>> packing.cells.tolist(), packing.read.tolist()
        ([0, 1, 3, 4, 5], [1, 2])
        """
        mask = torch.arange(width, device=lengths.device) < lengths[:, None]
        before = lengths.cumsum(0) - lengths
        return cls(len(lengths), width, mask.flatten().nonzero().squeeze(1), before[row] + column)

    def grid(self, packed: Tensor) -> Tensor:
        """(1, h, M, d) as (B, h, L, d), with 0 on padding."""
        tokens = packed.transpose(1, 2).squeeze(0)
        cells = put(tokens, self.cells, self.rows * self.width)
        return cells.view(self.rows, self.width, *cells.shape[1:]).transpose(1, 2)

    def pack(self, grid: Tensor) -> Tensor:
        """(B, L, h, d) as (1, M, h, d)."""
        return grid.flatten(0, 1).index_select(0, self.cells).unsqueeze(0)


def put(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Rows (k, ...) at places (k,), each named once, of (count, ...); 0 elsewhere."""
    return rows.new_zeros(count, *rows.shape[1:]).index_copy(0, places, rows)


@cache
def packed_attention() -> str:
    """Register `attend` in transformers and return its name; with a mask instead of a packing it is torch's fused
    attention."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(PACKED, attend)
    AttentionMaskInterface.register(PACKED, sdpa_mask)
    return PACKED


class ShortAttention(torch.autograd.Function):
    """Causal attention (B, h, L, d) to (B, L, h, d) by plain matrix products: for short rows on a CPU, where torch's
    fused kernel, made for long ones, takes 1.3 to 1.5 times as long."""

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


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each row of a packing by itself: (1, h, M, d) to (1, M, h, d)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if packing is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return out, None
    query, key, value = (packing.grid(tensor) for tensor in (query, key, value))
    fits = query.shape == key.shape and packing.width <= SHORT
    if fits and query.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
        return packing.pack(ShortAttention.apply(query, key, value, scale)), None  # type: ignore[no-untyped-call]
    out, _ = sdpa_attention_forward(module, query, key, value, attention_mask=None, **{**kwargs, "is_causal": True})
    return packing.pack(out), None


def states(model: CausalLM, tokens: Tensor, lengths: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Hidden states (N, H) at (row, column), each (N,) and in reading order, of rows (B, L) that begin in column 0;
    lengths (B,).

    No mask is needed: the network is causal, so nothing before the end of a row depends on what stands behind it.
    """
    output: Any
    if not packs(model, tokens.shape[1]):
        # The padding goes through the network as well.
        output = trunk(model)(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
        padded: Tensor = output.last_hidden_state
        return padded[row, column]
    packing = Packing.of(lengths, tokens.shape[1], row, column)
    ids, places = tokens.flatten()[packing.cells], packing.cells % packing.width
    # A mask of four dimensions is passed on as it is, and our attention does not look at it.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens.device)
    with _last_block_works_on(packing.read, model):
        output = trunk(model)(
            input_ids=ids[None], position_ids=places[None], attention_mask=unused, use_cache=False, packing=packing
        )
    hidden: Tensor = output.last_hidden_state.squeeze(0)
    return hidden.index_select(0, packing.read)


def packs(model: CausalLM, width: int) -> bool:
    """Return whether rows of up to `width` tokens can be packed: a known architecture, and no shorter window."""
    config = model.config
    window = getattr(config, "sliding_window", None)
    return (
        config._attn_implementation == PACKED
        and config.model_type in ARCHITECTURES
        and (window is None or width <= window)
    )


def _last_block_works_on(read: Tensor, model: CausalLM) -> AbstractContextManager[Any]:
    """Nobody looks at the other places behind the last block, so its map of single positions leaves them out.

    Not where activations are computed a second time: that happens later.
    """
    hooks = ExitStack()
    last: Any = blocks_of(model)[-1]
    if recomputes(last):
        return hooks
    count = 0

    def before(_: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
        nonlocal count
        places = args[0].squeeze(0)
        count = len(places)
        return places.index_select(0, read)

    def after(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return put(out, read, count).unsqueeze(0)

    hooks.enter_context(last.mlp.register_forward_pre_hook(before))
    hooks.enter_context(last.mlp.register_forward_hook(after))
    return hooks
