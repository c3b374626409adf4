"""What a critic's values are worth: their distance from replayed states, by place in the response."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.two_level import Array, Estimate

SETTINGS = ("prompts", "continuations", "every")
"""Seeds are put together only where they were diagnosed alike."""
LEAST_STATES = 20
"""Of every seed, at a place that is shown: late in a response few episodes are left."""


@dataclass(frozen=True)
class PlaceBias:
    """The critics of one arm at states after so many tokens."""

    arm: str
    place: int | None
    """Tokens of the response before the state; None: all states together."""
    bias: Estimate
    """Mean of value - worth, in standard deviations of reference samples."""
    error: Estimate
    """Mean of (value - worth)² less the noise of worth; squared score units."""
    spread: Estimate
    """Variance of worth between states, less its noise; squared score units."""
    states: int

    @property
    def explained(self) -> float | None:
        """Share of the variance of the states' worth that the values account for, an offset not forgiven. Cut off at 1,
        which noise can exceed."""
        return min(1.0, 1 - self.error.value / self.spread.value) if self.spread.value > 0 else None


def critic_biases(records: StudyRecords) -> tuple[PlaceBias, ...]:
    """Of every diagnosed arm: all states, then place by place; empty where nothing was diagnosed, or for other
    trainings than those recorded."""
    found = []
    for arm in records.arms:
        tables = [table for seed in records.numbers if (table := _table(records, arm, seed)) is not None]
        if tables and len({tuple(table[list(SETTINGS)].iloc[0]) for table in tables}) == 1:
            places = sorted({int(place) for table in tables for place in table["place"].unique()})
            found += [row for place in (None, *places) if (row := _at(arm, place, tables)) is not None]
    return tuple(found)


def _table(records: StudyRecords, arm: str, seed: int) -> pd.DataFrame | None:
    record, path = records.records.get((arm, seed)), records.folder.critic_bias_file(arm, seed)
    if record is None or "train" not in record.stages or not path.is_file():
        return None
    table = pd.read_parquet(path)
    return table if len(table) and (table["train"] == record.stages["train"].key).all() else None


def _at(arm: str, place: int | None, tables: list[pd.DataFrame]) -> PlaceBias | None:
    """Means over states, weighed alike, of every seed; None where a seed has too few there."""
    chosen = [table if place is None else table[table["place"] == place] for table in tables]
    if any(len(table) < LEAST_STATES for table in chosen):
        return None
    prompts = sorted({int(prompt) for table in tables for prompt in table["prompt_id"].unique()})

    def grid(values: list[pd.Series]) -> Array:
        """(S, P) sums over the states of each prompt."""
        sums = [
            series.groupby(table["prompt_id"]).sum().reindex(prompts, fill_value=0.0)
            for series, table in zip(values, chosen, strict=True)
        ]
        return np.stack([one.to_numpy(dtype=np.float64) for one in sums])

    counts = grid([pd.Series(1.0, index=table.index) for table in chosen])
    distance = [table["value"] - table["worth"] for table in chosen]
    error = [gap**2 - table["noise"] for gap, table in zip(distance, chosen, strict=True)]
    spread = [(table["worth"] - table["worth"].mean()) ** 2 - table["noise"] for table in chosen]
    bias, missed, varied = (two_level.mean(grid(values), counts) for values in (distance, error, spread))
    return PlaceBias(arm, place, bias, missed, varied, int(counts.sum()))
