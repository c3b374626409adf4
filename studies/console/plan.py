"""The plan of a study: trials to run and their time, cached stages with the reason, and the cost on a T4."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.config.effects import value_at
from pipeline.config.trial import TrialConfig
from pipeline.errors import Damaged, UserError
from pipeline.resources.machine import GIB
from pipeline.run.dag import StagePlan, likeness
from pipeline.run.layout import Layout, TrialRecord
from pipeline.stages.graph import STAGES
from studies.claims.forecast import Values, dead_groups, detectable, spread
from studies.console import cli
from studies.console.summary import table
from studies.definition.design import Cell, cautions, cells
from studies.definition.schema import Study
from studies.definition.search import confirmation, load
from studies.definition.testable import untestable
from studies.execution.recorded import own_stages
from studies.execution.started import Started, module_of
from studies.execution.study import trial_count

Planned = Sequence[tuple[Cell, Sequence[StagePlan]]]
Runs = list[tuple[str, Cell]]
"""Stages that will run, each with a trial that has it."""
MACHINE = ("platform", "device")
"""Keys of a trial's environment on which its speed depends."""
ACCURACIES = (0.2, 0.4, 0.6)
"""Accuracies of a reference that is not built yet, for which dead groups are forecast."""
FOUR_MODELS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("four_models.yaml").read_text("utf-8"))
"""Bytes of each parameter of the four networks of RLHF, by the assumptions of common tables."""


def print_plan(
    console: Console,
    study: Study,
    profile: str | None,
    overrides: Mapping[str, Any],
    layout: Layout,
    *,
    trials: str | None = None,
) -> None:
    """Print the number of trials to run and their time, each stage and its reason, and a T4's budget for what is left.

    Builds nothing. Raises `UserError` where a stage that has to run lacks data or a model; the budget, which needs
    neither, is printed even then.
    """
    chosen = profile or study.profile
    folder = layout.study(study.name, chosen)
    folder.started()
    folder.records()  # report a damaged file before anything else is printed
    compared = confirmation(study, folder)
    plan = cells(compared, profile, overrides)
    run = Started(study, chosen, overrides, layout, folder, trials or module_of(study))
    if study.trainer is not None:
        return _print_commands(console, run, plan)
    idle = False
    try:
        planned, idle, words = _ahead(run, plan)
        console.print(Text(words, "bold"))
        for caution in [*cautions(plan), *untestable(compared, plan)]:
            cli.say(console, caution, "yellow")
        console.print()
        console.print(stage_table(planned))
        _print_forecast(console, planned, compared, chosen, layout)
    finally:
        if not idle:  # a forecast needs torch
            _print_budget(console, study, compared, plan)


def outlook(study: Study, profile: str | None, layout: Layout) -> str:
    """Return how many trials of a study have yet to run, and their time."""
    chosen = profile or study.profile
    run = Started(study, chosen, {}, layout, layout.study(study.name, chosen), module_of(study))
    return _ahead(run, cells(confirmation(study, run.folder), profile, {}))[2]


def _ahead(run: Started, plan: Sequence[Cell]) -> tuple[Planned, bool, str]:
    """Return the stages of each trial, whether nothing will run, and in words how many trials will, with their time."""
    study, layout = run.study, run.layout
    planned = [(cell, run.stages(cell)) for cell in plan]
    ended = len((load(study, run.folder) or {}).get("trials", [])) if study.search else 0
    total = trial_count(study)
    own, shared = runs(planned)
    unknown = total - len(plan) - ended
    left = [cell for stage, cell in own if stage.startswith("train")] + [plan[0]] * unknown
    beside = [stage for stage, _ in (*own, *shared) if not stage.startswith("train")] + ["evaluate"] * unknown
    time = _time(left, beside, _records(layout, run.profile, _machine(run.module, plan)), layout) if left else ""
    return planned, not (own or shared or unknown), headline(own, shared, unknown, total) + time


def _print_commands(console: Console, run: Started, plan: Sequence[Cell]) -> None:
    """Print the commands of a study's trainer that will run, and why."""
    planned = {cell.label: run.stages(cell)[0] for cell in plan}
    run.module.check_budget(plan[0].config, plan[0].label)
    left = sum(not stage.cached for stage in planned.values())
    words = f"{left} of {len(plan)} commands will run" if left else f"Nothing will run: all {len(plan)} are cached"
    console.print(Text(words, "bold"))
    shown = table("run", "state", "command", left=(0, 1, 2))
    for cell in plan:
        stage, command = planned[cell.label], shlex.join(cast(Any, cell.config).words)
        shown.add_row(*map(Text, (cell.label, "cached" if stage.cached else f"will run: {stage.why}", command)))
    console.print(shown)


