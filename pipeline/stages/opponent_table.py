"""What the reward stage keeps of a reward's opponents, and how it is read.

``opponents.parquet`` has a row for each answer (prompt, draw, completion, and ``numbers/<part>``: of each part of the
reward the score or the embedding, a list), so that a trial neither samples nor scores them again. They are found by the
text of the prompt, never by its row, and a text that occurs twice among the prompts has one set of opponents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.rewards.against import Table
from pipeline.rewards.base import Completions

OPPONENTS = "opponents.parquet"


def save_opponents(folder: Path, drawn: list[Completions], numbers: Mapping[str, Tensor]) -> None:
    """Write ``opponents.parquet``; the opponents of one prompt stand next to each other."""
    prompts, k = drawn[0].prompts, len(drawn)
    columns = {
        "prompt": [prompt for prompt in prompts for _ in range(k)],
        "draw": list(range(k)) * len(prompts),
        "completion": [one.texts[row] for row in range(len(prompts)) for one in drawn],
    }
    lists = {f"numbers/{name}": list(grid.flatten(0, 1).flatten(1).numpy()) for name, grid in _listed(numbers).items()}
    pd.DataFrame(columns | lists).to_parquet(folder / OPPONENTS, index=False)


def tables(prompts: Sequence[str], numbers: Mapping[str, Tensor]) -> dict[str, Table]:
    """Of each part the opponents' numbers by prompt."""
    return {name: dict(zip(prompts, grid, strict=True)) for name, grid in numbers.items()}


def read_opponents(folder: Path) -> dict[str, Table]:
    """The same from ``opponents.parquet``."""
    frame = pd.read_parquet(folder / OPPONENTS)
    count = int(frame["draw"].max()) + 1
    prompts = frame["prompt"].tolist()[::count]
    numbers = {}
    for column in frame.columns:
        if column.startswith("numbers/"):
            grid = torch.from_numpy(np.stack(frame[column].to_list())).view(len(prompts), count, -1)
            numbers[column.removeprefix("numbers/")] = grid.squeeze(2) if grid.shape[2] == 1 else grid
    return tables(prompts, numbers)


def _listed(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Grids (P, k, d), d = 1 of scores."""
    return {name: grid.unsqueeze(-1) if grid.dim() == 2 else grid for name, grid in numbers.items()}
