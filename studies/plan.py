"""What a study would run, what is cached and why, and what it would cost: on a T4, and here as recorded."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.config import TrialConfig
from pipeline.layout import Layout, TrialRecord
from studies.design import Cell, cautions, cells
from studies.driver import TRIALS, trial_count
from studies.schema import Study
from studies.search import confirmation, load


def print_plan(
    console: Console, study: Study, profile: str | None, overrides: Mapping[str, Any], layout: Layout, *, trials: str = TRIALS
) -> None:
    """Print one row per distinct artifact, one budget line per arm, and the whole; builds nothing."""
    folder = layout.study(study.name, profile or study.profile)
    compared = confirmation(study, folder)
    plan = cells(compared, profile, overrides)
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
    for arm in compared.arm_overrides():
        lines.setdefault(budget_line(next(cell.config for cell in plan if cell.arm == arm)), []).append(arm)
    for line, arms in lines.items():
        console.print(Text(f"each trial of {', '.join(arms)}: {line}"), soft_wrap=True)
    for caution in cautions(plan):
        console.print(Text(caution, "yellow"), soft_wrap=True)
    if study.search is not None:
        ended = len((load(study, folder) or {}).get("trials", []))
        console.print(Text(search_line(study, ended)), soft_wrap=True)
    console.print(Text(total_line(study, plan, folder.records())), soft_wrap=True)


def search_line(study: Study, ended: int) -> str:
    """What a search and its confirmation consist of; `ended` trials of it are recorded."""
    assert study.search is not None
    search, seeds = study.search, ", ".join(map(str, study.search.confirm.seeds))
    runs = (search.confirm.top + 1) * len(search.confirm.seeds)
    return (
        f"search: {search.trials} trials over {', '.join(search.space)} on seed {study.seeds[0]}, {search.parallel} proposed at a time "
        f"({ended} recorded); confirmation: the best {search.confirm.top} and the baseline on seeds {seeds}, {runs} trials"
    )


def total_line(study: Study, plan: Sequence[Cell], records: Sequence[TrialRecord]) -> str:
    """Hours of the whole study if nothing of it were cached; a trial that a search has yet to propose counts as its baseline does."""
    from pipeline.budget import estimate

    n, found = trial_count(study), [estimate(cell.config) for cell in plan]
    line = f"{n} trials in all"
    known = [one.t4_hours for one in found if one is not None]
    if len(known) == len(plan):
        line += f": {_hours(math.fsum(known) + (n - len(plan)) * known[0])} on a T4 by the roofline"
    seconds = [record.cost["wall_s"] for record in records if record.status == "complete" and "wall_s" in record.cost]
    if seconds:
        mean = math.fsum(seconds) / len(seconds)
        line += f"; here {_hours(n * mean / 3600)} of training at the recorded {mean:.0f} s a trial (n = {len(seconds)}), one at a time"
    return line


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
