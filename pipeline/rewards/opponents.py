"""The opponents of a reward: answers of a network to every training and held-out prompt, with which an answer to the
same prompt is compared.

``opponents.parquet`` has a row for each answer (prompt, draw, completion, and ``numbers/<part>``: of each part of the
reward the score or the embedding, a list), so that a trial neither samples nor scores them again. They are found by the
text of the prompt, never by its row, and a text that occurs twice among the prompts has one set of opponents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.rewards.base import Completions

Compare = Callable[[Tensor, Tensor], Tensor]
"""Numbers of answers, (B,) or (B, d), and of their k opponents, (B, k) or (B, k, d): rewards (B,)."""
Table = Mapping[str, Tensor]
"""Numbers of the k opponents of each prompt, (k,) or (k, d)."""


class Against:
    """A `Reward`: what `compare` makes of an answer's numbers and of those of the opponents of its prompt.

    Raises `UserError` for a prompt without opponents.
    """

    def __init__(self, numbers: Any, compare: Compare, table: Table) -> None:
        self._numbers, self._compare, self._table = numbers, compare, table
        self.networks: Sequence[Any] = numbers.networks

    def __call__(self, completions: Completions) -> Tensor:
        mine: Tensor = self._numbers(completions)
        return self._compare(mine, torch.stack([self._opponents(prompt) for prompt in completions.prompts]))

    def _opponents(self, prompt: str) -> Tensor:
        if prompt not in self._table:
            raise UserError(
                f"reward.against: there are no opponents for the prompt {prompt!r}; answers to compare with are drawn"
                " for the training and the held-out prompts of the trial alone"
            )
        return self._table[prompt]


OPPONENTS = "opponents.parquet"


def save_opponents(folder: Path, drawn: list[Completions], numbers: Mapping[str, Tensor]) -> None:
    """Write ``opponents.parquet``; the opponents of one prompt stand next to each other."""
    prompts, k = drawn[0].prompts, len(drawn)
    columns = {
        "prompt": [prompt for prompt in prompts for _ in range(k)],
        "draw": list(range(k)) * len(prompts),
        "completion": [one.texts[row] for row in range(len(prompts)) for one in drawn],
    }
    lists = {f"numbers/{name}": list(grid.reshape(len(prompts) * k, -1).numpy()) for name, grid in numbers.items()}
    pd.DataFrame(columns | lists).to_parquet(folder / OPPONENTS, index=False)


def tables(prompts: Sequence[str], numbers: Mapping[str, Tensor]) -> dict[str, Table]:
    """Return the opponents' numbers of each part by prompt."""
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
