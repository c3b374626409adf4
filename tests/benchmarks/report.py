"""Summary of the rounds: the figures of each contender, and ratios with their spread beside the goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

SPEED, MEMORY = "episodes/s", "peak [GiB]"
GOALS = (
    ("ours-shared", "trl-ppo", SPEED, 3.0), ("ours-separate", "trl-ppo", SPEED, 2.0),
    ("ours-grpo", "trl-grpo", SPEED, 3.0), ("ours-rloo", "trl-rloo", SPEED, 3.0),
    ("ours-grpo", "ours-shared", SPEED, 1.25), ("ours-rloo", "ours-shared", SPEED, 1.25),
    ("ours-shared", "trl-ppo", MEMORY, 0.5), ("ours-separate", "trl-ppo", MEMORY, 0.5),
    ("ours-grpo", "trl-grpo", MEMORY, 0.5), ("ours-rloo", "trl-rloo", MEMORY, 0.5),
)  # fmt: skip
"""Contender, peer, figure, and its least speed or most memory as a multiple of the peer's."""


def frame(runs: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A row of figures for each run; seconds are medians over its measured updates."""
    rows = []
    for run in runs:
        updates = pd.DataFrame(run["updates"])
        row = {"size": run["size"], "contender": run["contender"], MEMORY: run["peak_gib"]}
        row[SPEED] = run["episodes"] / updates.sum(axis=1).median()
        rows.append(row | updates.median().add_suffix(" [s]").to_dict())
    table = pd.DataFrame(rows)
    return table.assign(round=table.groupby(["size", "contender"]).cumcount())


def spread(values: pd.Series) -> str:
    return f"{values.median():.3g} ({values.min():.3g} to {values.max():.3g})"


def goals(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each goal and size: met or missed in every round, or unclear, where the machine was not quiet."""
    rows = []
    for size, here in table.groupby("size", sort=False):
        for name, peer, figure, goal in GOALS:
            one, other = (here[here.contender == which].set_index("round")[figure] for which in (name, peer))
            if len(found := (one / other).dropna()):
                met = found >= goal if figure == SPEED else found <= goal
                verdict = "met" if met.all() else "unclear" if met.any() else "missed"
                row = {"size": size, "contender": name, "beside": peer, "figure": figure, "ratio": spread(found)}
                rows.append(row | {"goal": goal, "verdict": verdict})
    return pd.DataFrame(rows)


def show(runs: Sequence[dict[str, Any]]) -> None:
    """Print everything; median (least to greatest) over the rounds, and medians of seconds by phase."""
    table = frame(runs)
    each = table.groupby(["size", "contender"], sort=False)
    phases = each[[name for name in table if name.endswith("[s]")]].median().round(3)
    print(each[[SPEED, MEMORY]].agg(spread).join(phases).to_string(), goals(table).to_string(index=False), sep="\n\n")
