"""A thousand trials that train nothing, by many hands: what the command that watches them costs.

    PYTHONPATH=.:tests:tests/studies python -m benchmarks.many_trials --trials 1000 --slots 32 --seconds 10

Processor time and memory of the watcher, what MLflow's `sync` takes of it, and how long a place stays free.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
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
from studies.execution import study as running
from studies.execution.executors import executor
from studies.execution.study import run_study

SEEDS, ROWS = 20, 20
"""Rows of metrics that a trial writes, 5 metrics in each two."""
FRONT_DOOR = Path(__file__).parents[2] / "ablate.py"


class Synced:
    """`sync`, and the processor time that it takes."""

    def __init__(self) -> None:
        self.inner, self.seconds, self.calls = running.sync, 0.0, 0

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        began = time.thread_time()
        try:
            return self.inner(*arguments, **more)
        finally:
            self.calls += 1
            self.seconds += time.thread_time() - began


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
        synced, weights = Synced(), list[float]()
        running.sync = synced  # type: ignore[assignment]
        clock, processor = time.monotonic(), time.process_time()
        hire, study = executor(options.executor, options.slots), load_study(source)
        weigh = repeated(lambda: weights.append(psutil.Process().memory_info().rss / 2**20))
        with (Path(place) / "shown.txt").open("w") as shown, weigh:
            run_study(
                study, layout, None, {"train.steps": 16 * ROWS}, hire, options.slots, Console(file=shown),
                trials="benchmarks.timed_trial",
            )  # fmt: skip
        wall, cpu = time.monotonic() - clock, time.process_time() - processor
        times = np.loadtxt(root / "times.txt", ndmin=2)
        gaps, trials = free_seconds(times, options.slots), len(times)
        print(
            f"{trials} trials of {np.median(np.diff(times)):.1f} s (median), {options.slots} at once, executor"
            f" {options.executor}: {wall:.0f} s\n"
            f"watcher: {cpu / wall:.1%} of a core, {1000 * cpu / trials:.0f} ms of the processor a trial, of which sync"
            f" {1000 * synced.seconds / trials:.0f} ms ({synced.calls} calls); at most {max(weights):.0f} MiB\n"
            f"from the end of a trial to the start of the next: median {np.median(gaps):.2f} s, 99 % within"
            f" {np.quantile(gaps, 0.99):.2f} s, at most {gaps.max():.2f} s (n = {len(gaps)})",
            flush=True,
        )
        cost = measured([sys.executable, str(FRONT_DOOR), "report", str(source), "--out", str(root)])
        print(f"report of them: {cost.wall:.1f} s, {cost.cpu:.1f} CPU s, peak {cost.gib:.2f} GiB")
    return 0


def _study(arms: int) -> str:
    betas = [round(0.002 * (1 + one), 3) for one in range(arms)]
    lines = "\n".join(f"  beta_{beta:.3f}: {{kl.beta: {beta}}}" for beta in betas)
    return f"question: How far?\nbaseline: beta_{betas[0]:.3f}\nseeds: {list(range(SEEDS))}\narms:\n{lines}\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="processes")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
