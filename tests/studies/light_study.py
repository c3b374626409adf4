"""A study whose trials train nothing, run to its end."""

from __future__ import annotations

import io

from rich.console import Console

from pipeline.run.layout import Layout
from studies.definition.schema import Study
from studies.execution import executors
from studies.execution.driver import StudyResult, run_study

SMALL = {"train.steps": 64}


def go(
    study: Study, layout: Layout, executor: str = "inline", jobs: int = 2, **overrides: object
) -> tuple[StudyResult, str]:
    text = io.StringIO()
    console = Console(file=text, width=200)
    layout.root.mkdir(parents=True, exist_ok=True)
    result = run_study(
        study, layout, None, {**SMALL, **overrides}, executors.executor(executor), jobs, console, trials="fake_trial"
    )
    return result, text.getvalue()
