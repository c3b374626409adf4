"""The parts of a causal language model, which `transformers` names differently from one architecture to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from torch import nn
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
