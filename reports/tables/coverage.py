"""The table of how often intervals and verdicts were right in simulation."""

from __future__ import annotations

from dataclasses import asdict

from reports.statistics.coverage import ARMS, COMMAND, RARE, SEEDS, Coverage, published
from reports.tables.table import Head, Table, declared, words
from reports.text.words import percent

SPREADS = {
    "equal": "do not differ",
    "sd 0.05": "differ by 0.05 sd",
    "sd 0.2": "differ by 0.2 sd",
    "sd 1": "differ by 1 sd",
    "heavy tails": "differ by 0.2 sd, heavy tails",
    RARE: "one in five drops by 0.5 sd",
}


def coverage_table() -> Table:
    """Show coverage by number of seeds and by how seeds differ, lowest to highest over kinds and numbers of prompts."""
    cells = {seeds: [cell for cell in published() if cell.seeds == seeds] for seeds in SEEDS}
    note = (
        f"Simulation with known truth ({COMMAND}; {published()[0].replicates:,} tables for each kind of quantity and"
        " number of prompts): share of the 95 % intervals that hold the truth, of means and of paired differences,"
        " lowest to highest over win rates near 0.5 and 0.95, scores and ratios, 128 and 512 prompts. sd: standard"
        f" deviation over prompts. False findings: how often any of {ARMS} arms that do not differ from the baseline"
        " was called better or worse, in the worst design. In the CSV: every design, with mean widths."
    )
    shape = (
        (words("seeds"), lambda seeds: str(seeds)),
        *[
            (Head(text, "coverage in %"), lambda seeds, spread=spread: _span(cells[seeds], spread))
            for spread, text in SPREADS.items()
        ],
        (
            Head("false findings", "% at most"),
            lambda seeds: f"{100 * max(cell.family_wise_error for cell in cells[seeds]):.1f}",
        ),
    )
    title = "How often intervals are right, by how seeds differ"
    return declared("coverage", title, note, SEEDS, shape, map(asdict, published()))


def _span(cells: list[Coverage], spread: str) -> str:
    own = [cell for cell in cells if cell.spread == spread]
    shares = [share for cell in own for share in (cell.mean_coverage, cell.difference_coverage)]
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"
