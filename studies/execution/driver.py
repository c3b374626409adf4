"""Runs a study: plans its cells, builds what they share, hands them to an executor, records what comes back.

A search comes before its confirmation; from then on the confirmation is a study like any other.

The driver is the only writer of the study folder. Killing it at any moment loses nothing that was finished:
the same command continues, and a cell that is recorded and whose artifacts are in the store is not run again.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from rich.console import Console

from pipeline.config.trial import flatten
from pipeline.data.files import check_source
from pipeline.errors import Damaged, Fault, UserError
from pipeline.faults import DiskFull, in_words, is_disk_full
from pipeline.run.dag import StagePlan
from pipeline.run.layout import (
    Layout,
    StageRef,
    Status,
    StudyFolder,
    TrialRecord,
    record_text,
    sealed,
    writable,
    write_atomic,
)
from pipeline.run.lost import OWN, own_stages
from pipeline.run.outcome import TrialOutcome
from pipeline.run.store import Artifact, Store
from studies.claims.falsifiers import Verdict
from studies.claims.live import LiveVerdicts
from studies.claims.registration import content_of, is_registered, note, register
from studies.claims.symptoms import health_of
from studies.claims.verdicts import claims_on, of_record, partner, read_series, verdicts
from studies.definition.design import Cell, cautions, cells
from studies.definition.replicates import LINKS, Replicate, chain_of, seeded
from studies.definition.schema import Study
from studies.definition.search import confirmation
from studies.definition.testable import untestable
from studies.execution.display import Display
from studies.execution.executors import Executor
from studies.execution.history import recorded_trainings, training_of
from studies.execution.interim import Interim
from studies.execution.job_folder import sweep
from studies.execution.jobs import Crashed, Event, Finished, Interrupted, Job, Message
from studies.execution.live_health import LiveHealth
from studies.execution.planner import Planner, Ticket, is_settled, remember_settled
from studies.execution.study_lock import only_driver
from studies.tracking.repair import repair, set_database_aside
from studies.tracking.study_runs import StudySinks

if TYPE_CHECKING:
    from studies.execution.tuner import Tuner

TRIALS = "pipeline.trial"
"""The module with `run_trial`, `plan_trial` and `environment`."""
ATTEMPTS = 2


class Plan(Protocol):
    """Who says what is to be run: `Planner` for cells that are known, `studies.execution.tuner.Tuner` for a search."""

    def ask(self) -> Ticket | None: ...
    def tell(self, ticket: Ticket, record: TrialRecord | None) -> None: ...
    def demand(self, cell: Cell) -> None: ...
    def describe(self, ticket: Ticket) -> str | None: ...


@dataclass(frozen=True)
class StudyResult:
    """What a study came to."""

    study: Study
    """As compared: of a search, its confirmation."""
    folder: StudyFolder
    plan: list[Cell]
    records: list[TrialRecord]
    """Of these cells, as configured now."""
    verdicts: list[Verdict]
    report: Path | None


@dataclass
class _Run:
    """One call of `run_study`: what its steps hand on to each other."""

    study: Study
    profile: str
    overrides: Mapping[str, Any]
    layout: Layout
    folder: StudyFolder
    plan: list[Cell]
    """Of the arms that are compared; grows when a search ends."""
    executor: Executor
    trials: str
    module: Any
    display: Display
    sinks: StudySinks
    interim: Interim
    live: LiveVerdicts
    health: LiveHealth = field(default_factory=LiveHealth)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    waiting: list[Ticket] = field(default_factory=list)
    """Asked for, and waiting for what they share with others to be built."""
    building: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Job number -> chain (`studies.definition.replicates.chain_of`) whose shared stages it builds."""
    first_builds: dict[int, set[str]] = field(default_factory=dict)
    """Job number -> keys of the stages that it was the first to build; chains can have some in common."""
    failed_builds: Counter[tuple[int, ...]] = field(default_factory=Counter)
    jobs_of_stages: int = 0
    """Jobs so far that build shared stages; they are numbered downwards from -1."""
    attempts: Counter[tuple[str, int]] = field(default_factory=Counter)
    recorded: set[tuple[str, int]] = field(default_factory=set)
    """Arm and seed of the cells of `plan` that have a record of their configuration."""
    head: str = ""
    """Digest of the last line of the study's registration."""
    interrupted: bool = False
    """A worker was stopped from outside; the other trials go on."""
    told: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    """With what trials compute, as shown already."""

    def shared_plan_of(self, cell: Cell) -> list[StagePlan]:
        """The stages that a cell has in common with others; they are built before trials start side by side."""
        stages: list[StagePlan] = self.module.plan_trial(cell.config, self.layout)
        own = own_stages(stage.stage for stage in stages)
        return list(takewhile(lambda stage: stage.stage not in own, stages))

    def job(self, number: int, label: str, cell: Cell, until: str | None = None) -> Job:
        log = self.folder.path / "log" / f"{self.folder.trial_file(cell.arm, cell.seed).stem}.txt"
        folder = self.folder.job_folder(cell.arm, cell.seed, until)
        return Job(number, label, cell.config, self.layout, f"{self.trials}:run_trial", log, folder, until)


