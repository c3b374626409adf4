"""The table of how often intervals and verdicts were right in simulation."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd

from reports.statistics.coverage import ARMS, COMMAND, RARE, SEEDS, SPREADS, Coverage, published
from reports.tables.table import Head, Table, TableCell
from reports.text.words import percent

WORDS = {
    "equal": "do not differ",
    "sd 0.05": "differ by 0.05 sd",
    "sd 0.2": "differ by 0.2 sd",
    "sd 1": "differ by 1 sd",
    "heavy tails": "differ by 0.2 sd, heavy tails",
    RARE: "one in five drops by 0.5 sd",
}


def coverage_table() -> Table:
    """Coverage by number of seeds and by how seeds differ, lowest to highest over kinds and numbers of prompts."""
    heads = (
        Head("seeds", numeric=False),
        *[Head(WORDS[spread], "coverage in %") for spread in SPREADS],
        Head("false findings", "% at most"),
    )
    rows = []
    for seeds in SEEDS:
        own = [cell for cell in published() if cell.seeds == seeds]
        cells = [_span([cell for cell in own if cell.spread == spread]) for spread in SPREADS]
        error = f"{100 * max(cell.family_wise_error for cell in own):.1f}"
        rows.append((TableCell(str(seeds)), *cells, TableCell(error)))
    note = (
        f"Simulation with known truth ({COMMAND}; {published()[0].replicates:,} tables for each kind of quantity and"
        " number of prompts): share of the 95 % intervals that hold the truth, of means and of paired differences,"
        " lowest to highest over win rates near 0.5 and 0.95, scores and ratios, 128 and 512 prompts. sd: standard"
        f" deviation over prompts. False findings: how often any of {ARMS} arms that do not differ from the baseline"
        " was called better or worse, in the worst design. In the CSV: every design, with mean widths."
    )
    frame = pd.DataFrame([asdict(cell) for cell in published()])
    return Table("coverage", "How often intervals are right, by how seeds differ", note, heads, tuple(rows), frame)


def _span(cells: list[Coverage]) -> TableCell:
    shares = [share for cell in cells for share in (cell.mean_coverage, cell.difference_coverage)]
    low, high = percent(min(shares)), percent(max(shares))
    return TableCell(low if low == high else f"{low} to {high}")
