"""A thousand trials that train nothing, by many hands: what the command that watches them costs.

    PYTHONPATH=.:tests:tests/studies python -m benchmarks.many_trials --trials 1000 --slots 32 --seconds 10

Processor time and memory of the watcher, what MLflow's `sync` takes of it, and how long a place stays free. Hands
import this module for the trials: its `run_trial` notes when each began and ended in ``times.txt`` of the output root.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import fake_trial
import numpy as np
import psutil
from benchmarks.meter import free_seconds
from benchmarks.test_bench_reports import measured
from fake_trial import check_budget, environment, execution, plan_trial
from repeated import repeated
from rich.console import Console

from pipeline.config.trial import TrialConfig
from pipeline.run.layout import Layout
from pipeline.run.outcome import TrialOutcome
from pipeline.run.progress import Reporter
from studies.definition.schema import load_study
from studies.execution import study as running
from studies.execution.executors import executor

__all__ = ["check_budget", "environment", "execution", "plan_trial", "run_trial"]
SEEDS, ROWS = 20, 20
"""Rows of metrics that a trial writes, 5 metrics in each two."""


def run_trial(
    config: TrialConfig, layout: Layout, reporter: Reporter, *, until: str | None = None, wait: bool = True
) -> TrialOutcome:
    began = time.time()
    outcome = fake_trial.run_trial(config, layout, reporter, until=until, wait=wait)
    if until is None:
        with (layout.root / "times.txt").open("a") as file:
            file.write(f"{began} {time.time()}\n")
    return outcome


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="ablate-many-") as place:
        root, source = Path(place) / "out", Path(place) / "many.yaml"
        root.mkdir()
        betas = [f"{0.002 * (1 + arm):.3f}" for arm in range(math.ceil(options.trials / SEEDS))]
        arms = "\n".join(f"  beta_{beta}: {{kl.beta: {beta}}}" for beta in betas)
        seeds = list(range(SEEDS))
        source.write_text(f"question: How far?\nbaseline: beta_{betas[0]}\nseeds: {seeds}\narms:\n{arms}\n")
        layout = Layout.at(root)
        fake_trial.control(layout, sleep=options.seconds / ROWS)
        weights, sync, syncs = list[float](), running.sync, list[float]()

        def timed(*arguments: Any, **more: Any) -> Any:
            began = time.thread_time()
            try:
                return sync(*arguments, **more)
            finally:
                syncs.append(time.thread_time() - began)

        running.sync = timed
        clock, processor = time.monotonic(), time.process_time()
        hire, study = executor(options.executor, options.slots), load_study(source)
        weigh = repeated(lambda: weights.append(psutil.Process().memory_info().rss / 2**20))
        with (Path(place) / "shown.txt").open("w") as shown, weigh:
            running.run_study(
                study, layout, None, {"train.steps": 16 * ROWS}, hire, options.slots, Console(file=shown),
                trials="benchmarks.many_trials",
            )  # fmt: skip
        wall, cpu = time.monotonic() - clock, time.process_time() - processor
        times = np.loadtxt(root / "times.txt", ndmin=2)
        gaps, trials = free_seconds(times, options.slots), len(times)
        print(
            f"{trials} trials of {np.median(np.diff(times)):.1f} s (median), {options.slots} at once, executor"
            f" {options.executor}: {wall:.0f} s\n"
            f"watcher: {cpu / wall:.1%} of a core, {1000 * cpu / trials:.0f} ms of the processor a trial, of which sync"
            f" {1000 * sum(syncs) / trials:.0f} ms ({len(syncs)} calls); at most {max(weights):.0f} MiB\n"
            f"from the end of a trial to the start of the next: median {np.median(gaps):.2f} s, 99 % within"
            f" {np.quantile(gaps, 0.99):.2f} s, at most {gaps.max():.2f} s (n = {len(gaps)})",
            flush=True,
        )
        wall, cpu, gib = measured(["report", str(source), "--out", str(root)])
        print(f"report of them: {wall:.1f} s, {cpu:.1f} CPU s, peak {gib:.2f} GiB")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", default="processes")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
