"""What a study would run and how long it takes, what is cached and why, and what it would cost on a T4."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.config.effects import inert, value_at
from pipeline.config.presets import KNOBS, PRESETS
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.resources.device import gpu_visible
from pipeline.run.dag import Known, StagePlan
from pipeline.run.layout import Layout
from pipeline.run.lost import OWN, own_stages
from studies.definition.design import Cell, cautions, cells
from studies.definition.replicates import chain_of
from studies.definition.schema import Study
from studies.definition.search import confirmation, load
from studies.definition.testable import horizons, untestable
from studies.execution.history import StageSeconds, all_records, known_artifacts, measured
from studies.execution.started import TRIALS
from studies.execution.study import trial_count

"""Stages that every trial has for itself."""


def print_plan(
    console: Console,
    study: Study,
    profile: str | None,
    overrides: Mapping[str, Any],
    layout: Layout,
    *,
    trials: str = TRIALS,
) -> None:
    """Print how many trials will run and how long they take, what will run and why, and where it matters the T4's
    budget.

    Builds nothing. Raises `UserError` where a stage that has to run lacks data or a model; the budget, which needs
    neither, is printed even then.
    """
    chosen = profile or study.profile
    folder = layout.study(study.name, chosen)
    folder.started()
    folder.records()  # a damaged file is named before anything else is said
    compared = confirmation(study, folder)
    plan = cells(compared, profile, overrides)
    module, work = importlib.import_module(trials), None
    try:
        records = all_records(layout)
        planned = _stages(plan, module, layout, known_artifacts(layout, records))
        ended = len((load(study, folder) or {}).get("trials", [])) if study.search else 0
        total = trial_count(study)
        work = Work(planned, total, total - len(plan) - ended)
        time = "" if work.idle else _time(work, measured(layout, records, chosen, _machine(module, plan)), chosen)
        console.print(Text(f"{work.headline}{time}", "bold"))
        if study.search is not None:
            console.print(Text(search_line(study, ended)), soft_wrap=True)
        for caution in [*cautions(plan), *untestable(compared, plan)]:
            console.print(Text(caution, "yellow"), soft_wrap=True)
        for line in [*algorithm_lines(plan), *horizons(compared, plan), *dict.fromkeys(reading_lines(plan))]:
            console.print(Text(line), soft_wrap=True)
        console.print()
        console.print(stage_table(planned))
    finally:
        if work is None or not work.idle or any(_on_gpu(cell.config, chosen) for cell in plan):
            _print_budget(console, study, compared, plan, chosen)


def _stages(plan: Sequence[Cell], module: Any, layout: Layout, known: Known) -> list[tuple[Cell, list[StagePlan]]]:
    return [(cell, module.plan_trial(cell.config, layout, known)) for cell in plan]


def _machine(module: Any, plan: Sequence[Cell]) -> dict[str, str]:
    """Platform and device of this machine, as records name them; no device where the configuration's is not here."""
    with suppress(UserError):
        return {**module.environment(), **module.execution(plan[0].config)}
    return dict(module.environment())


def _own(stages: Sequence[StagePlan]) -> frozenset[str]:
    return own_stages(stage.stage for stage in stages)


@dataclass(frozen=True)
class Work:
    """What a study has still to do."""

    planned: Sequence[tuple[Cell, Sequence[StagePlan]]]
    total: int
    """Trials of the whole study."""
    unknown: int
    """Trials that a search has yet to propose."""

    @property
    def cells(self) -> list[Cell]:
        """Trials whose training or evaluation will run."""
        return [
            cell
            for cell, stages in self.planned
            if any(not stage.cached for stage in stages if stage.stage in _own(stages))
        ]

    @property
    def waiting(self) -> list[tuple[Cell, StagePlan]]:
        """Stages that will run and are no trial's own, for each trial."""
        return [
            (cell, stage_plan)
            for cell, stages in self.planned
            for stage_plan in stages
            if not stage_plan.cached and stage_plan.stage not in _own(stages)
        ]

    @property
    def shared(self) -> list[tuple[str, Cell]]:
        """Stages that will run once for several trials, each with one of those."""
        shared: dict[tuple[str, object, str], Cell] = {}
        for cell, stage_plan in self.waiting:
            key = stage_plan.key or chain_of(cell.config)
            shared.setdefault((stage_plan.stage, key, stage_plan.why), cell)
        return [(stage, cell) for (stage, _, _), cell in shared.items()]

    @property
    def idle(self) -> bool:
        """Whether nothing will run."""
        return not (self.cells or self.shared or self.unknown)

    @property
    def headline(self) -> str:
        """How many trials will run."""
        n = len(self.cells) + self.unknown
        again = " and ".join(dict.fromkeys(stage for stage, _ in self.shared))
        if self.idle:
            return f"Nothing will run: all {self.total} trials are cached"
        line = f"{n} of {self.total} trials will run"
        return line if n else f"{line}, but {again} will be built again"


