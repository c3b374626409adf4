"""The four networks of RLHF in a card's memory, by the assumptions of common tables.

Weights, gradients and the state of the optimiser alone. Activations, the cache of sampling and the logits come on top;
`pipeline.forecast.memory` counts them for a trial of this pipeline.
"""

from __future__ import annotations

import re

from pipeline.errors import UserError
from pipeline.forecast.memory import FROZEN_BYTES

NETWORKS = ("policy", "reference", "critic", "reward")
SIZE = re.compile(r"(\d+(?:\.\d+)?)([MB])", re.IGNORECASE)
ADAM, HALF = 16.0, 2.0
"""Bytes of a trained weight: 2 in half precision, 2 of its gradient, 4 of its fp32 master, 8 of Adam's moments
(Rajbhandari 2020, arXiv 1910.02054, section 3.1). fp32 throughout takes as much: 4, 4 and 8."""
ADAPTER_SHARE = 0.01
"""Parameters of an adapter, as a share of its network's."""
HALF_LORA, EIGHT_LORA, FOUR_LORA = (
    held + ADAPTER_SHARE * ADAM for held in (HALF, FROZEN_BYTES["8bit"], FROZEN_BYTES["4bit"])
)
BYTES: dict[str, tuple[float, float, float, float]] = {
    "4 bytes a trained parameter, 2 a frozen one": (4.0, HALF, 4.0, HALF),
    "Adam with fp32 masters, the others in half precision": (ADAM, HALF, ADAM, HALF),
    "Adam, fp32 throughout (this pipeline)": (ADAM, 4.0, ADAM, 4.0),
    "the second row without a critic (RLOO, GRPO)": (ADAM, HALF, 0.0, HALF),
    "LoRA on policy and critic, in half precision": (HALF_LORA, 0.0, HALF_LORA, HALF),
    "LoRA on a policy in 4 bits and a critic in 8": (FOUR_LORA, 0.0, EIGHT_LORA, HALF),
    "the same without a critic": (FOUR_LORA, 0.0, 0.0, HALF),
}
"""Bytes of each parameter of `NETWORKS`. With an adapter the reference is the policy without it."""


def parameters_of(size: str) -> float:
    """The number of parameters of a size. Raises `UserError` for any other text.

    >>> parameters_of("0.5b")
    500000000.0
    """
    found = SIZE.fullmatch(size)
    if found is None or not float(found[1]):
        raise UserError(f"--memory '{size}' is no size such as 7B or 350M")
    return float(found[1]) * {"M": 1e6, "B": 1e9}[found[2].upper()]
