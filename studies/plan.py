"""What a study would run, what is cached and why, and what it would cost: on a T4, and here as recorded."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
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
    """Print what each arm is predicted to take, the whole, and one row per distinct artifact; builds nothing.

    The prediction comes first: it needs neither data nor networks, and stands even where they cannot be had.
    """
    folder = layout.study(study.name, profile or study.profile)
    compared = confirmation(study, folder)
    plan = cells(compared, profile, overrides)
    module = importlib.import_module(trials)
    lines: dict[tuple[str, ...], list[str]] = {}
    for arm in compared.arm_overrides():
        lines.setdefault(tuple(budget_lines(next(cell.config for cell in plan if cell.arm == arm))), []).append(arm)
    for (first, *rest), arms in lines.items():
        console.print(Text("\n".join([f"each trial of {', '.join(arms)}: {first}", *rest])), soft_wrap=True)
    if plan[0].config.runtime.device == "cuda":
        console.print(variant_table(plan[0].config))
    for caution in cautions(plan):
        console.print(Text(caution, "yellow"), soft_wrap=True)
    if study.search is not None:
        ended = len((load(study, folder) or {}).get("trials", []))
        console.print(Text(search_line(study, ended)), soft_wrap=True)
    console.print(Text(total_line(study, plan, folder.records())), soft_wrap=True)
    console.print()
    console.print(_stage_table(plan, module, layout))


def _stage_table(plan: Sequence[Cell], module: Any, layout: Layout) -> Table:
    """One row per distinct artifact. Raises `UserError` where a stage that has to run would look in vain for what it needs."""
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
    return table


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
    from pipeline.preflight import hours, predict

    n, found = trial_count(study), [predict(cell.config) for cell in plan]
    line = f"{n} trials in all"
    known = [one.t4_hours for one in found if one is not None]
    if len(known) == len(plan):
        line += f": {hours(math.fsum(known) + (n - len(plan)) * known[0])} on a T4 by the roofline"
    seconds = [record.cost["wall_s"] for record in records if record.status == "complete" and "wall_s" in record.cost]
    if seconds:
        mean = math.fsum(seconds) / len(seconds)
        line += f"; here {hours(n * mean / 3600)} of training at the recorded {mean:.0f} s a trial (n = {len(seconds)}), one at a time"
    return line


def budget_lines(config: TrialConfig) -> Iterator[str]:
    """What one trial would need on a T4, in words: whether it fits, of what its memory consists, and what makes it fit."""
    from pipeline.preflight import device_of, hours, predict, remedy
    from pipeline.sizes import assumed_scorers

    found = predict(config)
    if found is None:
        yield f"no prediction: the sizes of {config.model.base} are not known before it is loaded"
        return
    where = "on a card" if device_of(config) == "cuda" else "resident on a CPU"
    yield (
        f"{'fits' if found.fits else 'does not fit'}: {hours(found.t4_hours)} of {found.cap_hours:g} h on a T4, {found.total_gib:.2f} of "
        f"{found.cap_gib:g} GiB {where}, {_millions(found.trained)} of {_millions(found.parameters)} M parameters trained "
        "(predicted)"
    )
    yield "  GiB at the peak of each stage: " + ", ".join(f"{stage} {found.stage_gib(stage):.2f}" for stage in found.stages)
    yield f"  GiB in stage {found.stage}: " + ", ".join(f"{name} {size:.2f}" for name, size in found.memory_gib.items() if size >= 0.005)
    yield (
        "  T4: "
        + ", ".join(f"{phase} {hours(spent)}" for phase, spent in found.hours.items())
        + (
            "; beside it, once for all that share them: "
            + ", ".join(f"{stage} {hours(spent)}" for stage, spent in found.shared_hours.items())
        )
    )
    if assumed := assumed_scorers(config):
        yield f"  assumed of {', '.join(assumed)}, which is not here to be looked at: the size of a base classifier, 125 M parameters"
    if not found.fits:
        yield f"  {remedy(config)}"


def variant_table(config: TrialConfig) -> Table:
    """What each way to train would take of this trial's budget."""
    from pipeline.preflight import hours, variants

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("training", "PPO stage", "all stages", "time on a T4", "trained", ""):
        table.add_column(title, justify="left" if title in ("training", "") else "right")
    for name, found in variants(config).items():
        if found is not None:
            figures = (
                f"{found.stage_gib('ppo'):.2f} GiB",
                f"{found.total_gib:.2f} GiB",
                hours(found.t4_hours),
                f"{_millions(found.trained)} M",
            )
            table.add_row(Text(name), *figures, Text("fits" if found.fits else "does not fit", style="" if found.fits else "yellow"))
    return table


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g}"
