"""Activations that are computed twice instead of kept (gradient checkpointing), block by block.

transformers ties its own to the training mode, in which some architectures draw random numbers in ways that no list of
theirs covers: functional dropout, dropped layers, noise on a router. Here networks are in evaluation mode throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from pipeline.models.anatomy import CausalLM, blocks_of


@contextmanager
def recomputing(networks: Sequence[CausalLM], chosen: bool) -> Iterator[None]:
    """Forwards of these networks within the block keep no activations where `chosen`; they must not fill a cache of
    keys."""
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
    """Whether a block will compute its activations a second time for the backward."""
    return getattr(vars(block).get("forward"), "func", None) is checkpoint
