"""`make coverage`: measures by simulation with known truth how often the statistics of the reports are right.

Writes four tables to reports/statistics: `coverage.csv` and `families.csv`, from which the reports quote;
`candidates.csv`, which compares the method with those that were not chosen; `equal_drift.csv`, the comparisons at equal
drift. The random numbers are fixed: equal code gives equal files, however many processes share the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from simulation import equal_drift, families, intervals

from reports.statistics.coverage import FAMILIES, REPLICATES, RESULTS


def write(path: Path, rows: Iterable[Any]) -> None:
    """Write a CSV with the fields of the rows."""
    pd.DataFrame(list(rows)).to_csv(path, index=False, lineterminator="\n")
    print(path)


def main(arguments: list[str] | None = None) -> None:
    """Simulate every design and write the tables; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="make coverage", description=__doc__)
    parser.add_argument("--replicates", type=int, default=REPLICATES, help=f"tables per design (default {REPLICATES})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="designs at once (default: all cores)")
    parser.add_argument("--out", type=Path, default=RESULTS.parent, help="folder to write the tables to")
    given = parser.parse_args(arguments)
    cells: dict[str, list[Any]] = {name: [] for name in intervals.METHODS}
    todo = intervals.designs()
    with ProcessPoolExecutor(given.jobs) as pool:
        for number, found in enumerate(pool.map(partial(intervals.simulate, replicates=given.replicates), todo), 1):
            for name, cell in found.items():
                cells[name].append(cell)
            print(f"\r{number} of {len(todo)} designs", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        judged = pool.map(partial(families.simulate, replicates=given.replicates), families.designs())
        write(given.out / FAMILIES.name, chain.from_iterable(judged))
        compared = pool.map(partial(equal_drift.simulate, replicates=given.replicates), equal_drift.designs())
        write(given.out / "equal_drift.csv", compared)
    write(given.out / RESULTS.name, cells["chosen"])
    write(given.out / "candidates.csv", intervals.candidates(cells))


if __name__ == "__main__":
    main()
