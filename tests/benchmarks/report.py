"""Summary of the rounds: one table a size, ratios with their spread, and which goals are met."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

GIB = 2**30
SHARED = "ours-shared"
PEERS = {SHARED: "trl-ppo", "ours-separate": "trl-ppo", "ours-grpo": "trl-grpo", "ours-rloo": "trl-rloo"}
"""Contenders with the same algorithm in TRL."""
WITH_CRITIC = (SHARED, "ours-separate", "trl-ppo")
SPEED = {"ours-shared": 3.0, "ours-separate": 2.0, "ours-grpo": 3.0, "ours-rloo": 3.0}
"""Least episodes/s, as a multiple of the peer's."""
CRITIC_FREE = 1.25
"""Least episodes/s without a critic, as a multiple of that with a shared one."""
MEMORY, MEMORY_SIZES = 0.5, ("32k", "32k-eos", "qwen0.5b")
"""Most peak memory with a critic, as a share of the peer's, and the sizes at which that is asked."""
TRIAL_UPDATES = 2_048 / 16
"""Updates of a trial of the default profile, over which the self-checks are spread."""
ONCE = 0.01
"""Most of a trial that is spent on logging, or on self-checks."""


def frame(runs: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A row of figures for each run; seconds are medians over its measured updates."""
    rows = []
    for run in runs:
        seconds = {phase: median(one["wall"][phase] for one in run["updates"]) for phase in run["flops"]}
        whole, cpu = (median(sum(one[clock].values()) for one in run["updates"]) for clock in ("wall", "cpu"))
        row = {
            "size": run["size"], "contender": run["contender"], "trl": run["trl"] or "",
            "episodes/s": run["episodes"] / whole, "episodes/CPU s": run["episodes"] / cpu,
            "peak [GiB]": run["peak_bytes"] / GIB, "logging": seconds["log"] / whole,
            "self-checks": run["first"]["wall"]["selfcheck"] / (TRIAL_UPDATES * whole),
        }  # fmt: skip
        for phase, spent in seconds.items():
            row[f"{phase} [s]"] = spent
            row[f"{phase} / matrix peak"] = run["flops"][phase] / spent / run["matrix_peak"]["wall"] if spent else 0.0
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.assign(round=table.groupby(["size", "contender"]).cumcount())


def spread(values: pd.Series | Sequence[float]) -> str:
    """Median, least and greatest over the rounds."""
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})" if len(values) else ""


def ratios(here: pd.DataFrame, name: str, peer: str | None, figure: str) -> pd.Series:
    """Return the ratios of one contender to another by round; none where one of them did not run."""
    one, other = (here[here.contender == which].set_index("round")[figure] for which in (name, peer))
    return (one / other).dropna()


def show(runs: Sequence[dict[str, Any]], start_up: float) -> None:
    """Print everything."""
    table = frame(runs)
    for size, here in table.groupby("size", sort=False):
        first = next(run for run in runs if run["size"] == size)
        print(
            f"\n{size}: {first['parameters'] / 1e6:.2f} M parameters, {first['episodes']} episodes an update, 4 x 4"
            f" mini-batches, {first['threads']} thread(s); median (least to greatest) of n = {here['round'].max() + 1}"
        )
        speeds = [
            {
                "contender": f"{name} {own.trl.iloc[0]}".strip(),
                "episodes/s": spread(own["episodes/s"]),
                "x TRL": spread(ratios(here, str(name), PEERS.get(str(name)), "episodes/s")),
                "x TRL by CPU time": spread(ratios(here, str(name), PEERS.get(str(name)), "episodes/CPU s")),
                "peak memory [GiB]": spread(own["peak [GiB]"]),
                "x TRL's peak": spread(ratios(here, str(name), PEERS.get(str(name)), "peak [GiB]")),
            }
            for name, own in here.groupby("contender", sort=False)
        ]
        phases = here.groupby("contender", sort=False)[
            [one for one in here if one.endswith((" [s]", " peak"))]
        ].median()
        print(
            pd.DataFrame(speeds).to_string(index=False), phases.loc[:, phases.max() > 0].round(3).to_string(), sep="\n"
        )
    print(*goals(table), f"ablate --help: {start_up:.2f} s", sep="\n")


def goals(table: pd.DataFrame) -> list[str]:
    """One line a goal: met or missed in every round, or unclear. Nothing is hidden and nothing fails."""
    lines = []
    for size, here in table.groupby("size", sort=False):
        for name in dict.fromkeys(here.contender[here.contender.isin(PEERS)]):
            speeds = [(PEERS[name], SPEED[name], "TRL's")]
            speeds += [] if name in WITH_CRITIC else [(SHARED, CRITIC_FREE, f"{SHARED}'s")]
            for peer, least, whose in speeds:
                if len(found := ratios(here, name, peer, "episodes/s")):
                    goal = f"{size}: {name} at least {least:g} x {whose} episodes/s"
                    lines.append(f"{_verdict(found >= least)}  {goal}: {spread(found)}")
            memory = ratios(here, name, PEERS[name], "peak [GiB]")
            if len(memory) and size in MEMORY_SIZES and name in WITH_CRITIC:
                goal = f"{size}: {name} at most {MEMORY:g} x TRL's peak memory"
                lines.append(f"{_verdict(memory <= MEMORY)}  {goal}: {spread(memory)}")
            for what in ("logging", "self-checks"):
                share = here[here.contender == name][what]
                goal = f"{size}: {name} spends at most {ONCE:.0%} of a trial on {what}"
                lines.append(f"{_verdict(share <= ONCE)}  {goal}: {spread(100 * share)} %")
    return lines


def _verdict(met: pd.Series) -> str:
    """Unclear where some rounds meet the goal and others do not: then the machine was not quiet enough."""
    return f"{'met' if met.all() else 'unclear' if met.any() else 'falls short':11s}"
