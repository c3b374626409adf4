"""A study whose trials train nothing, run to its end."""

from __future__ import annotations

import io

from rich.console import Console

from pipeline.run.layout import Layout
from studies.definition.schema import Study
from studies.execution import executors
from studies.execution.driver import StudyResult, run_study
from studies.execution.job_folder import JobFolder

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


def job_folders(layout: Layout) -> list[JobFolder]:
    """Of the jobs of seed 0."""
    study = layout.study("small", "tiny")
    return [JobFolder(study.job_folder(arm, 0)) for arm in ("weak", "strong")]


def results(result: StudyResult, layout: Layout) -> dict[str, bytes]:
    """All that complete trials left, but for what tells the time."""
    found = {}
    for record in result.records:
        assert record.status == "complete"
        for name, stage in record.stages.items():
            found[f"{record.arm} {record.seed} {name}"] = str(stage.digest).encode()
            for path in sorted((layout.root / stage.path).rglob("*")):
                local = path.relative_to(layout.root)
                if path.is_file() and path.name != "manifest.json" and "log" not in local.parts:
                    found[f"{record.arm} {record.seed} {local}"] = path.read_bytes()
    return found
