"""What one waits for in the daily loop: a rerun with nothing to do, a report with nothing new, and a report drawn from
scratch.

Of a study with the shape of `kl_ablation` (5 arms x 3 seeds, 2,048 steps, 512 prompts) whose numbers are made up. The
limits are those of an idle machine with two cores and are told, not asserted.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from benchmarks.cost import Cost, measured
from recorded import record_study

from pipeline.run.layout import Layout
from reports.pages.fresh import STAMP
from studies.definition.schema import load_study

FRONT_DOOR = str(Path(__file__).parents[2] / "ablate.py")
ROUNDS = 5


def test_rerun_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, layout = load_study("kl_ablation"), Layout.at(tmp_path)
    record_study(study, layout, steps=2_048, prompts=512)
    folder = layout.study(study.name, study.profile)
    rerun, report = (["ablate.py", command, study.name, "--out", str(tmp_path)] for command in ("study", "report"))

    def from_scratch() -> None:
        shutil.rmtree(folder.report)
        (folder.path / STAMP).unlink()

    lines = [_line("first rerun: tells Optuna and MLflow, draws the report", [_timed(rerun)], None)]
    lines.append(_line("rerun with nothing to do", [_timed(rerun) for _ in range(ROUNDS)], 4.0))
    lines.append(_line("report with nothing new", [_timed(report) for _ in range(ROUNDS)], 4.0))
    lines.append(_line("report drawn from scratch", [_timed(report, from_scratch) for _ in range(ROUNDS)], 6.0))
    lines.append(_line("--help", [_timed(["ablate.py", "--help"]) for _ in range(ROUNDS)], None))
    with capsys.disabled():
        print("\nmedian (least to greatest) of the wall clock, and median of processor time:", *lines, sep="\n  ")


def _timed(command: list[str], before: Callable[[], None] | None = None) -> Cost:
    if before is not None:
        before()
    return measured([sys.executable, FRONT_DOOR, *command[1:]])


def _line(name: str, costs: list[Cost], limit: float | None) -> str:
    walls = [one.wall for one in costs]
    goal = "" if limit is None else f"; goal {limit:g} s: {'met' if median(walls) < limit else 'missed'}"
    spread = f"{median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f}, n = {len(costs)})"
    return f"{name}: {spread}, {median(one.cpu for one in costs):.2f} CPU s{goal}"