def _time(work: Work, timed: StageSeconds | None, profile: str) -> str:
    """How long that takes: by earlier trials of the profile on this machine, else by the forecast for a T4."""
    from studies.console.cli import default_jobs

    plan = [cell for cell, _ in work.planned]
    if timed is None:
        missing = f"no trial of profile {profile} has been measured on this machine"
        waiting = [(stage.stage, cell) for cell, stage in work.waiting]
        expected = _t4_hours(work.cells, work.unknown, _once(waiting)) if _matters(plan[0].config, profile) else None
        if expected is None:
            return f"; how long that takes is not known yet: {missing}"
        return f", about {duration(expected * 3600)} on a T4 (forecast; {missing})"
    jobs = min(default_jobs(plan[0].config), max(len(work.cells) + work.unknown, 1))
    own = {
        cell.label: [stage.stage for stage in stages if not stage.cached and stage.stage in _own(stages)]
        for cell, stages in work.planned
    }
    seconds = math.fsum(timed.of(stage, cell.config) for cell in work.cells for stage in own[cell.label])
    seconds += work.unknown * math.fsum(timed.of(stage, plan[0].config) for stage in sorted(OWN))
    chains = len({chain_of(cell.config) for _, cell in work.shared})
    shared = math.fsum(timed.of(stage, cell.config) for stage, cell in work.shared)
    seconds = seconds / jobs + shared / max(1, min(jobs, chains))
    return (
        f", about {duration(seconds)} (measured on {timed.trials} earlier trial{'s' * (timed.trials > 1)}; {jobs} at"
        " once)"
    )


def _t4_hours(plan: Sequence[Cell], unknown: int, shared: Sequence[tuple[str, Cell]]) -> float | None:
    """Hours of these trials on a T4, one after another, with `shared` stages; None where the sizes of the base are not
    known. An unknown trial of a search counts as the first."""
    from pipeline.forecast.advice import predict

    forecasts = [predict(cell.config) for cell in plan]
    known = [forecast.t4_hours + math.fsum(forecast.own_hours.values()) for forecast in forecasts if forecast]
    if not known or len(known) < len(plan):
        return None
    once = [(stage, predict(cell.config)) for stage, cell in shared]
    together = [forecast.shared_hours.get(stage, 0.0) for stage, forecast in once if forecast]
    return math.fsum([*known, unknown * known[0], *together])


def _once(stages: Iterable[tuple[str, Cell]]) -> list[tuple[str, Cell]]:
    """Each stage once for all trials that share it, under the name that a forecast has for it."""
    from pipeline.run.dag import likeness
    from pipeline.stages import STAGES

    found: dict[tuple[str, str], tuple[str, Cell]] = {}
    for stage, cell in stages:
        found.setdefault((stage, likeness(STAGES, cell.config)[stage]), (stage.partition("-")[0], cell))
    return [*found.values()]


def stage_table(planned: Sequence[tuple[Cell, Sequence[StagePlan]]]) -> Table:
    """What will run, and below it what is cached: one row per stage and reason."""
    rows: dict[tuple[bool, str, str], tuple[list[str], dict[object, None]]] = {}
    for cell, stages in planned:
        own = _own(stages)
        for stage_plan in stages:
            labels, keys = rows.setdefault((stage_plan.cached, stage_plan.stage, stage_plan.why), ([], {}))
            labels.append(cell.label)
            # A key that is not known yet is a trial's own, or that of its chain.
            keys[stage_plan.key or (cell.label if stage_plan.stage in own else chain_of(cell.config))] = None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stage", "artifact", "of", "", "because"):
        table.add_column(title)
    # Some trials have stages that others do not have.
    by_length = sorted((stages for _, stages in planned), key=len, reverse=True)
    order = list(dict.fromkeys(stage_plan.stage for stages in by_length for stage_plan in stages))
    for (cached, stage, why), (labels, keys) in sorted(
        rows.items(), key=lambda row: (row[0][0], order.index(row[0][1]))
    ):
        state = Text("cached", style="dim") if cached else Text("will run", style="bold")
        first = next(iter(keys))
        only = first if isinstance(first, str) and first not in labels else "-"
        artifact = f"{len(keys)} artifacts" if len(keys) > 1 else only
        owner = labels[0] if len(labels) == 1 else f"{len(labels)} trials"
        table.add_row(Text(stage), Text(artifact), Text(owner), state, Text(why))
    return table


