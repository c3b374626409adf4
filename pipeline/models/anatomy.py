"""The parts of a causal language model that `transformers` names differently from one architecture to the next."""

from __future__ import annotations

from typing import Any

from torch import nn

from pipeline.models.loading import CausalLM


def trunk(model: CausalLM) -> Any:
    """The network below the language-modelling head; of a network without a head, itself."""
    return getattr(model, model.base_model_prefix, model)


def blocks_of(network: CausalLM) -> list[nn.Module]:
    """The blocks of a trunk; of an unknown build, the trunk as a whole."""
    count = getattr(network.config, "num_hidden_layers", 0)
    body = trunk(getattr(network, "adapted", network))
    # Nearly always a child of the trunk, where it is found at once.
    for modules in (body.children(), body.modules()):
        for module in modules:
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return list(module)
    return [body]
