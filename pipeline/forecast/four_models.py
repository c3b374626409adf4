"""What the four networks of RLHF take of a card's memory, by the assumptions that tables of it make.

Weights, gradients and the state of the optimiser alone. Activations, the cache of sampling and the logits come on top;
`pipeline.forecast.memory` knows them for a trial of this pipeline.
"""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.forecast.memory import FROZEN_BYTES
from pipeline.forecast.shapes import shape_of
from pipeline.resources.machine import GIB

NETWORKS = ("policy", "reference", "critic", "reward")
SIZE = re.compile(r"(\d+(?:\.\d+)?)([MB])", re.IGNORECASE)
ADAM = 16.0
"""Bytes of a trained weight: 2 in half precision, 2 of its gradient, 4 of its fp32 master, 8 of Adam's moments
(Rajbhandari 2020, arXiv 1910.02054, section 3.1). fp32 throughout takes as much: 4, 4 and 8."""


def four_models(
    parameters: float, trained: float = 4.0, frozen: float = 2.0, adapter_share: float = 0.01
) -> dict[str, tuple[float, ...]]:
    """GiB of `NETWORKS` of so many parameters each, and of all together, by ways to hold them: as tables have it, as
    training with Adam needs it, and with what is known to save memory.

    trained, frozen: bytes of a parameter in the first row. 4 is half precision for the weight and for its gradient,
    without an optimiser. adapter_share: parameters of an adapter, as a share of its network's. With an adapter the
    reference is the policy without it, so it takes nothing of its own.

    >>> [round(size, 1) for size in four_models(7e9)["4 bytes a trained parameter, 2 a frozen one"]]
    [26.1, 13.0, 26.1, 13.0, 78.2]
    """
    half, adapter = 2.0, adapter_share * ADAM
    few, eight = FROZEN_BYTES["4bit"] + adapter, FROZEN_BYTES["8bit"] + adapter
    bytes_of_each = {
        f"{trained:g} bytes a trained parameter, {frozen:g} a frozen one": (trained, frozen, trained, frozen),
        "Adam with fp32 masters, the others in half precision": (ADAM, half, ADAM, half),
        "Adam, fp32 throughout (this pipeline)": (ADAM, 4.0, ADAM, 4.0),
        "the second row without a critic (RLOO, GRPO)": (ADAM, half, 0.0, half),
        "LoRA on policy and critic, in half precision": (half + adapter, 0.0, half + adapter, half),
        "LoRA on a policy in 4 bits and a critic in 8": (few, 0.0, eight, half),
        "the same without a critic": (few, 0.0, 0.0, half),
    }
    return {
        title: tuple(parameters * width / GIB for width in (*each, sum(each))) for title, each in bytes_of_each.items()
    }


def parameters_of(model: str) -> float:
    """A size such as ``7B`` or ``350M``, or the number of parameters of a model: a folder, or an id of the hub.

    Raises `UserError` for anything else.

    >>> parameters_of("0.5b")
    500000000.0
    """
    if (found := SIZE.fullmatch(model)) and float(found[1]) > 0:
        return float(found[1]) * {"M": 1e6, "B": 1e9}[found[2].upper()]
    shape = shape_of(load_config("t4", {"model.base": model, "model.revision": None})) if model else None
    if shape is None:
        folder = " (a folder needs a config.json of a causal language model)" if Path(model).is_dir() else ""
        raise UserError(
            f"--memory '{model}' is neither a size such as 7B or 350M nor a model whose sizes can be had{folder}"
        )
    return float(shape.parameters)
