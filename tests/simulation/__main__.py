"""`make coverage`: measures by simulation with known truth how often the statistics of the reports are right.

Writes three tables to reports/statistics: `coverage.csv` and `families.csv`, from which the reports quote, and
`equal_drift.csv`, the comparisons at equal drift. The random numbers are fixed: equal code gives equal files, however
many processes share the work.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from simulation import equal_drift, families, intervals

from reports.statistics.coverage import FAMILIES, REPLICATES, RESULTS


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make coverage", description=__doc__)
    parser.add_argument("--replicates", type=int, default=REPLICATES, help=f"tables per design (default {REPLICATES})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="designs at once (default: all cores)")
    parser.add_argument("--out", type=Path, default=RESULTS.parent, help="folder to write the tables to")
    given = parser.parse_args(arguments)
    with ProcessPoolExecutor(given.jobs) as pool:

        def simulated(family: Any) -> Iterable[Any]:
            return pool.map(partial(family.simulate, replicates=given.replicates), family.designs())

        tables = {RESULTS.name: simulated(intervals), FAMILIES.name: chain.from_iterable(simulated(families))}
        for name, rows in {**tables, "equal_drift.csv": simulated(equal_drift)}.items():
            pd.DataFrame(list(rows)).to_csv(given.out / name, index=False, lineterminator="\n")
            print(given.out / name)


if __name__ == "__main__":
    main()
