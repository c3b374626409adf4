"""What the four networks of RLHF take of a card's memory, by the assumptions that tables of it make: arithmetic on a
number of parameters.

Weights, gradients and the state of the optimiser alone. Activations, the cache of sampling and the logits come on top;
`pipeline.forecast.memory` knows them for a trial of this pipeline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.forecast.policy_shape import shape_of
from pipeline.forecast.subject import FROZEN_BYTES
from pipeline.resources.machine import GIB

NETWORKS = ("policy", "reference", "critic", "reward")
SIZE = re.compile(r"(\d+(?:\.\d+)?)([MB])", re.IGNORECASE)
UNITS = {"M": 1e6, "B": 1e9}
HALF, EIGHT_BITS, FOUR_BITS = 2.0, FROZEN_BYTES["8bit"], FROZEN_BYTES["4bit"]
"""Bytes of a weight that is not trained."""
ADAM = 16.0
"""Bytes of a trained weight: 2 in half precision, 2 of its gradient, 4 of its fp32 master, 8 of Adam's moments
(Rajbhandari 2020, arXiv 1910.02054, section 3.1). fp32 throughout takes as much: 4, 4 and 8."""


@dataclass(frozen=True)
class Assumptions:
    """Bytes of a parameter, and the share of its parameters that an adapter adds to a network."""

    trained: float = 4.0
    """Half precision for the weight and for its gradient, without an optimiser."""
    frozen: float = HALF
    adapter_share: float = 0.01


@dataclass(frozen=True)
class Recipe:
    """One way to hold the four networks; bytes of a parameter of each, in the order of `NETWORKS`."""

    title: str
    bytes_per_parameter: tuple[float, float, float, float]

    def gib(self, parameters: float) -> tuple[float, ...]:
        """GiB of networks of so many parameters each; the sum comes last."""
        each = [parameters * width / GIB for width in self.bytes_per_parameter]
        return (*each, sum(each))


def recipes(given: Assumptions) -> list[Recipe]:
    """The four networks as tables have them, as training with Adam needs them, and with what is known to save memory.

    With an adapter the reference is the policy without it, so it takes nothing of its own.

    >>> [round(size, 1) for size in recipes(Assumptions())[0].gib(7e9)]
    [26.1, 13.0, 26.1, 13.0, 78.2]
    """
    trained, frozen, own = given.trained, given.frozen, given.adapter_share * ADAM
    return [
        Recipe(f"{trained:g} bytes a trained parameter, {frozen:g} a frozen one", (trained, frozen, trained, frozen)),
        Recipe("Adam with fp32 masters, the others in half precision", (ADAM, HALF, ADAM, HALF)),
        Recipe("Adam, fp32 throughout (this pipeline)", (ADAM, 4.0, ADAM, 4.0)),
        Recipe("the second row without a critic (RLOO, GRPO)", (ADAM, HALF, 0.0, HALF)),
        Recipe("LoRA on policy and critic, in half precision", (HALF + own, 0.0, HALF + own, HALF)),
        Recipe("LoRA on a policy in 4 bits and a critic in 8", (FOUR_BITS + own, 0.0, EIGHT_BITS + own, HALF)),
        Recipe("the same without a critic", (FOUR_BITS + own, 0.0, 0.0, HALF)),
    ]


def parameters_of(model: str) -> float:
    """A size such as ``7B`` or ``350M``, or the number of parameters of a model: a folder, or an id of the hub.

    Raises `UserError` for anything else.

    >>> parameters_of("0.5b")
    500000000.0
    """
    if (found := SIZE.fullmatch(model)) and float(found[1]) > 0:
        return float(found[1]) * UNITS[found[2].upper()]
    shape = shape_of(load_config("t4", {"model.base": model, "model.revision": None})) if model else None
    if shape is None:
        folder = " (a folder needs a config.json of a causal language model)" if Path(model).is_dir() else ""
        raise UserError(
            f"--memory '{model}' is neither a size such as 7B or 350M nor a model whose sizes can be had{folder}"
        )
    return float(shape.parameters)