def _print_budget(console: Console, study: Study, compared: Study, plan: Sequence[Cell], profile: str) -> None:
    """What each arm is predicted to take on a T4, and the whole study; only for a GPU, or where something does not
    fit."""
    by_arm = {cell.arm: cell.config for cell in plan}  # seeds differ in nothing that costs
    if not any(_matters(config, profile) for config in by_arm.values()):
        return
    console.print()
    lines: dict[tuple[str, ...], list[str]] = {}
    for arm in compared.arm_overrides():
        lines.setdefault(tuple(budget_lines(next(cell.config for cell in plan if cell.arm == arm))), []).append(arm)
    for (first, *rest), arms in lines.items():
        console.print(Text("\n".join([f"each trial of {', '.join(arms)}: {first}", *rest])), soft_wrap=True)
    trained = [cell.config for cell in plan if cell.config.algorithm.learns]
    if trained and trained[0].runtime.device == "cuda":
        console.print(variant_table(trained[0]))
    console.print(Text(total_line(study, plan)), soft_wrap=True)


def _matters(config: TrialConfig, profile: str) -> bool:
    """Whether the T4's budget is of interest: where `caps.card` or the profile asks for it, on a GPU, where a trial
    does not fit."""
    if config.caps.card == "t4" or _on_gpu(config, profile):
        return True
    from pipeline.forecast.advice import predict

    forecast = predict(config)
    return forecast is not None and not forecast.fits


def _on_gpu(config: TrialConfig, profile: str) -> bool:
    """Whether the profile is made for the T4, or a trial would run on a GPU."""
    device = config.runtime.device
    return profile.startswith("t4") or device == "cuda" or (device == "auto" and gpu_visible())


