"""The table of `ablate plan --memory`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from pipeline.forecast.four_models import NETWORKS, four_models, parameters_of
from studies.console.summary import table


def print_memory(console: Console, model: str, given: Mapping[str, float]) -> None:
    """Print what the four networks take, one row for each way to hold them; `given` are arguments of `four_models`.

    Raises `UserError`.
    """
    parameters = parameters_of(model)
    shown = table(f"GiB, {parameters / 1e9:.3g} B parameters each", *NETWORKS, "together")
    for title, sizes in four_models(parameters, **given).items():
        shown.add_row(Text(title), *(f"{size:.3g}" if size else "-" for size in sizes))
    console.print(shown)
    console.print(
        Text(
            "Weights, gradients and the optimiser's state alone: activations, the cache of sampling and logits come on"
            f" top. Adapters: {100 * given.get('adapter_share', 0.01):g} % of a network's parameters. With one, the"
            " reference is the policy without it. What a trial of this pipeline takes in all: ablate plan STUDY."
        ),
        soft_wrap=True,
    )
