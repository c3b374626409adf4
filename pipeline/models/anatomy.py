"""The parts of a causal language model that `transformers` names differently from one architecture to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

CausalLM = Any
"""A transformers model with a language-modelling head; transformers carries no usable static types."""


def trunk(model: CausalLM) -> Any:
    """The network below the language-modelling head; of a network without a head, itself."""
    return getattr(model, model.base_model_prefix, model)


def blocks_of(network: CausalLM) -> list[nn.Module]:
    """The blocks of a trunk; of an unknown build, the trunk as a whole."""
    body = trunk(getattr(network, "adapted", network))
    # Nearly always a child of the trunk, where it is found at once.
    for modules in (body.children(), body.modules()):
        if lists := block_lists(modules, network.config):
            return list(lists[0])
    return [body]


def block_lists(modules: Iterable[nn.Module], config: Any) -> list[nn.ModuleList]:
    """Those of some modules that can be the blocks of a network: lists of one module a layer."""
    count = getattr(config, "num_hidden_layers", 0)
    return [module for module in modules if isinstance(module, nn.ModuleList) and len(module) == count]
