"""A study whose trials train nothing, run to its end."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import mind_interrupts
from rich.console import Console

from pipeline.run.layout import Layout, TrialRecord
from studies.definition.schema import Study
from studies.execution.study import StudyResult, executor, run_study

SMALL = {"train.steps": 64}
Write = Callable[..., Study]
"""The fixture `write_study`: (text, name) -> the study in a file of this text and name."""
ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT), str(Path(__file__).parent), str(Path(__file__).parents[1])])
COMMAND = """
import sys
from pathlib import Path
from rich.console import Console
from pipeline.run.layout import Layout
from studies.definition.schema import load_study
from studies.execution import study as running
from studies.execution.study import executor, run_study, work
from studies.tracking.sync import Synced
running.sync = lambda *arguments, **more: Synced(True, 0)
if __name__ == "__main__":
    what, study, root, name, jobs = sys.argv[1:]
    try:
        if what == "work":
            say = lambda text, style: print(text)
            print(work(Layout(Path(root)), study, "tiny", int(jobs), say, stop=lambda: False))
        else:
            hire = executor(name, int(jobs))
            run_study(
                load_study(study), Layout(Path(root)), None, {small!r}, hire, int(jobs), Console(), trials="fake_trial"
            )
    except KeyboardInterrupt:
        sys.exit(130)
"""


def go(
    study: Study, layout: Layout, name: str = "inline", jobs: int = 2, **overrides: object
) -> tuple[StudyResult, str]:
    text = io.StringIO()
    console = Console(file=text, width=200)
    layout.root.mkdir(parents=True, exist_ok=True)
    given = {**SMALL, **overrides}
    result = run_study(study, layout, None, given, executor(name, jobs), jobs, console, trials="fake_trial")
    return result, text.getvalue()


def command(
    what: str, study: str, layout: Layout, folder: Path, jobs: int = 1, name: str = "processes"
) -> subprocess.Popen[bytes]:
    """The same as a process: ``study`` FILE or ``work`` NAME."""
    script = folder / "light_command.py"
    script.write_text(COMMAND.replace("{small!r}", repr(SMALL)))
    return subprocess.Popen(
        [sys.executable, str(script), what, study, str(layout.root), name, str(jobs)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=mind_interrupts,
    )


def record_of(arm: str = "weak", seed: int = 0, **values: Any) -> TrialRecord:
    """The record of a complete trial that left nothing, but for these values."""
    empty: dict[str, Any] = {"config": {}, "config_digest": "", "stages": {}, "summary": {}, "cost": {}}
    named: dict[str, Any] = {"study": "small", "profile": "tiny", "arm": arm, "seed": seed, "environment": {}}
    ended: dict[str, Any] = {"status": "complete", "steps": 64, "finished": "2025-01-01T00:00:00+00:00"}
    return TrialRecord.model_validate({**named, **empty, **ended, **values})


def results(result: StudyResult, layout: Layout) -> dict[str, bytes]:
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


CELLS = ["0.01/0", "0.2/0"]
"""The trials of `fake_trial.SHORT`."""


def half_way(layout: Layout, trials: int = len(CELLS)) -> bool:
    return len(list(layout.root.glob("store/train/.partial/*/metrics.jsonl"))) == trials


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
