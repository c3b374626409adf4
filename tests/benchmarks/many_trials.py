"""A thousand trials that train nothing through a real driver, its executor, its store and its tracking.

    PYTHONPATH=.:tests:tests/studies python -m benchmarks.many_trials --trials 1000 --slots 32 --seconds 10

What the driver takes: processor time, memory, events, and how long a place stays free between two trials.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_trial
import numpy as np
import psutil
from benchmarks.cost import free_seconds, measured
from repeated import repeated
from rich.console import Console

from pipeline.run.layout import Layout
from studies.definition.schema import load_study
from studies.execution import executors
from studies.execution.driver import run_study
from studies.execution.jobs import Event, Finished, NextJob

SEEDS, ROWS = 20, 20
"""Rows of metrics that a trial writes, 5 metrics in each two."""
FRONT_DOOR = Path(__file__).parents[2] / "ablate.py"


@dataclass
class Watched:
    """An executor, and what passes through it."""

    inner: Any
    trials: int
    events: int = 0
    ended: int = 0
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Share of the trials that have ended, and the driver's MiB."""
    spent: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds by the clock, of the processor, and of the processor without the threads that speak to MLflow."""

    def run(self, next_job: NextJob, slots: int, emit: Callable[[Event], None]) -> None:
        """Run the jobs of the driver; the last call of it is the one with the trials."""

        def passed(event: Event) -> None:
            self.events += 1
            self.ended += isinstance(event, Finished)
            emit(event)

        self.events, clock, processor, own = 0, time.monotonic(), time.process_time(), time.thread_time()
        with repeated(self._weigh):
            self.inner.run(next_job, slots, passed)
        self.spent = (time.monotonic() - clock, time.process_time() - processor, time.thread_time() - own)

    def _weigh(self) -> None:
        self.memory.append((self.ended / self.trials, psutil.Process().memory_info().rss / 2**20))


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="ablate-many-") as place:
        root = Path(place) / "out"
        root.mkdir()
        arms = math.ceil(options.trials / SEEDS)
        source = Path(place) / "many.yaml"
        source.write_text(_study(arms))
        layout = Layout.at(root)
        fake_trial.control(layout, sleep=options.seconds / ROWS)
        watched = Watched(executors.executor(options.executor), arms * SEEDS)
        with (Path(place) / "shown.txt").open("w") as shown:
            run_study(
                load_study(source), layout, None, {"train.steps": 16 * ROWS}, watched, options.slots,
                Console(file=shown), trials="benchmarks.timed_trial",
            )  # fmt: skip
        print("\n".join(_in_words(options, watched, root)), flush=True)
        cost = measured([sys.executable, str(FRONT_DOOR), "report", str(source), "--out", str(root)])
        print(f"report of them: {cost.wall:.1f} s, {cost.cpu:.1f} CPU s, peak {cost.gib:.2f} GiB")
    return 0


def _study(arms: int) -> str:
    betas = [round(0.002 * (1 + one), 3) for one in range(arms)]
    lines = "\n".join(f"  beta_{beta:.3f}: {{kl.beta: {beta}}}" for beta in betas)
    return f"question: How far?\nbaseline: beta_{betas[0]:.3f}\nseeds: {list(range(SEEDS))}\narms:\n{lines}\n"


def _in_words(options: argparse.Namespace, watched: Watched, root: Path) -> list[str]:
    wall, cpu, own = watched.spent
    times = np.loadtxt(root / "times.txt", ndmin=2)
    gaps = free_seconds(times, options.slots)
    weights = [np.interp(at, *np.array(watched.memory).T) for at in (0.1, 0.5, 0.99)]
    trials = len(times)
    return [
        f"{trials} trials of {np.median(np.diff(times)):.1f} s (median), {options.slots} at once, executor"
        f" {options.executor}: {wall:.0f} s",
        f"driver: {cpu / wall:.1%} of a core, {1000 * cpu / trials:.0f} ms of the processor a trial,"
        f" {1000 * own / trials:.0f} of them without MLflow;"
        f" {watched.events / wall:.0f} events a second; {weights[0]:.0f}, {weights[1]:.0f}, {weights[2]:.0f} MiB when"
        " 10 %, 50 %, 99 % of the trials had ended",
        f"from the end of a trial to the start of the next: median {np.median(gaps):.2f} s, 99 % within"
        f" {np.quantile(gaps, 0.99):.2f} s, at most {gaps.max():.2f} s (n = {len(gaps)})",
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="processes")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
