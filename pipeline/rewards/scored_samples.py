"""Output of the stage `values`, and its reader: scored samples of the reference for every training prompt.

``samples.parquet`` has one row for each sample (prompt_id, draw, proxy, length, eos, tokens). A prompt is named by its
number in the prompts' artifact, never by its text, which may occur twice; its draws stand next to each other.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from numpy.typing import NDArray

from pipeline.run.store import Artifact

SAMPLES = "samples.parquet"
Grid = NDArray[Any]


def read_scores(values: Artifact) -> dict[str, Grid]:
    """proxy, length and eos of all samples, (n, N) each, for n training prompts."""
    names, draws = ("proxy", "length", "eos"), int(values.meta["samples"])
    table = pd.read_parquet(values.path / SAMPLES, columns=list(names))
    return {name: table[name].to_numpy().reshape(-1, draws) for name in names}
