"""Shares of right intervals and verdicts in simulation: the tables that `make coverage` wrote, read back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

COMMAND = "make coverage"
RESULTS = Path(__file__).with_name("coverage.csv")
FAMILIES = Path(__file__).with_name("families.csv")
REPLICATES = 1_000
SEEDS = (1, 2, 3, 5, 10)
ARMS = 4
RARE = "one in five drops"


@dataclass(frozen=True)
class Coverage:
    """The rates of a method on one design: shares of replicates, and mean widths in the unit of the quantity."""

    kind: str
    spread: str
    seeds: int
    prompts: int
    replicates: int
    mean_coverage: float
    mean_width: float
    difference_coverage: float
    difference_width: float
    family_wise_error: float
    """Share of replicates in which any of four arms without an effect was called better or worse."""


@dataclass(frozen=True)
class Family:
    """Shares of replicates with any false verdict in a family of arms or hypotheses."""

    family: str
    """Size, claims and truth."""
    kind: str
    spread: str
    seeds: int
    prompts: int
    replicates: int
    uncorrected: float
    """Share by the same tests, each as a family of its own."""
    corrected: float


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
def published() -> tuple[Coverage, ...]:
    """Return the committed table of the intervals."""
    return tuple(_read(RESULTS, Coverage))


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """Return the committed table of families."""
    return tuple(_read(FAMILIES, Family))


def coverage_with(seeds: int) -> Range:
    """Return the range of the simulated number of seeds that is the largest not above `seeds`."""
    nearest = max(number for number in SEEDS if number <= max(seeds, 1))
    own = [cell for cell in published() if cell.seeds == nearest]
    usual = [share for c in own if c.spread != RARE for share in (c.mean_coverage, c.difference_coverage)]
    rare = min(c.mean_coverage for c in own if c.spread == RARE)
    return Range(nearest, min(usual), max(usual), rare, max(c.family_wise_error for c in own))


def largest() -> dict[str, tuple[float, float]]:
    """Map each family to the largest share of any design, uncorrected and corrected."""
    found: dict[str, tuple[float, float]] = {}
    for row in families():
        before, after = found.get(row.family, (0.0, 0.0))
        found[row.family] = max(before, row.uncorrected), max(after, row.corrected)
    return found


def _read(path: Path, row: type[Any]) -> list[Any]:
    return [row(**{str(key): value for key, value in one.items()}) for one in pd.read_csv(path).to_dict("records")]