def run_study(
    study: Study,
    layout: Layout,
    profile: str | None,
    overrides: Mapping[str, Any],
    executor: Executor,
    jobs: int,
    console: Console,
    *,
    trials: str = TRIALS,
    after: Callable[[StudyFolder], Path | None] | None = None,
    interim: str | None = None,
) -> StudyResult:
    """Run what is missing of a study with at most `jobs` trials at once, and return all of it.

    `after` may draw a report from the finished folder and return its path; `interim` is the module that is run on the
    folder whenever one more seed is complete (`studies.execution.interim`). Raises `UserError` for what the
    user can put right, and lets `KeyboardInterrupt` through once every trial has been stopped.
    """
    plan = cells(study, profile, overrides)
    chosen = profile or study.profile
    for source in {cell.config.data for cell in plan}:
        check_source(source)  # before anything is written
    writable(layout.root)
    folder = layout.study(study.name, chosen)
    module = importlib.import_module(trials)
    _check_budget([cell for cell in plan if not _is_recorded(folder, cell)], module)
    folder.path.mkdir(parents=True, exist_ok=True)
    with only_driver(folder, study.name):
        environment: dict[str, str] = module.environment()
        display = Display(console, trial_count(study))
        for caution in [*cautions(plan), *untestable(study, plan)]:
            display.line(caution, "yellow")
        repair(folder, lambda message: display.line(message, "yellow"))
        sinks = StudySinks(study, chosen, layout, folder, environment, lambda message: display.line(message, "yellow"))
        looks = Interim(interim, [str(folder.path)], lambda text: display.line(text, "bold"))
        live = LiveVerdicts(study.baseline)
        run = _Run(
            study, chosen, overrides, layout, folder, plan, executor, trials, module, display, sinks, looks, live
        )
        sinks.plan = plan
        _register(run, environment)
        _write_study(run, environment)
        status, report, judged = "interrupted", None, list[Verdict]()
        try:
            searched = _run_search(run, jobs) if study.search else []
            compared = confirmation(study, folder)
            run.plan = sinks.plan = cells(compared, profile, overrides)
            display.total = trial_count(study) if study.search is None else study.search.trials + len(run.plan)
            finished = [cell for cell in run.plan if _finished_record(run, cell)]
            display.recorded(
                len(finished), len(run.plan), "trials" if not study.search else "trials of the confirmation"
            )
            _run_missing(run, compared, finished, jobs)
            sweep(folder.jobs)
            _write_study(run, environment)
            records = current_records(folder, run.plan)
            judged = verdicts(compared, folder, run.plan)
            result = StudyResult(compared, folder, run.plan, records, judged, None)
            looks.close()
            report = after(folder) if after else None
            sinks.sync([*searched, *records])
            status = "complete"
        finally:
            looks.close()
            sinks.close(status, judged, report)
    return replace(result, report=report)


