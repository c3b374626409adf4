"""The table of `ablate plan --memory`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.forecast.four_models import NETWORKS, Assumptions, parameters_of, recipes


def print_memory(console: Console, model: str, given: Assumptions) -> None:
    """Print what the four networks take, one row for each way to hold them. Raises `UserError`."""
    parameters = parameters_of(model)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"GiB, {parameters / 1e9:.3g} B parameters each")
    for title in (*NETWORKS, "together"):
        table.add_column(title, justify="right")
    for recipe in recipes(given):
        table.add_row(Text(recipe.title), *(_shown(size) for size in recipe.gib(parameters)))
    console.print(table)
    console.print(
        Text(
            "Weights, gradients and the optimiser's state alone: activations, the cache of sampling and logits come on"
            f" top. Adapters: {100 * given.adapter_share:g} % of a network's parameters. With one, the reference is the"
            " policy without it. What a trial of this pipeline takes in all: ablate plan STUDY."
        ),
        soft_wrap=True,
    )


def _shown(size: float) -> str:
    return f"{size:.3g}" if size else "-"
