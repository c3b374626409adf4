"""What the stage `values` leaves, and how it is read: scored samples of the reference for every training prompt.

``samples.parquet`` has one row for each sample (prompt_id, draw, proxy, length, eos, tokens). A prompt is named by its
number in the prompts' artifact, never by its text, which may occur twice; its draws stand next to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.errors import Fault
from pipeline.run.store import Artifact

SAMPLES = "samples.parquet"
Grid = NDArray[Any]


def sample_table(proxy: Grid, lengths: Grid, ended: Grid, tokens: list[list[Grid]]) -> pd.DataFrame:
    """Rows from grids (n, N), and the tokens of each draw of each prompt."""
    n, draws = proxy.shape
    return pd.DataFrame(
        {
            "prompt_id": np.repeat(np.arange(n), draws),
            "draw": np.tile(np.arange(draws), n),
            "proxy": proxy.ravel(),
            "length": lengths.ravel(),
            "eos": ended.ravel(),
            "tokens": [drawn[prompt] for prompt in range(n) for drawn in tokens],
        }
    )


def read_scores(values: Artifact, prompts: Artifact, n: int) -> dict[str, Grid]:
    """proxy, length and eos of all samples, (n, N) each, for the `n` training prompts of this artifact.

    Raises `Fault` for samples of other prompts.
    """
    if values.meta["prompts_digest"] != prompts.digest:
        raise Fault(f"{values.path}: its samples are of other prompts than those of {prompts.path}")
    columns = ["prompt_id", "draw", "proxy", "length", "eos"]
    table, draws = pd.read_parquet(values.path / SAMPLES, columns=columns), int(values.meta["samples"])
    numbers = [np.repeat(np.arange(n), draws), np.tile(np.arange(draws), n)]
    if not all(np.array_equal(table[name], wanted) for name, wanted in zip(columns[:2], numbers, strict=True)):
        raise Fault(f"{values.path / SAMPLES}: it does not hold {draws} samples of each of {n} prompts, in their order")
    return {name: table[name].to_numpy().reshape(n, draws) for name in columns[2:]}
