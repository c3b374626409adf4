"""What a study would run, what is cached and why, and what a trial of each arm would cost on a T4."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.config import TrialConfig
from pipeline.layout import Layout
from studies.design import cells
from studies.driver import TRIALS
from studies.schema import Study


def print_plan(
    console: Console, study: Study, profile: str | None, overrides: Mapping[str, Any], layout: Layout, *, trials: str = TRIALS
) -> None:
    """Print one row per distinct artifact and one budget line per arm; builds nothing."""
    plan = cells(study, profile, overrides)
    module = importlib.import_module(trials)
    rows: dict[tuple[str, str, str], list[str]] = {}
    states: dict[tuple[str, str, str], bool] = {}
    for cell in plan:
        for stage in module.plan_trial(cell.config, layout):
            row = (stage.stage, stage.key or "-", stage.why)
            rows.setdefault(row, []).append(cell.label)
            states[row] = stage.cached
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stage", "artifact", "of", "", "because"):
        table.add_column(title)
    stages = list(dict.fromkeys(stage for stage, _, _ in rows))
    for row, labels in sorted(rows.items(), key=lambda item: stages.index(item[0][0])):
        state = Text("cached", style="dim") if states[row] else Text("will run", style="bold")
        owner = labels[0] if len(labels) == 1 else f"{len(labels)} trials"
        table.add_row(Text(row[0]), Text(row[1]), Text(owner), state, Text(row[2]))
    console.print(table)
    console.print()
    lines: dict[str, list[str]] = {}
    for arm in study.arm_overrides():
        lines.setdefault(budget_line(next(cell.config for cell in plan if cell.arm == arm)), []).append(arm)
    for line, arms in lines.items():
        console.print(Text(f"each trial of {', '.join(arms)}: {line}"), soft_wrap=True)


def budget_line(config: TrialConfig) -> str:
    """What one trial would need on a T4, in words."""
    from pipeline.budget import estimate

    found = estimate(config)
    if found is None:
        return f"no prediction: the sizes of {config.model.base} are not known before it is loaded"
    verdict = "fits" if found.fits else "does not fit"
    return (
        f"{verdict}: {_hours(found.t4_hours)} of {found.cap_hours:g} h on a T4, {found.total_gib:.2f} of {found.cap_gib:g} GiB, "
        f"{found.parameters / 1e6:.3g} M parameters (PPO stage, by the roofline)"
    )


def _hours(hours: float) -> str:
    return f"{hours:.2f} h" if hours >= 0.01 else f"{hours * 3600:.2g} s"
