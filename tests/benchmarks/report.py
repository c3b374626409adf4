"""What the rounds amount to: one table a size, ratios with their spread, and which goals are met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

GIB = 2**30
PEERS = {"ours-shared": "trl-ppo", "ours-separate": "trl-ppo", "ours-grpo": "trl-grpo", "ours-rloo": "trl-rloo"}
"""The same algorithm in TRL."""
SHARED = "ours-shared"
CRITICS = {SHARED: "shared", "ours-separate": "separate", "trl-ppo": "separate"}
"""Of those that have one."""
SPEED = {"ours-shared": 3.0, "ours-separate": 2.0, "ours-grpo": 3.0, "ours-rloo": 3.0}
"""Least episodes/s, as a multiple of the peer's."""
CRITIC_FREE = 1.25
"""The same without a critic, as a multiple of that with a shared one."""
MEMORY = {"32k": 0.5, "32k-eos": 0.5, "qwen0.5b": 0.5}
"""Most peak memory with a critic, as a share of the peer's."""
TRIAL_STEPS = 2_048
"""Gradient steps of a trial of the default profile, over which what is done once is spread."""
UPDATE_STEPS = 16
ONCE = 0.01


@dataclass(frozen=True)
class Run:
    """What one contender did in one round."""

    raw: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["contender"])

    @property
    def size(self) -> str:
        return str(self.raw["size"])

    def seconds(self, clock: str, phase: str | None = None) -> float:
        """Of a measured update, the median; of one phase, or of all."""
        return median(sum(one[clock].values()) if phase is None else one[clock][phase] for one in self.raw["updates"])

    def episodes_per_second(self, clock: str = "wall") -> float:
        return float(self.raw["episodes"]) / self.seconds(clock)

    def of_peak(self, phase: str) -> float:
        """Counted operations over seconds, as a fraction of the matrix-product peak of the same process, by the same
        clock."""
        clock = "cpu" if self.raw["device"] == "cpu" else "wall"
        seconds = self.seconds(clock, phase)
        return float(self.raw["flops"][phase]) / seconds / float(self.raw["matrix_peak"][clock]) if seconds else 0.0

    @property
    def peak_gib(self) -> float:
        return float(self.raw["peak_bytes"]) / GIB

    @property
    def working_gib(self) -> float:
        """Peak above what was held when everything was built."""
        return float(self.raw["peak_bytes"] - self.raw["built_bytes"]) / GIB


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds."""

    values: list[float]

    def __str__(self) -> str:
        middle, low, high = median(self.values), min(self.values), max(self.values)
        return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def show(runs: list[Run], start_up: float) -> None:
    """Print everything."""
    console = Console(width=190)
    for size in dict.fromkeys(run.size for run in runs):
        here = [run for run in runs if run.size == size]
        console.print(_speeds(size, here))
        console.print(_phases(here))
    for line in goals(runs):
        console.print(line, highlight=False)
    console.print(f"ablate --help: {start_up:.2f} s", highlight=False)


def _speeds(size: str, runs: list[Run]) -> Table:
    first = runs[0].raw
    table = Table(
        "contender",
        "critic",
        "episodes/s",
        "x shared",
        "x TRL",
        "x TRL by CPU time",
        "peak memory [GiB]",
        "x TRL",
        "above what was built [GiB]",
        title=(
            f"{size}: {first['parameters'] / 1e6:.2f} M parameters, {first['episodes']} episodes an update, 4 x 4"
            f" mini-batches, {first['threads']} thread(s); median (least to greatest) of n ="
            f" {sum(run.name == runs[0].name for run in runs)} rounds"
        ),
    )
    for name in dict.fromkeys(run.name for run in runs):
        table.add_row(
            _label(runs, name),
            CRITICS.get(name, "none"),
            str(_over(runs, name, Run.episodes_per_second)),
            "" if name in PEERS.values() else _times(runs, name, SHARED, Run.episodes_per_second),
            _against(runs, name, Run.episodes_per_second),
            _against(runs, name, lambda run: run.episodes_per_second("cpu")),
            str(_over(runs, name, lambda run: run.peak_gib)),
            _against(runs, name, lambda run: run.peak_gib),
            str(_over(runs, name, lambda run: run.working_gib)),
        )
    return table


def _phases(runs: list[Run]) -> Table:
    phases = [phase for phase in runs[0].raw["flops"] if any(run.seconds("wall", phase) > 0 for run in runs)]
    table = Table(
        "an update",
        *(f"{phase} [s]" for phase in phases),
        *(f"{phase} / peak" for phase in ("generate", "score", "train")),
    )
    for name in dict.fromkeys(run.name for run in runs):
        seconds = (f"{median(run.seconds('wall', phase) for run in runs if run.name == name):.3g}" for phase in phases)
        share = (
            f"{median(run.of_peak(phase) for run in runs if run.name == name):.0%}"
            for phase in ("generate", "score", "train")
        )
        table.add_row(name, *seconds, *share)
    return table


def goals(runs: list[Run]) -> list[str]:
    """One line a goal: met or missed in every round, or unclear. Nothing is hidden and nothing fails."""
    lines = []
    for size in dict.fromkeys(run.size for run in runs):
        here = [run for run in runs if run.size == size]
        for name in dict.fromkeys(run.name for run in here if run.name in PEERS):
            lines += _speed(here, name, PEERS[name], SPEED[name], "TRL's")
            if name not in CRITICS:
                lines += _speed(here, name, SHARED, CRITIC_FREE, f"{SHARED}'s")
            memory = _ratios(here, name, PEERS[name], lambda run: run.peak_gib)
            if memory and size in MEMORY and name in CRITICS:
                goal = f"{size}: {name} at most {MEMORY[size]:g} x TRL's peak memory"
                lines.append(f"{_verdict(memory, MEMORY[size])}  {goal}: {Spread(memory)}")
            for what, shares in _overheads(_named(here, name)).items():
                percent = Spread([100 * share for share in shares])
                lines.append(
                    f"{_verdict(shares, ONCE)}  {size}: {name} spends at most {ONCE:.0%} of a trial on {what}:"
                    f" {percent} %"
                )
    return lines


def _speed(runs: list[Run], name: str, peer: str, least: float, whose: str) -> list[str]:
    """The line of one goal of speed; none where one of the two did not run."""
    speeds = _ratios(runs, name, peer, Run.episodes_per_second)
    if not speeds:
        return []
    by_cpu = Spread(_ratios(runs, name, peer, lambda run: run.episodes_per_second("cpu")))
    goal = f"{runs[0].size}: {name} at least {least:g} x {whose} episodes/s"
    return [f"{_verdict(speeds, least, least=True)}  {goal}: {Spread(speeds)}; by CPU time {by_cpu}"]


def _overheads(runs: list[Run]) -> dict[str, list[float]]:
    """Fractions of a trial, of each run; what is done once in it is spread over the steps of a whole one."""
    updates = TRIAL_STEPS / UPDATE_STEPS
    return {
        "logging": [run.seconds("wall", "log") / run.seconds("wall") for run in runs],
        "checking itself": [run.raw["first"]["wall"]["selfcheck"] / (updates * run.seconds("wall")) for run in runs],
    }


def _verdict(values: list[float], goal: float, least: bool = False) -> str:
    """Unclear where some rounds meet the goal and others do not: then the machine was not quiet enough to tell."""
    met = [value >= goal if least else value <= goal for value in values]
    return f"{'met' if all(met) else 'unclear' if any(met) else 'falls short':11s}"


def _over(runs: list[Run], name: str, figure: Callable[[Run], float]) -> Spread:
    return Spread([figure(run) for run in runs if run.name == name])


def _ratios(runs: list[Run], name: str, peer: str, figure: Callable[[Run], float]) -> list[float]:
    """Of one contender to another, round by round; none where one of them did not run."""
    return [figure(one) / figure(other) for one, other in zip(*(_named(runs, n) for n in (name, peer)), strict=False)]


def _named(runs: list[Run], name: str) -> list[Run]:
    return [run for run in runs if run.name == name]


def _against(runs: list[Run], name: str, figure: Callable[[Run], float]) -> str:
    return _times(runs, name, PEERS[name], figure) if name in PEERS else ""


def _times(runs: list[Run], name: str, peer: str, figure: Callable[[Run], float]) -> str:
    ratios = [] if name == peer else _ratios(runs, name, peer, figure)
    return str(Spread(ratios)) if ratios else ""


def _label(runs: list[Run], name: str) -> str:
    """The name, with the version of TRL where it is TRL's."""
    version = _named(runs, name)[0].raw["trl"]
    return name if version is None else f"{name} {version}"