def _check_budget(plan: Sequence[Cell], module: Any) -> None:
    """Refuse the first cell that cannot fit. Raises `UserError`."""
    checked: set[str] = set()
    for cell in plan:
        alike = seeded(cell.config, Replicate(0, 0, 0), tuple(LINKS)).model_dump_json()
        if alike not in checked:
            checked.add(alike)
            module.check_budget(cell.config, cell.label)


def trial_count(study: Study) -> int:
    """Trials in all; of a search, with as many confirmed as it asks for."""
    if study.search is None:
        return len(study.arm_overrides()) * len(study.replicates)
    return study.search.trials + (1 + study.search.confirm.top) * len(study.search.confirm.seeds)


def is_finished(folder: StudyFolder, cell: Cell, stages: Sequence[StagePlan]) -> bool:
    """Whether a cell is recorded as configured now, with every artifact in place. A failed one is tried again."""
    record = folder.record(cell.arm, cell.seed)
    return record is not None and is_current(record, cell, stages)


def is_current(record: TrialRecord, cell: Cell, stages: Sequence[StagePlan]) -> bool:
    """Whether a record is that of a cell as configured now, with every artifact in place."""
    if record.status == "failed" or record.config_digest != cell.config.digest():
        return False
    if not all(stage.cached for stage in stages) or record.stages.keys() != {stage.stage for stage in stages}:
        return False
    refs = {stage.stage: record.stages[stage.stage] for stage in stages}
    return all(
        refs[stage.stage].key == stage.key and refs[stage.stage].digest in (None, stage.digest) for stage in stages
    )


def current_records(folder: StudyFolder, plan: Sequence[Cell]) -> list[TrialRecord]:
    """Records of these cells in their order; those of other configurations are left out."""
    recorded = ((cell, folder.record(cell.arm, cell.seed)) for cell in plan)
    return [record for cell, record in recorded if record is not None and record.config_digest == cell.config.digest()]


def _is_recorded(folder: StudyFolder, cell: Cell) -> bool:
    """Whether a cell has a sound record of its configuration; nothing has set damaged ones aside yet."""
    with suppress(Damaged):
        record = folder.record(cell.arm, cell.seed)
        return record is not None and record.config_digest == cell.config.digest()
    return False


def _finished_record(run: _Run, cell: Cell) -> TrialRecord | None:
    """The record of a cell that has not to be run again."""
    done = is_finished(run.folder, cell, run.module.plan_trial(cell.config, run.layout))
    return run.folder.record(cell.arm, cell.seed) if done else None


def _run_search(run: _Run, jobs: int) -> list[TrialRecord]:
    """Run what is missing of a search, and write what is to be confirmed. Returns the records of its trials."""
    from studies.execution.tuner import Tuner

    tuner = Tuner(run.study, run.profile, run.overrides, run.folder, lambda cell: _finished_record(run, cell))
    first = tuner.ask()
    run.display.recorded(tuner.replayed, run.study.search.trials if run.study.search else 0, "trials of the search")
    if first is not None:
        tuner.demand(first.cell)
        _carry_out(run, tuner, [first.cell], jobs)
    chosen = tuner.close()
    _tell_search(run, tuner, [trial.arm for trial in chosen])
    return tuner.records


def _tell_search(run: _Run, tuner: Tuner, chosen: Sequence[str]) -> None:
    usable = sum(trial.feasible for trial in tuner.trials)
    said = f"search: {len(tuner.trials)} trials, {usable} feasible; "
    if chosen:
        run.display.line(f"{said}to be confirmed on fresh seeds and prompts: {', '.join(chosen)}", "bold")
    else:
        run.display.line(
            f"{said}nothing to confirm but the baseline: widen search.space, or relax search.constraints", "yellow"
        )


def _run_missing(run: _Run, compared: Study, finished: Sequence[Cell], jobs: int) -> None:
    missing = [cell for cell in run.plan if cell not in finished]
    if not missing and is_settled(compared, run.folder, run.plan):
        return
    run.recorded = {(cell.arm, cell.seed) for cell in run.plan if _is_recorded(run.folder, cell)}
    planner = _planner(run, compared)
    _tell_recorded(run, planner, finished)
    for cell in missing:
        planner.demand(cell)
    if missing:
        _check_budget(missing, run.module)
        _carry_out(run, planner, missing, jobs)
    if planner.settled() >= {(cell.arm, cell.seed) for cell in run.plan}:
        remember_settled(compared, run.folder, run.plan)


