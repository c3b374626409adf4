"""Run a study from its start to its report: pin it, set hands to work, watch them, and sum up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from rich.console import Console

from pipeline.config.names import nearest
from pipeline.data.files import check_source
from pipeline.errors import UserError
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, writable
from studies.claims.falsifiers import Verdict
from studies.claims.verdicts import verdicts
from studies.definition.design import Cell, cautions
from studies.definition.schema import Study
from studies.definition.testable import untestable
from studies.execution.agenda import Agenda
from studies.execution.display import Display
from studies.execution.hand import Hand, Hands, Inline, Say
from studies.execution.ray_tasks import Ray
from studies.execution.records import sound_record
from studies.execution.search import write_optuna
from studies.execution.slurm import Slurm, read_options
from studies.execution.started import Started, join, module_of, shared_of, start
from studies.execution.watch import Watch
from studies.tracking.sync import Background, Synced, View, sync

WAIT_SECONDS = 0.2
"""Seconds between two looks at children and statuses."""


Left = Literal["nothing", "some", "all"]
"""Trials left when a hand's work ends: "some" after it got further with some, "all" if with none."""
Hire = Callable[[Started, Agenda, Say], Hands]
"""A function that makes the hands of a study."""
LOCAL = ("processes", "inline")
"""Each trial in a child of this process; one trial after the other in this process, for debuggers."""
CLUSTERS = ("slurm", "ray")
"""Jobs of SLURM, or tasks on a Ray cluster, that each take trials."""
CLUSTER_JOBS = 32
"""Hands on a cluster, without ``--jobs``."""


@dataclass(frozen=True)
class StudyResult:
    """The result of a study."""

    study: Study
    """The study as compared: of a search, its confirmation."""
    folder: StudyFolder
    plan: list[Cell]
    records: list[TrialRecord]
    """Records of these cells, as configured now."""
    verdicts: list[Verdict]
    report: Path | None


def run_study(
    study: Study,
    layout: Layout,
    profile: str | None,
    overrides: Mapping[str, Any],
    hire: Hire,
    jobs: int,
    console: Console,
    *,
    trials: str | None = None,
    after: Callable[[StudyFolder], Path | None] | None = None,
) -> StudyResult:
    """Run the missing trials of a study, `jobs` at once, and return all of it; other hands may be at work on it.

    `after` may draw a report from the finished folder and return its path. Raises `UserError` for what the user can put
    right, and lets `KeyboardInterrupt` through once every trial has been stopped.
    """
    chosen = profile or study.profile
    run = Started(study, chosen, overrides, layout, layout.study(study.name, chosen), trials or module_of(study))
    plan = run.cells()
    own = run.own_cells()
    for source in {cell.config.data for cell in own}:
        check_source(source)  # before anything is written
    writable(layout.root)
    _check_budget(run, plan)
    display = Display(console, trial_count(study))

    def warn(text: str) -> None:
        display.line(text, "yellow")

    for caution in [*cautions(own), *untestable(study, own)]:
        warn(caution)
    with start(run, warn):
        agenda = Agenda(run)
        watch = Watch(run, agenda, display)
        tracking = Background(_sender(run, agenda), watch.running, warn)
        try:
            watch.begin()
            if agenda.is_left():
                _work(run, agenda, watch, display, tracking, hire)
            if agenda.search is not None:
                display.line(*agenda.search.summary(agenda.plan))
            records = [agenda.settled[cell.arm, cell.seed] for cell in agenda.plan]
            judged = verdicts(agenda.compared, run.folder, agenda.plan)
            search = agenda.search
            write_optuna(agenda.compared, run.folder, agenda.plan, records, lambda: search.optuna if search else None)
            with FileLock(run.folder.lock_file("report")):
                report = after(run.folder) if after else None
            tracking.end("complete", verdicts=judged)
        except BaseException:
            tracking.end("interrupted")
            raise
    return StudyResult(agenda.compared, run.folder, agenda.plan, records, judged, report)


def work(layout: Layout, name: str, profile: str, jobs: int, say: Say, *, stop: Callable[[], bool]) -> Left:
    """Work on a study that was started elsewhere, until nothing is left or others run all that is left.

    Once `stop` returns true, takes no further task, and ends when those that it has do.
    """
    with join(layout, name, profile) as run:
        agenda = Agenda(run)
        hand = Hand(run, agenda, jobs, say, share_gpus=False)
        try:
            while hand.step():
                hand.leaving = hand.leaving or stop()
                if not hand.busy and (hand.leaving or agenda.is_elsewhere()):
                    return "some" if hand.advanced else "all"
                hand.wait(WAIT_SECONDS)
        except KeyboardInterrupt:
            return "some" if hand.advanced else "all"
        finally:
            hand.close()
    return "nothing"


def _work(run: Started, agenda: Agenda, watch: Watch, display: Display, tracking: Background, hire: Hire) -> None:
    """Let hands run all missing trials, and watch them."""
    missing = agenda.open()
    for execution in dict.fromkeys(tuple(run.module.execution(cell.config).items()) for cell in missing):
        named = [value if key in ("device", "precision") else f"{key} {value}" for key, value in execution]
        display.line(", ".join(named), "dim")
    cached = {stage.key: stage for cell in missing for stage in shared_of(run.stages(cell)) if stage.cached}
    for key, stage in cached.items():
        display.line(f"{stage.stage:<9} cached ({key})", "dim")
    hands = hire(run, agenda, display.line)
    hands.on_status = watch.poll
    tracking.begin()
    with display.live:
        try:
            while hands.step():
                watch.poll()
                if agenda.plan:  # of a search, how many it confirms is known now
                    display.total = (run.study.search.trials if run.study.search else 0) + len(agenda.plan)
                hands.wait(WAIT_SECONDS)
            watch.look()
        finally:
            hands.close()


def _sender(run: Started, agenda: Agenda) -> Callable[..., Synced | None]:
    """Return a function that sends the study to MLflow as it is at each call."""
    environment: dict[str, str] = run.module.environment()
    return lambda **how: sync(View(run.study, run.profile, run.layout, run.folder, agenda.plan, environment), **how)


def _check_budget(run: Started, plan: Sequence[Cell]) -> None:
    """Refuse the first trial that has to run and cannot fit. Raises `UserError`."""
    missing = {cell.arm: cell for cell in plan[::-1] if sound_record(run.folder, cell) is None}  # seeds fit alike
    for cell in [*missing.values()][::-1]:
        run.module.check_budget(cell.config, cell.label)


def trial_count(study: Study) -> int:
    """Number of trials in all; of a search, with all those that it will confirm."""
    if study.search is None:
        return len(study.arm_overrides()) * len(study.seeds)
    return study.search.trials + (1 + study.search.confirm.top) * len(study.search.confirm.seeds)


def executor(name: str, jobs: int, options: Path | None = None) -> Hire:
    """Return a function that hires `jobs` hands of a name, with the options of sbatch in a file. Raises `UserError`
    with the names that exist."""
    names = [*LOCAL, *CLUSTERS]
    if name not in names:
        raise UserError(f"no executor '{name}'{nearest(name, names)}; there are: {', '.join(names)}")
    if options is not None and name != "slurm":
        raise UserError(f"--cluster {options}: the executor '{name}' has no options; those of sbatch go with slurm")
    given = read_options(options)
    hires: dict[str, Hire] = {
        "processes": lambda run, agenda, say: Hand(run, agenda, jobs, say),
        "inline": Inline,
        "slurm": lambda run, agenda, say: Slurm(run, agenda, jobs, given, say),
        "ray": lambda run, agenda, say: Ray(run, agenda, jobs, say),
    }
    return hires[name]
