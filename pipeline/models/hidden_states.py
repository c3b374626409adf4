"""Hidden states of rows of tokens, at the places that somebody reads."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.models.anatomy import CausalLM, blocks_of, trunk
from pipeline.models.packing import ARCHITECTURES, PACKED, Packing, put, take
from pipeline.models.recompute import recomputes


def states(model: CausalLM, tokens: Tensor, lengths: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Hidden states (N, H) at (row, column), each (N,) and in reading order, of rows (B, L) that begin in column 0;
    lengths (B,).

    No mask is needed: the network is causal, so nothing before the end of a row sees what stands behind it.
    """
    if not packs(model, tokens.shape[1]):
        return padded_states(model, tokens)[row, column]
    return packed_states(model, tokens, Packing.of(lengths, tokens.shape[1], row, column))


def packed_states(model: CausalLM, tokens: Tensor, packing: Packing) -> Tensor:
    """The same for a packing that is known, of rows (B, L)."""
    if not packs(model, tokens.shape[1]):
        cells = packing.cells[packing.read]
        return padded_states(model, tokens)[cells // packing.width, cells % packing.width]
    ids, places = tokens.flatten()[packing.cells], packing.cells % packing.width
    # A mask of four dimensions is passed on as it is, and our attention does not look at it.
    unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens.device)
    with _last_block_works_on(packing.read, model):
        output = trunk(model)(
            input_ids=ids[None], position_ids=places[None], attention_mask=unused, use_cache=False, packing=packing
        )
    return take(output.last_hidden_state.squeeze(0), packing.read)


def padded_states(model: CausalLM, tokens: Tensor) -> Tensor:
    """Hidden states (B, L, H) of rows whose padding goes through the network as well."""
    output: Any = trunk(model)(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    hidden: Tensor = output.last_hidden_state
    return hidden


def packs(model: CausalLM, width: int) -> bool:
    """Whether rows of up to `width` tokens can be packed: an architecture that is known, and no window on what a token
    sees."""
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
        return take(places, read)

    def after(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return put(out, read, count).unsqueeze(0)

    hooks.enter_context(last.mlp.register_forward_pre_hook(before))
    hooks.enter_context(last.mlp.register_forward_hook(after))
    return hooks