def _planner(run: _Run, compared: Study) -> Planner:
    """The plan in Optuna; where its file cannot be understood, a new one, told from the records."""
    try:
        return Planner(compared, run.folder, run.plan)
    except Exception as error:  # whatever SQLAlchemy, its migration or Optuna raise for a value that nobody wrote
        if is_disk_full(error) or not run.folder.optuna_file.exists():
            raise
        aside = set_database_aside(run.folder.optuna_file)
        run.display.line(
            f"{run.folder.optuna_file} is damaged: {in_words(error)}; set aside as {aside}; made again from the"
            " records",
            "yellow",
        )
        return Planner(compared, run.folder, run.plan)


def _carry_out(run: _Run, plan: Plan, missing: Sequence[Cell], jobs: int) -> None:
    """Run all that a plan asks for; `missing` are cells of which it is known beforehand."""
    _tell_execution(run, missing)
    if caution := run.module.check_disk([cell.config for cell in missing], jobs, run.layout.root):
        run.display.line(caution, "yellow")
    run.sinks.open()
    run.tickets.clear()
    run.waiting.clear()
    run.building.clear()
    run.first_builds.clear()
    _show_cached(run, missing)
    with run.display:
        run.executor.run(lambda: _next_job(run, plan), jobs, lambda event: _on_event(run, plan, event))
    if run.interrupted:
        raise KeyboardInterrupt


def _tell_execution(run: _Run, missing: Sequence[Cell]) -> None:
    """One line for every device and precision that trials will compute with. Raises `UserError` for a GPU that is not
    there."""
    for execution in dict.fromkeys(tuple(run.module.execution(cell.config).items()) for cell in missing):
        if execution not in run.told:
            run.told.append(execution)
            run.display.line(
                ", ".join(value if key in ("device", "precision") else f"{key} {value}" for key, value in execution),
                "dim",
            )


def _tell_recorded(run: _Run, planner: Planner, finished: Sequence[Cell]) -> None:
    """Let the plan know of cells that were recorded for it, by another design, or just before the driver died."""
    settled = planner.settled()
    news = [cell for cell in finished if (cell.arm, cell.seed) not in settled]
    for cell in news:
        planner.demand(cell)
    while news and (ticket := planner.ask()):
        planner.tell(ticket, run.folder.record(ticket.cell.arm, ticket.cell.seed) if ticket.cell in finished else None)


def _show_cached(run: _Run, missing: Sequence[Cell]) -> None:
    """Name the stages before training that are there already."""
    stages = {stage.key: stage for cell in missing for stage in run.shared_plan_of(cell) if stage.cached}
    for key, stage in stages.items():
        run.display.shared(stage.stage, key or "-")


def _next_job(run: _Run, plan: Plan) -> Job | None:
    """The next trial whose shared stages are built, or else the job that builds those of a chain.

    So a chain is built beside the trials of another one, and no trial builds what a second one builds beside it.
    """
    for ticket in run.waiting:
        if chain_of(ticket.cell.config) in run.building.values():
            continue
        if _is_ready(run, ticket.cell):
            run.waiting.remove(ticket)
            return _trial_job(run, ticket)
        if (job := _shared_job(run, ticket.cell)) is not None:
            return job
    while (asked := plan.ask()) is not None:
        if _is_ready(run, asked.cell):
            return _trial_job(run, asked)
        run.waiting.append(asked)
        if (job := _shared_job(run, asked.cell)) is not None:
            return job
    return None


def _is_ready(run: _Run, cell: Cell) -> bool:
    return all(stage.cached for stage in run.shared_plan_of(cell))


def _trial_job(run: _Run, ticket: Ticket) -> Job:
    run.tickets[ticket.number] = ticket
    _note_begun(run.folder, ticket.cell)
    return run.job(ticket.number, ticket.cell.label, ticket.cell)


