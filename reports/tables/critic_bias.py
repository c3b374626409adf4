"""The table of what critics' values are worth."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from reports.findings.critic_bias import PlaceBias
from reports.tables.cells import columns, sample, shown, shown_difference, size
from reports.tables.table import Head, Table, TableCell


def critic_bias_table(rows: Sequence[PlaceBias]) -> Table:
    """Every diagnosed arm: all states together, then by the number of tokens before the state."""
    heads = (
        Head("arm", numeric=False), Head("place", "tokens before the state"), Head("bias", "std of reference samples"),
        Head("squared error", "squared score units"), Head("spread", "squared score units"), Head("explained"),
        Head("n", "seeds × prompts"), Head("states"),
    )  # fmt: skip
    cells, data = [], []
    for row in rows:
        place = "all" if row.place is None else str(row.place)
        explained = row.explained
        cells.append(
            (
                TableCell(row.arm),
                TableCell(place),
                shown_difference(row.bias),
                shown(row.error),
                shown(row.spread),
                TableCell("–" if explained is None else f"{100 * explained:.0f} %"),
                TableCell(size(row.bias)),
                TableCell(f"{row.states:,}"),
            )
        )
        numbers = columns("bias", row.bias) | columns("squared_error", row.error) | columns("spread", row.spread)
        data.append({"arm": row.arm, "place": place, **numbers, "explained": explained, **sample(row.bias)})
    note = (
        "At the end of training, on held-out prompts: the critic's value of a state less what the state is worth, which"
        " is the mean of the rewards to go of continuations sampled from it, KL penalty included. Bias: mean of that"
        " difference. Squared error: mean of its square, less the noise of the continuations' mean. Spread: variance of"
        " the worth between states, less the same noise. Explained: 1 − squared error / spread; an offset counts as"
        " error, so it can be negative. Made by `ablate critic-bias`."
    )
    return Table("critic_bias", "What the critic's values are worth", note, heads, tuple(cells), pd.DataFrame(data))