def _machine(module: Any, plan: Sequence[Cell]) -> dict[str, str]:
    """Platform and device of this machine, as records name them; no device where the configuration's is not here."""
    with suppress(UserError):
        return {**module.environment(), **module.execution(plan[0].config)}
    return dict(module.environment())


def runs(planned: Planned) -> tuple[Runs, Runs]:
    """The stages that will run, each once: the trials' own, then those before the training, which trials share."""
    own, shared = dict[tuple[str, str], tuple[str, Cell]](), dict[tuple[str, str], tuple[str, Cell]]()
    for cell, stages in planned:
        alike = likeness(STAGES, cell.config)
        mine = own_stages(alike)
        for one in stages:
            if not one.cached:
                found = own if one.stage in mine else shared
                found.setdefault((one.stage, alike[one.stage]), (one.stage, cell))
    return [*own.values()], [*shared.values()]


def headline(own: Runs, shared: Runs, unknown: int, total: int) -> str:
    """Return how many of all trials will run; `unknown`: those that a search has yet to propose."""
    n = len({cell.label for _, cell in own}) + unknown
    again = " and ".join(dict.fromkeys(stage for stage, _ in shared))
    if not n and not shared:
        return f"Nothing will run: all {total} trials are cached"
    return f"{n} of {total} trials will run" + ("" if n else f", but {again} will be built again")


def _records(layout: Layout, profile: str, machine: Mapping[str, str]) -> list[TrialRecord]:
    """The sound records of trials of a profile, in any study, that were trained on such a machine."""
    found = [one for _, records in _recorded(layout, profile) for one in records]
    trained = [one for one in found if one.steps and "wall_s" in one.cost]
    return [one for one in trained if all(one.environment.get(key) == machine.get(key) for key in MACHINE)]


def _recorded(layout: Layout, profile: str) -> Iterator[tuple[str, list[TrialRecord]]]:
    """The baseline of each study of a profile, and its sound records."""
    for path in sorted(layout.root.glob(f"studies/*/{profile}/study.json")):
        folder, found = layout.study(path.parent.parent.name, profile), list[TrialRecord]()
        for file in folder.trial_files():
            with suppress(Damaged):  # a command that needs it names it
                found.append(folder.read(file))
        with suppress(Damaged):
            yield folder.started()["study"]["baseline"], found


def _time(left: Sequence[Cell], beside: Sequence[str], measured: Sequence[TrialRecord], layout: Layout) -> str:
    """Estimate the time of these trainings, of which a trial with rounds has several, and of the other stages `beside`
    them, from what earlier trials took."""
    configs = [cell.config for cell in left]
    if not measured:
        profile = configs[0].profile
        return f"; how long that takes is not known yet: no trial of profile {profile} has been measured here"
    jobs = min(cli.default_jobs(configs[0]), math.ceil(math.fsum(1 / config.rounds for config in configs)))
    steps = math.fsum(config.gradient_steps / config.rounds for config in configs)
    each = math.fsum(one.cost["wall_s"] for one in measured) / sum(one.steps for one in measured)
    trials = f"{len(measured)} earlier trial{'s' * (len(measured) > 1)}"
    took = _stage_seconds(measured, layout)
    seconds = each * steps + math.fsum(took.get(stage, 0.0) for stage in beside)
    return f", about {duration(seconds / jobs)} in all (measured on {trials}; {jobs} at once)"


def _stage_seconds(measured: Sequence[TrialRecord], layout: Layout) -> dict[str, float]:
    """Mean wall clock of each stage but the training, over the artifacts of some trials."""
    took = dict[str, list[float]]()
    for stage, path in {(stage, ref.path) for one in measured for stage, ref in one.stages.items()}:
        with suppress(OSError, ValueError, KeyError):
            seconds = float(json.loads((layout.root / path / "log" / "cost.json").read_text("utf-8"))["wall_s"])
            took.setdefault(stage, []).append(seconds)
    return {stage: math.fsum(times) / len(times) for stage, times in took.items()}


def stage_table(planned: Planned) -> Table:
    """Table of the stages that will run, and below them the cached ones: one row per stage and reason."""
    rows: dict[tuple[bool, str, str], tuple[list[str], dict[str, str | None]]] = {}
    for cell, stages in planned:
        alike = likeness(STAGES, cell.config)
        for one in stages:
            labels, keys = rows.setdefault((one.cached, one.stage, one.why), ([], {}))
            labels.append(cell.label)
            keys[alike[one.stage]] = one.key
    # Some trials have stages that others do not have.
    by_length = sorted((stages for _, stages in planned), key=len, reverse=True)
    order = list(dict.fromkeys(one.stage for stages in by_length for one in stages))
    shown = table("stage", "artifact", "of", "", "because", left=range(5))
    for (cached, stage, why), (labels, keys) in sorted(
        rows.items(), key=lambda row: (row[0][0], order.index(row[0][1]))
    ):
        artifact = f"{len(keys)} artifacts" if len(keys) > 1 else next(iter(keys.values())) or "-"
        owner = labels[0] if len(labels) == 1 else f"{len(labels)} trials"
        state = Text("cached", style="dim") if cached else Text("will run", style="bold")
        shown.add_row(Text(stage), Text(artifact), Text(owner), state, Text(why))
    return shown


