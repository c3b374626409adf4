"""The table of `ablate plan --memory`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pipeline.forecast.four_models import NETWORKS, Assumptions, parameters_of, recipes
from studies.console.summary import table


def print_memory(console: Console, model: str, given: Assumptions) -> None:
    """Print what the four networks take, one row for each way to hold them. Raises `UserError`."""
    parameters = parameters_of(model)
    shown = table(f"GiB, {parameters / 1e9:.3g} B parameters each", *NETWORKS, "together")
    for recipe in recipes(given):
        shown.add_row(Text(recipe.title), *(f"{size:.3g}" if size else "-" for size in recipe.gib(parameters)))
    console.print(shown)
    console.print(
        Text(
            "Weights, gradients and the optimiser's state alone: activations, the cache of sampling and logits come on"
            f" top. Adapters: {100 * given.adapter_share:g} % of a network's parameters. With one, the reference is the"
            " policy without it. What a trial of this pipeline takes in all: ablate plan STUDY."
        ),
        soft_wrap=True,
    )