def _shared_job(run: _Run, cell: Cell) -> Job | None:
    """What builds the shared stages of a cell; None while its chain, or a stage that it shares with another chain, is
    being built: a process that waited for such a stage would be taken for one that hangs."""
    chain, stages = chain_of(cell.config), run.shared_plan_of(cell)
    missing = {stage.key for stage in stages if stage.key and not stage.cached}
    if chain in run.building.values() or any(missing & begun for begun in run.first_builds.values()):
        return None
    run.jobs_of_stages += 1
    run.building[-run.jobs_of_stages] = chain
    run.first_builds[-run.jobs_of_stages] = missing
    last = stages[-1].stage
    label = f"shared stages of seed {cell.seed}" if run.study.vary else f"shared stages for {cell.label}"
    return run.job(-run.jobs_of_stages, label, cell, until=last)


def _on_shared(run: _Run, event: Event) -> None:
    """A job that builds shared stages: a second attempt is made by the next call of `_next_job`."""
    run.display.handle(event)
    if isinstance(event, Message):
        return
    if isinstance(event, Interrupted):  # the chain counts as being built: nothing of it is begun any more
        run.interrupted = True
        return
    chain = run.building.pop(event.job.number)
    del run.first_builds[event.job.number]
    if isinstance(event, Finished):
        if not event.adopted:
            _check_keys(run, event)
        run.failed_builds.pop(chain, None)  # another arm's shared stages have attempts of their own
        return
    if event.disk_full:
        raise DiskFull(event.reason)
    if event.user_error:
        raise UserError(event.reason)
    run.failed_builds[chain] += 1
    if run.failed_builds[chain] >= ATTEMPTS:
        raise Fault(f"{event.job.label} failed: {event.reason}{_details(event.job)}")


def _check_keys(run: _Run, event: Finished) -> None:
    """Refuse shared stages that a worker has built under other keys than are looked for here: they would be built for
    ever. Raises `UserError`."""
    wanted = {stage.stage: stage.key for stage in run.module.plan_trial(event.job.config, run.layout)}
    for name, artifact in event.outcome.artifacts.items():
        if wanted.get(name) not in (None, artifact.key):
            raise UserError(
                f"{event.job.label}: a worker built {name} as {artifact.key}, and this machine expects {wanted[name]}:"
                " the two compute in different precision, or run different versions of this program; start the command"
                " on a machine with the workers' device and the same code"
            )


def _note_begun(folder: StudyFolder, cell: Cell) -> None:
    """Leave a mark that a trial has begun: from then on its curves can be seen."""
    mark = folder.begun_file(cell.arm, cell.seed)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()


def _on_event(run: _Run, plan: Plan, event: Event) -> None:
    if event.job.number < 0:
        _on_shared(run, event)
        return
    ticket = run.tickets[event.job.number]
    run.display.handle(event)
    run.interim.poll()
    if isinstance(event, Message):
        _on_message(run, ticket.cell, event)
    elif isinstance(event, Finished):
        _on_finished(run, plan, ticket, event)
    elif isinstance(event, Interrupted):  # the plan learns nothing: to the next call it is a trial that never ended
        run.interrupted = True
        run.sinks.leave(ticket.cell.arm, ticket.cell.seed, "interrupted")
    else:
        _on_crash(run, plan, ticket, event)


def _on_finished(run: _Run, plan: Plan, ticket: Ticket, event: Finished) -> None:
    cell = ticket.cell
    record = _record(run, cell, event.outcome)
    if event.adopted and not is_current(record, cell, run.module.plan_trial(cell.config, run.layout)):
        run.display.line(f"{cell.label}: code or store have changed since it was begun; run again", "yellow")
        run.sinks.leave(cell.arm, cell.seed, "interrupted")
        plan.tell(ticket, None)
        plan.demand(cell)
        return
    _write_record(run, record)
    _tell_fallen(run, event.job, record)
    _tell(run, plan, ticket, record)
    run.health.leave(record.arm, record.seed)
    run.display.health(event.job, health_of(run.folder, record))
    run.sinks.end(record)
    _look(run, cell)


