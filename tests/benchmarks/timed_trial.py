"""The trial that trains nothing, with the times at which it began and ended in ``times.txt`` of the output root."""

from __future__ import annotations

import time

import fake_trial
from fake_trial import check_budget, check_disk, environment, execution, plan_trial

from pipeline.config.trial import TrialConfig
from pipeline.run.layout import Layout
from pipeline.run.outcome import TrialOutcome
from pipeline.run.progress import Reporter

__all__ = ["check_budget", "check_disk", "environment", "execution", "plan_trial", "run_trial"]


def run_trial(
    config: TrialConfig, layout: Layout, reporter: Reporter, *, until: str | None = None, wait: bool = True
) -> TrialOutcome:
    began = time.time()
    outcome = fake_trial.run_trial(config, layout, reporter, until=until, wait=wait)
    if until is None:
        with (layout.root / "times.txt").open("a") as file:
            file.write(f"{began} {time.time()}\n")
    return outcome
