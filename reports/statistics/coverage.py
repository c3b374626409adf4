"""Shares of right intervals and verdicts in simulation: the tables that `make coverage` wrote, read back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

COMMAND = "make coverage"
RESULTS = Path(__file__).with_name("coverage.csv")
FAMILIES = Path(__file__).with_name("families.csv")
REPLICATES = 1_000
SEEDS = (1, 2, 3, 5, 10)
ARMS = 4
RARE = "one in five drops"


@dataclass(frozen=True)
class Range:
    """Lowest and highest coverage of 95 % intervals over designs, and the largest family-wise error."""

    seeds: int
    lowest: float
    highest: float
    rare: float
    """The lowest coverage where one seed in five drops, a case that the others leave out."""
    error: float


@lru_cache(maxsize=1)
def published() -> pd.DataFrame:
    """Return the committed table of the intervals: of each design (kind, spread, seeds, prompts) the shares of
    replicates whose interval covers, mean widths in the unit of the quantity, and the share in which any of four arms
    without an effect was called better or worse."""
    return pd.read_csv(RESULTS)


def coverage_with(seeds: int) -> Range:
    """Return the range of the simulated number of seeds that is the largest not above `seeds`."""
    nearest = max(number for number in SEEDS if number <= max(seeds, 1))
    own = published()[published()["seeds"] == nearest]
    usual = own[own["spread"] != RARE][["mean_coverage", "difference_coverage"]].to_numpy()
    rare = own.loc[own["spread"] == RARE, "mean_coverage"].min()
    return Range(nearest, float(usual.min()), float(usual.max()), float(rare), float(own["family_wise_error"].max()))


def largest() -> dict[str, tuple[float, float]]:
    """Map each family of arms or hypotheses to the largest share of replicates with any false verdict, over all
    designs: by each test alone, and corrected."""
    found = pd.read_csv(FAMILIES).groupby("family")[["uncorrected", "corrected"]].max()
    return {str(family): (float(alone), float(corrected)) for family, alone, corrected in found.itertuples()}