def _tell_fallen(run: _Run, job: Job, record: TrialRecord) -> None:
    """Claims that a trial has refuted by its end. The end of the baseline's trial also decides claims that are relative
    to it, on trials that ended before."""
    fallen = of_record(run.study, run.folder, record, run.plan)
    relative = {one.name for one in run.study.falsifiers if one.relative_to}
    if record.arm == run.study.baseline and relative:
        _tell_baseline(run, record.seed)
        others = [cell for cell in run.plan if cell.seed == record.seed and cell.arm != record.arm]
        for other in current_records(run.folder, others):
            waited = of_record(run.study, run.folder, other, run.plan)
            fallen += [verdict for verdict in waited if verdict.name in relative]
    run.display.fallen(job, run.live.news(fallen))


def _tell_baseline(run: _Run, seed: int) -> None:
    """Let running trials be compared with the baseline's series of a seed, once its trial has ended."""
    metrics = _compared_metrics(run.study)
    record = partner(run.study, run.folder, run.plan, seed) if metrics else ""
    if not isinstance(record, str):
        with suppress(Damaged):  # its trial runs again
            series = {metric: read_series(run.folder, record, metric).records for metric in metrics}
            run.live.baseline_ended(seed, series)


def _compared_metrics(study: Study) -> list[str]:
    """Series in which other arms are compared with the baseline."""
    return [one.metric for one in study.falsifiers if one.relative_to and not one.evaluated]


def _look(run: _Run, cell: Cell) -> None:
    """Look at the study when a trial was the last of its seed, unless it was the last of all."""
    chains = {row.number: row.chain for row in run.study.replicates}
    seeds = {chains.get(other.seed, other.seed) for other in run.plan}
    missing = (other.seed for other in run.plan if (other.arm, other.seed) not in run.recorded)
    left = {chains.get(seed, seed) for seed in missing}
    if left and cell in run.plan and chains.get(cell.seed, cell.seed) not in left:
        complete = len(seeds - left)
        if complete > 1:  # one seed decides nothing
            run.interim.look(f"After {complete} of {len(seeds)} seeds (interim, not final)")


def _on_message(run: _Run, cell: Cell, message: Message) -> None:
    if message.kind == "follow":
        path: Path = message.args[0]
        run.sinks.follow(cell.arm, cell.seed, cell.config, path)
        compared = _compared_metrics(run.study) if cell.arm == run.study.baseline else ()
        run.health.follow(cell.arm, cell.seed, path, dict(flatten(cell.config.model_dump(mode="json"))))
        run.live.follow(cell.arm, cell.seed, path, claims_on(run.study, cell.arm), compared)
        if cell.arm != run.study.baseline:
            _tell_baseline(run, cell.seed)
    elif message.kind == "progress":
        run.display.fallen(message.job, run.live.poll(cell.arm, cell.seed))
        if (health := run.health.poll(cell.arm, cell.seed)) is not None:
            run.display.health(message.job, health)


def _tell(run: _Run, plan: Plan, ticket: Ticket, record: TrialRecord | None) -> None:
    plan.tell(ticket, record)
    if line := plan.describe(ticket):
        run.display.line(line)


def _on_crash(run: _Run, plan: Plan, ticket: Ticket, event: Crashed) -> None:
    cell = ticket.cell
    if (
        event.disk_full
    ):  # the plan could not write down that this trial failed, and needs not: the next call goes on with it
        raise DiskFull(event.reason)
    plan.tell(ticket, None)
    run.sinks.leave(cell.arm, cell.seed, "failed")
    if event.user_error:
        raise UserError(f"{cell.label}: {event.reason}")
    run.attempts[cell.arm, cell.seed] += 1
    if run.attempts[cell.arm, cell.seed] < ATTEMPTS:
        run.display.line(f"{cell.label}: tried again{_details(event.job)}", "yellow")
        plan.demand(cell)
        return
    run.display.line(f"{cell.label}: given up after {ATTEMPTS} attempts{_details(event.job)}", "red")
    _write_record(run, _record(run, cell, None, event.reason))