def duration(seconds: float) -> str:
    """Rounded for people: seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.3g} h"


def algorithm_lines(plan: Sequence[Cell]) -> Iterator[str]:
    """What the arms' algorithms are made of, one line for each way; nothing where all trials are PPO's."""
    ways: dict[str, list[str]] = {}
    for cell in plan:
        preset = PRESETS[cell.config.algorithm.name]
        settings, learns = dict.fromkeys([*KNOBS, *preset.settings]), cell.config.algorithm.learns
        shown = [key for key in settings if learns or inert(cell.config, key) is None]
        said = [f"{key.removeprefix('algorithm.')} {value_at(cell.config, key)}" for key in shown]
        how = "trained by" if learns else "not trained;"
        arms = ways.setdefault(f"{how} {preset.title}: {', '.join(said)}", [])
        if cell.arm not in arms:
            arms.append(cell.arm)
    if any(cell.config.algorithm.name != "ppo" for cell in plan):
        yield from (f"{', '.join(arms)}: {way}" for way, arms in ways.items())


def reading_lines(plan: Sequence[Cell]) -> Iterator[str]:
    """What it takes to read a response as an image, for the arms that do."""
    from pipeline.forecast.ocr import image_lines

    for cell in plan:
        yield from (f"{cell.arm}: {line}" for line in image_lines(cell.config))


def search_line(study: Study, ended: int) -> str:
    """What a search and its confirmation consist of; `ended` trials of it are recorded."""
    assert study.search is not None
    search, seeds = study.search, ", ".join(map(str, study.search.confirm.seeds))
    runs = (search.confirm.top + 1) * len(search.confirm.seeds)
    return (
        f"search: {search.trials} trials over {', '.join(search.space)} on seed {study.seeds[0]}, {search.parallel}"
        f" proposed at a time ({ended} recorded); confirmation: the best {search.confirm.top} and the baseline on seeds"
        f" {seeds} and fresh held-out prompts, {runs} trials"
    )


def _shared_by(cell: Cell) -> list[str]:
    """Stages of a trial that are not its own."""
    from pipeline.run.dag import stages_of
    from pipeline.stages import STAGES

    names = [stage.name for stage in stages_of(STAGES, cell.config)]
    return [name for name in names if name not in own_stages(names)]


def total_line(study: Study, plan: Sequence[Cell]) -> str:
    """T4-hours of the whole study if nothing of it were cached; a trial that a search has yet to propose counts as its
    baseline does."""
    from pipeline.forecast.advice import hours

    n = trial_count(study)
    once = _once((stage, cell) for cell in plan for stage in _shared_by(cell))
    if n > len(plan) and study.vary:  # the trials of a search have a seed of their own
        once += [(stage.partition("-")[0], plan[0]) for stage in _shared_by(plan[0])]
    expected = _t4_hours(plan, n - len(plan), once)
    return f"{n} trials in all" + (f": {hours(expected)} on a T4 by the roofline" if expected is not None else "")


def budget_lines(config: TrialConfig) -> Iterator[str]:
    """What one trial would need on a T4, in words: whether it fits, of what its memory consists, and what makes it
    fit."""
    from pipeline.forecast.advice import device_of, hours, predict, remedy, too_much
    from pipeline.forecast.policy_shape import assumed_scorers

    budget = predict(config)
    if budget is None:
        yield f"no prediction: the sizes of {config.model.base} are not known before it is loaded"
        return
    fits = "fits" if budget.fits else f"does not fit, {too_much(budget)}"
    where = "on a card" if device_of(config) == "cuda" else "resident on a CPU"
    yield (
        f"{fits}: {hours(budget.t4_hours)} of {budget.cap_hours:g} h on a T4,"
        f" {budget.total_gib:.2f} of {budget.cap_gib:g} GiB {where}, {_millions(budget.trained)} of"
        f" {_millions(budget.parameters)} M parameters trained (predicted)"
    )
    yield "  GiB at the peak of each stage: " + ", ".join(
        f"{stage} {budget.stage_gib(stage):.2f}" for stage in budget.stages
    )
    yield f"  GiB in stage {budget.stage}: " + ", ".join(
        f"{name} {size:.2f}" for name, size in budget.memory_gib.items() if size >= 0.005
    )
    own = budget.hours | budget.own_hours
    yield (
        "  T4: "
        + ", ".join(f"{phase} {hours(spent)}" for phase, spent in own.items())
        + (
            "; plus, once for all trials that share them: "
            + ", ".join(f"{stage} {hours(spent)}" for stage, spent in budget.shared_hours.items())
        )
    )
    if budget.static_hours is not None:
        yield (
            f"  with the static sampler, as on a card, generate is {hours(budget.static_hours)}: predicted, and not in"
            " the sum, since it has not run on a card yet"
        )
    kept = budget.disk.get("checkpoints", 0.0)
    yield (
        f"  disk: {budget.disk_gib:.2f} GiB while it trains, of which checkpoints {kept:.2f};"
        f" {budget.left_gib:.2f} GiB stay, and {budget.shared_disk_gib:.2f} GiB for stages that trials share"
    )
    if assumed := assumed_scorers(config):
        yield (f"  not on this machine: {', '.join(assumed)}; assumed: the size of a base classifier, 125 M parameters")
    if not budget.fits:
        yield f"  {remedy(config)}"


def variant_table(config: TrialConfig) -> Table:
    """What each way to train would take of this trial's budget."""
    from pipeline.forecast.advice import hours, too_much, variants

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("way of training", "training", "all stages", "time on a T4", "trained", ""):
        table.add_column(title, justify="left" if title in ("way of training", "") else "right")
    for name, budget in variants(config).items():
        if budget is not None:
            figures = (
                f"{budget.stage_gib('train'):.2f} GiB",
                f"{budget.total_gib:.2f} GiB",
                hours(budget.t4_hours),
                f"{_millions(budget.trained)} M",
            )
            table.add_row(
                Text(name),
                *figures,
                Text("fits" if budget.fits else too_much(budget), style="" if budget.fits else "yellow"),
            )
    return table


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g}"
