"""A trial whose updates each take a second longer, until SLURM has requeued its job."""

from __future__ import annotations

import os
import time
from typing import Any

from pipeline import trial
from pipeline.config.trial import TrialConfig
from pipeline.run.layout import Layout
from pipeline.run.progress import Reporter, TrialOutcome
from pipeline.trial import PRELOAD, STAGES, check_budget, environment, execution, plan_trial

__all__ = ["PRELOAD", "STAGES", "check_budget", "environment", "execution", "plan_trial", "run_trial"]


def run_trial(config: TrialConfig, layout: Layout, reporter: Reporter, **how: Any) -> TrialOutcome:
    progress = reporter.progress

    def slowly(stage: str, *done: Any) -> None:
        progress(stage, *done)
        time.sleep(stage == "train" and "SLURM_RESTART_COUNT" not in os.environ)

    reporter.progress = slowly  # type: ignore[method-assign]
    return trial.run_trial(config, layout, reporter, **how)