def _details(job: Job) -> str:
    """Where the traceback lies, if the trial came to write one."""
    return f"; details: {job.log}" if job.log.exists() else ""


def _record(run: _Run, cell: Cell, outcome: TrialOutcome | None, reason: str | None = None) -> TrialRecord:
    artifacts = outcome.artifacts if outcome else {}
    return TrialRecord(
        study=run.study.name,
        profile=run.profile,
        arm=cell.arm,
        seed=cell.seed,
        config=cell.config.model_dump(mode="json"),
        config_digest=cell.config.digest(),
        status=cast(Status, outcome.status) if outcome else "failed",
        reason=outcome.reason if outcome else reason,
        steps=outcome.steps if outcome else 0,
        stages={
            name: StageRef(
                key=artifact.key,
                path=_relative(artifact.path, run.layout),
                digest=artifact.digest,
                finished=artifact.finished,
            )
            for name, artifact in artifacts.items()
        },
        summary=dict(outcome.summary) if outcome else {},
        cost=dict(outcome.cost) if outcome else {},
        environment={**run.module.environment(), **(outcome.execution if outcome else {})},
        finished=_finished(list(artifacts.values())),
    )


def _finished(artifacts: Sequence[Artifact]) -> str:
    """When a trial ended: when its last stage was built, so that a record that is written again has the same bytes."""
    last = artifacts[-1].finished if artifacts else None
    return last or datetime.now(UTC).isoformat(timespec="microseconds")


def _write_record(run: _Run, record: TrialRecord) -> None:
    path = run.folder.trial_file(record.arm, record.seed)
    write_atomic(path, record_text(record))
    run.recorded.add((record.arm, record.seed))


def _register(run: _Run, environment: Mapping[str, str]) -> None:
    """Write down the study's claims before a trial begins; only those of a study with a file."""
    if is_registered(run.study):
        content = content_of(run.study, run.profile, run.overrides)
        commit = environment.get("git_commit", "unknown")
        run.head = register(
            content,
            run.folder,
            commit,
            lambda: _known(run),
            lambda message: run.display.line(message, "yellow"),
        )


def _known(run: _Run) -> tuple[list[str], int]:
    """The planned trials, as ``arm/seed``, whose training or evaluation is in the store, from whatever study, or whose
    training a record has, also of other code; and how many have an interrupted training there."""
    found, interrupted, recorded = [], 0, recorded_trainings(run.layout)
    store = Store(run.layout.store)
    for cell in run.plan:
        names = OWN if cell.config.algorithm.learns else {"evaluate"}
        own = [one for one in run.module.plan_trial(cell.config, run.layout) if one.stage in names and one.key]
        if training_of(cell.config) in recorded or any(one.cached for one in own):
            found.append(f"{cell.arm}/{cell.seed}")
        elif any(store.partial(one.stage, str(one.key)).exists() for one in own):
            interrupted += 1
    return found, interrupted


def _write_study(run: _Run, environment: Mapping[str, str]) -> None:
    """What the study was when it was last started. Keys stay in their order, which is the order of the arms."""
    baseline = next(cell for cell in run.plan if cell.arm == run.study.baseline)
    content = {
        "study": run.study.model_dump(mode="json"),
        "source": run.study.source,
        "profile": run.profile,
        "overrides": dict(run.overrides),
        "environment": dict(environment),
        "registration": note(run.folder, run.head) if run.head else {},
        "upstream": _upstream(run, baseline),
    }
    write_atomic(run.folder.study_file, sealed(content))


def _upstream(run: _Run, cell: Cell) -> dict[str, dict[str, str]]:
    """Shared artifacts of the baseline that exist."""
    upstream: dict[str, dict[str, str]] = {}
    for stage in run.shared_plan_of(cell):
        if stage.cached and stage.key:
            upstream[stage.stage] = {
                "key": stage.key,
                "path": _relative(run.layout.store / stage.stage / stage.key, run.layout),
            }
    return upstream


def _relative(path: Path, layout: Layout) -> str:
    return path.relative_to(layout.root).as_posix()
