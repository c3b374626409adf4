"""What the four networks of RLHF take of a card's memory, by the assumptions that tables of it make.

Weights, gradients and the state of the optimiser alone. Activations, the cache of sampling and the logits come on top;
`pipeline.forecast.memory` knows them for a trial of this pipeline.
"""

from __future__ import annotations

import re

from pipeline.config.loading import load_config
from pipeline.errors import UserError
from pipeline.forecast.memory import FROZEN_BYTES
from pipeline.forecast.shapes import shape_of

NETWORKS = ("policy", "reference", "critic", "reward")
SIZE = re.compile(r"(\d+(?:\.\d+)?)([MB])", re.IGNORECASE)
ADAM, HALF = 16.0, 2.0
"""Bytes of a trained weight: 2 in half precision, 2 of its gradient, 4 of its fp32 master, 8 of Adam's moments
(Rajbhandari 2020, arXiv 1910.02054, section 3.1). fp32 throughout takes as much: 4, 4 and 8."""
ADAPTER_SHARE = 0.01
"""Parameters of an adapter, as a share of its network's."""
HALF_LORA, EIGHT_LORA, FOUR_LORA = (FROZEN_BYTES[how] + ADAPTER_SHARE * ADAM for how in ("fp16", "8bit", "4bit"))
BYTES: dict[str, tuple[float, float, float, float]] = {
    "4 bytes a trained parameter, 2 a frozen one": (4.0, HALF, 4.0, HALF),
    "Adam with fp32 masters, the others in half precision": (ADAM, HALF, ADAM, HALF),
    "Adam, fp32 throughout (this pipeline)": (ADAM, 4.0, ADAM, 4.0),
    "the second row without a critic (RLOO, GRPO)": (ADAM, HALF, 0.0, HALF),
    "LoRA on policy and critic, in half precision": (
        HALF + ADAPTER_SHARE * ADAM,
        0.0,
        HALF + ADAPTER_SHARE * ADAM,
        HALF,
    ),
    "LoRA on a policy in 4 bits and a critic in 8": (FOUR_LORA, 0.0, EIGHT_LORA, HALF),
    "the same without a critic": (FOUR_LORA, 0.0, 0.0, HALF),
}
"""Bytes of each parameter of `NETWORKS`, by ways to hold them: as tables have it (half precision for the weight and for
its gradient, without an optimiser), as training with Adam needs it, and with what is known to save memory. With an
adapter the reference is the policy without it, so it takes nothing of its own."""


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
        raise UserError(
            f"--memory '{model}' is neither a size such as 7B or 350M nor a model whose sizes can be had (a folder"
            " needs a config.json of a causal language model)"
        )
    return float(shape.parameters)