def _print_forecast(console: Console, planned: Planned, study: Study, profile: str, layout: Layout) -> None:
    """Print the share of dead groups of each arm that compares responses, where answers can be checked, and the
    difference that the seeds can detect."""
    built, lines = dict[str, list[Path]](), dict[str, list[str]]()
    for cell, stages in planned:
        compares = ADVANTAGES[cell.config.algorithm.advantage].least_responses > 1
        for one in stages if compares and cell.config.reward.kind == "verifier" else ():
            if one.stage == "reference" and (one.cached or not value_at(cell.config, "reward.verifier.sound_steps")):
                path = layout.store / one.stage / f"{one.key}" / "draws.parquet"
                built.setdefault(cell.arm, []).extend([path] if one.cached and path.exists() else [])
    configs = {cell.arm: cell.config for cell, _ in planned}
    for arm, paths in built.items():
        lines.setdefault(dead_line(configs[arm], paths), []).append(arm)
    console.print()
    for line, arms in lines.items():
        cli.say(console, f"{', '.join(arms)}: {line}")
    if (seeds := len({cell.seed for cell, _ in planned})) > 1:
        metric, shown = study.objective.metric, list[tuple[str, Values]]()
        for baseline, records in _recorded(layout, profile):
            known = {(one.arm, one.seed): {**one.ends, **one.summary}.get(metric) for one in records}
            shown.append((baseline, {trial: value for trial, value in known.items() if value is not None}))
        cli.say(console, detection_line(metric, seeds, spread(shown)))


def dead_line(config: TrialConfig, paths: Sequence[Path]) -> str:
    """Forecast the share of dead groups from the draws of the references that are built."""
    import pyarrow.parquet as pq

    train, shares = config.train, list[tuple[float, float]]()
    groups = f"groups of {train.responses_per_prompt} start dead (equal scores)"
    if not paths:
        size, verifier = train.responses_per_prompt, value_at(config, "reward.verifier")
        accepted = [p * (1 - verifier.false_negative) + (1 - p) * verifier.false_positive for p in ACCURACIES]
        formula = [q**size + (1 - q) ** size for q in accepted]
        least, right = (", ".join(f"{100 * one:.0f} %" for one in some) for some in (formula, ACCURACIES))
        return (
            f"at least {least} of {groups} if {right} of the reference's answers are right; more where prompts differ"
        )
    for path in paths:
        found = pq.read_table(path, columns=["proxy", "eos"]).to_pydict()
        scores, ended = np.array(found["proxy"]), np.array(found["eos"])
        if train.missing_eos == "replace":
            scores = np.where(ended, scores, -train.missing_eos_penalty)
        grid = scores.reshape(-1, config.evaluate.reference_draws)
        shares.append(dead_groups(grid, train.responses_per_prompt))
    low, high = (f"{100 * one:.0f}" for one in np.mean(shares, axis=0))
    share = f"{low} %" if low == high else f"{low} to {high} %"
    return f"{share} of {groups}, by {grid.shape[1]} draws of the reference for each of {len(grid)} prompts"


def detection_line(metric: str, seeds: int, known: tuple[float, int] | None) -> str:
    """State the difference from the baseline that so many seeds detect; `known`: that of `spread`."""
    least, test = detectable(seeds), "paired t-test over seeds, two-sided 5 %, power 80 %, before Holm's correction"
    unit = f"{least:.2f} standard deviations of a difference between seeds"
    if known is None:
        return f"{seeds} seeds detect {unit} in {metric} ({test}); no earlier trials give its size here"
    size, free = known
    return (
        f"{seeds} seeds detect a difference of {least * size:.3g} in {metric} ({test}): {unit}, which is {size:.3g} in"
        f" earlier trials of this profile ({free} degrees of freedom)"
    )


def _print_budget(console: Console, study: Study, compared: Study, plan: Sequence[Cell]) -> None:
    """Print the predicted time and memory of each arm, and the time of the study, on a T4."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for arm in compared.arm_overrides():  # seeds differ in nothing that costs
        lines.setdefault(tuple(budget_lines(next(cell.config for cell in plan if cell.arm == arm))), []).append(arm)
    console.print()
    for (first, *rest), arms in lines.items():
        cli.say(console, "\n".join([f"each trial of {', '.join(arms)}: {first}", *rest]))
    cli.say(console, total_line(study, plan))


def duration(seconds: float) -> str:
    """Rounded for people: seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.3g} h"


def total_line(study: Study, plan: Sequence[Cell]) -> str:
    """T4-hours of the whole study if nothing of it were cached; a trial that a search has yet to propose counts as its
    baseline does."""
    from pipeline.forecast.advice import hours, own_others, predict

    n, once = trial_count(study), dict[tuple[str, object], TrialConfig]()
    known, trained = list[float](), set[str]()
    for cell in plan:
        if (forecast := predict(cell.config)) is None:
            return f"{n} trials in all"
        alike = likeness(STAGES, cell.config)
        shared = alike.keys() - own_stages(alike)
        once |= {(stage, alike[stage]): cell.config for stage in shared if (stage, alike[stage]) not in once}
        if n > len(plan) and study.vary:  # the trials of a search have a seed of their own
            once |= {(stage, "search"): plan[0].config for stage in shared if cell is plan[0]}
        # Arms that are only judged in different ways share a training.
        training = 0.0 if alike["train"] in trained else forecast.t4_hours
        trained.add(alike["train"])
        known.append(training + math.fsum(forecast.other_hours[stage] for stage in own_others(cell.config)))
    together = [
        forecast.other_hours.get(stage.partition("-")[0], 0.0)
        for (stage, _), config in once.items()
        if (forecast := predict(config))
    ]
    expected = math.fsum([*known, (n - len(plan)) * known[0], *together])
    return f"{n} trials in all: {hours(expected)} on a T4 by the roofline"


def budget_lines(config: TrialConfig) -> Iterator[str]:
    """Lines on one trial's needs on a T4: whether it fits, the parts of its memory, and changes that make it fit."""
    from pipeline.forecast.advice import hours, own_others, predict, remedy
    from pipeline.forecast.memory import on_card

    def times(spent: Mapping[str, float]) -> str:
        return ", ".join(f"{phase} {hours(one)}" for phase, one in spent.items())

    budget = predict(config)
    if budget is None:
        yield f"no prediction: the sizes of {config.model.base} are not known before it is loaded"
        return
    fits = "fits" if budget.fits else "does not fit"
    own = own_others(config)
    where = "on a card" if on_card(config) else "resident on a CPU"
    peaks, most = budget.peaks, max(budget.stages, key=budget.peaks.__getitem__)
    largest = ", ".join(f"{name} {size:.2f}" for name, size in budget.stages[most].items() if size >= 0.005)
    yield (
        f"{fits}: {hours(budget.t4_hours)} of {budget.caps.wall_clock_h:g} h on a T4,"
        f" {budget.total_gib:.2f} of {budget.caps.memory_gib:g} GiB {where}, {budget.trained / 1e6:.3g} of"
        f" {budget.parameters / 1e6:.3g} M parameters trained (predicted)"
    )
    yield f"  GiB at the peak of each stage: {', '.join(f'{stage} {size:.2f}' for stage, size in peaks.items())}"
    yield f"  GiB in stage {most}: {largest}"
    each = budget.hours | {stage: budget.other_hours[stage] for stage in own}
    once = {stage: spent for stage, spent in budget.other_hours.items() if stage not in own}
    yield f"  T4: {times(each)}; plus, once for all trials that share them: {times(once)}"
    if not budget.fits:
        yield f"  {remedy(config)}"


def parameters_of(size: str) -> float:
    """The number of parameters of a size. Raises `UserError` for any other text.

    >>> parameters_of("0.5b")
    500000000.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])", size, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise UserError(f"--memory '{size}' is no size such as 7B or 350M")
    return float(found[1]) * {"M": 1e6, "B": 1e9}[found[2].upper()]


def print_memory(console: Console, model: str) -> None:
    """Print the memory of the four networks, one row for each way to hold them. Raises `UserError`."""
    parameters = parameters_of(model)
    shown = table(f"GiB, {parameters / 1e9:.3g} B parameters each", *FOUR_MODELS["networks"], "together")
    for title, each in FOUR_MODELS["bytes"].items():
        sizes = (parameters * width / GIB for width in (*each, sum(each)))
        shown.add_row(Text(title), *(f"{size:.3g}" if size else "-" for size in sizes))
    console.print(shown)
    cli.say(
        console,
        "Weights, gradients and the optimiser's state alone: activations, the cache of sampling and logits come on top."
        " Adapters: 1 % of a network's parameters. With one, the reference is the policy without it. What a trial of"
        " this pipeline takes in all: ablate plan STUDY.",
    )
