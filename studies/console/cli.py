"""The commands that run, plan, judge and show studies; `ablate.py` mounts them. Imports nothing heavy itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.config.names import SYMBOLS
from pipeline.errors import FAULT, INTERRUPTED, Fault, UserError
from pipeline.named_files import place
from pipeline.wording import control_character, printable
from studies.hints import command

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.config.trial import TrialConfig
    from pipeline.run.layout import Layout, StudyFolder
    from studies.definition.schema import Study

StudyArgument = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A study's name, or the path of a YAML file; NAME+confirm: its confirmation on fresh seeds.",
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help=(
            "Profile to use instead of the study's own: tiny, smoke, long, chains, tiny-ocr, t4, t4-256 or"
            " t4-rehearsal."
        ),
    ),
]
RunProfileOption = Annotated[
    str | None, typer.Option("--profile", help="Profile of the study, if it was run on more than one.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help=f"Change a key for every trial: section.key=value; repeatable. Symbols of papers work too: {SYMBOLS}.",
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Output root; default $ABLATE_HOME, else ./outputs.")]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        help="Trials at once; default: CPU cores / threads per trial, or GPUs / processes per trial; 32 with slurm and"
        " ray.",
    ),
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor",
        help="processes: each trial in its own process; inline: all in this one; slurm: each trial a job of SLURM; ray:"
        " each trial a worker on a Ray cluster.",
    ),
]
ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="YAML file with options of sbatch, such as account."),
]

Report = Callable[["Study", "StudyFolder"], Path | None]
Judge = Callable[["StudyFolder", "Study"], dict[str, Any]]
_report: Report | None = None
_judge: Judge | None = None


def report_with(report: Report, judge: Judge | None = None) -> None:
    """Set the functions of the layer above that draw the report of a finished study and judge its hypotheses."""
    global _report, _judge
    _report, _judge = report, judge


def study(
    name: StudyArgument,
    profile: ProfileOption = None,
    settings: SetOption = None,
    jobs: JobsOption = None,
    executor: ExecutorOption = "processes",
    cluster: ClusterOption = None,
    out: OutOption = None,
) -> None:
    """Run or continue a study; finished trials are not repeated."""
    from pipeline.config.loading import parse_set
    from pipeline.run.layout import Layout
    from studies.definition.schema import load_study

    _run(load_study(name), Layout.at(out), profile, parse_set(settings or []), jobs, executor, cluster)


def work(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="Name of a started study.")],
    profile: RunProfileOption = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Trials at once.")] = 1,
    out: OutOption = None,
) -> None:
    """Take trials of a started study, until nothing is left.

    Any number of these, on any machines that share --out, work on one study. SIGUSR1 or SIGTERM lets each trial write
    its checkpoint first, SIGTERM after that ends them at once. Exit code 75: trials are left; 76: none came further.
    """
    from pipeline.run.layout import Layout
    from pipeline.run.progress import LEFT, NO_FURTHER, ask_to_leave, asked_to_leave, can_be_asked
    from studies.execution.recorded import study_folder
    from studies.execution.study import work as take

    layout, console = Layout.at(out), terminal()
    folder = study_folder(layout, name, profile, started=True)

    def leave(number: int, frame: object) -> None:
        if number == signal.SIGTERM and asked_to_leave():
            raise KeyboardInterrupt
        ask_to_leave()

    with can_be_asked(folder.path / "leave"):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, leave)
        study, on = folder.path.parent.name, folder.path.name
        left = take(layout, study, on, jobs, partial(say, console), stop=asked_to_leave)
        if left != "nothing" and asked_to_leave():
            raise typer.Exit(LEFT if left == "some" else NO_FURTHER)


def run(
    profile: Annotated[str, typer.Option("--profile", help="Profile of the trial.")] = "tiny",
    settings: SetOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of training.")] = 0,
    executor: ExecutorOption = "processes",
    cluster: ClusterOption = None,
    out: OutOption = None,
) -> None:
    """Run one trial, recorded as study `single`."""
    from pipeline.config.loading import parse_set
    from pipeline.run.layout import Layout
    from studies.definition.schema import single

    _run(single(profile, parse_set(settings or []), seed), Layout.at(out), profile, {}, 1, executor, cluster)


def plan(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="A study's name, or a YAML file's path; leave it out with --memory."),
    ] = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Instead of a study: what four networks of a size, such as 7B, take.",
        ),
    ] = None,
    out: OutOption = None,
) -> None:
    """Show what would run, how long it takes, what is cached.

    Also why, and whether a trial fits the budget.
    """
    if (name is None) == (memory is None):
        raise UserError("plan takes either a study or --memory SIZE, such as --memory 7B")
    if memory is not None:
        if profile is not None or settings:
            raise UserError("--memory is about a model size, not a study: leave out --profile and --set")
        from studies.console.plan import print_memory

        return print_memory(terminal(), memory)
    assert name is not None
    from pipeline.config.loading import parse_set
    from pipeline.run.layout import Layout
    from studies.console.plan import print_plan
    from studies.definition.schema import load_study

    return print_plan(terminal(), load_study(name), profile, parse_set(settings or []), Layout.at(out))


def new_study(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study; its file is NAME.yaml.")],
    design: Annotated[
        str,
        typer.Option(
            "--design", help="arms, grid, factors (one at a time), search, or command (a trainer of your own)."
        ),
    ] = "arms",
    folder: Annotated[Path, typer.Option("--folder", help="Folder for the new file.")] = Path(),
) -> None:
    """Write a commented study file to start from, NAME.yaml.

    An existing file is not overwritten.
    """
    from studies.definition.authoring import new_study as write

    path = write(name, design, place(folder))
    print(printable(f"{path}\nEdit it, then: ablate plan {path.stem if path.parent == Path.cwd() else path}"))


def falsify(
    name: StudyArgument,
    profile: ProfileOption = None,
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
    out: OutOption = None,
) -> None:
    """Judge a study's hypotheses and falsifiers on its records. Exit code: 0 all supported and survived, 1 refuted or
    falsified, 3 undecided or not tested, 4 damaged records."""
    from pipeline.config.loading import parse_set
    from pipeline.run.layout import Layout
    from studies.claims.badges import standing
    from studies.claims.falsifiers import exit_code, overall
    from studies.claims.verdicts import evidence, stages_read, verdicts
    from studies.console.summary import print_hypotheses, print_verdicts
    from studies.definition.design import planned
    from studies.definition.schema import load_study
    from studies.definition.search import confirmation
    from studies.execution.recorded import refuse_lost

    raw, layout = load_study(name), Layout.at(out)
    folder = layout.study(raw.name, profile or raw.profile)
    chosen = confirmation(raw, folder)
    started = folder.started()
    overrides = parse_set(settings) if settings else started.get("overrides", {})
    claims = standing(raw, folder, profile or raw.profile, overrides)
    plan = planned(chosen, profile, overrides)
    refuse_lost(folder, evidence(chosen, folder, plan), stages_read(chosen.falsifiers))
    judged = verdicts(chosen, folder, plan)
    found = _judge(folder, raw) if _judge and raw.hypotheses and started else {}
    outcome = overall(judged)
    if as_json:
        content = {
            "study": chosen.name,
            "outcome": outcome,
            "verdicts": [asdict(verdict) for verdict in judged],
            "badges": {kind: str(badge) for kind, badge in claims.badges().items()},
            "withdrawn": claims.withdrawn,
            **found,
        }
        print(json.dumps(content, indent=2))
    else:
        console = terminal()
        print_hypotheses(console, claims, found)
        print_verdicts(console, chosen, judged, claims)
        if not started:
            say(console, f"{chosen.name} has never been run here ({folder.path}); start with: ablate study {name}")
    parts = [one["outcome"] for one in found.get("hypotheses", [])]
    raise typer.Exit(exit_code([*parts, *([outcome] if judged or not parts else [])]))


def import_command(
    folder: Annotated[Path, typer.Argument(help="Logs by arm and seed (ARM/seed_N.jsonl, ...), or one table.")],
    name: Annotated[str, typer.Option(help="Name or path of the study; NAME.yaml is written if it does not exist.")],
    map_: Annotated[str, typer.Option("--map", help="trl-ppo, trl-grpo, trl-rloo, verl, openrlhf, plain, or a .yaml.")],
    steps_per_update: Annotated[int | None, typer.Option(min=1, help="Gradient steps (epochs x mini-batches).")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Keep the trials of this import alone.")] = False,
    out: OutOption = None,
) -> None:
    """Import training logs and per-prompt results of other programs, such as TRL, verl and OpenRLHF.

    Logs are JSON, JSON lines, CSV or parquet.
    """
    from pipeline.run.layout import Layout
    from studies.importing.run import import_folder

    _, lines = import_folder(folder, name, Layout.at(out), map_, steps_per_update, replace=replace)
    for line in lines:
        say(terminal(), line)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="STUDY/ARM/SEED, for example kl_ablation/beta_0.05/10.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    profile: RunProfileOption = None,
    out: OutOption = None,
) -> None:
    """Write a trained policy as a plain model folder: safetensors, tokenizer, generation settings and a model card."""
    from pipeline.run.layout import Layout
    from studies.execution.export import export as write

    print(printable(f"Exported: {write(run, folder, Layout.at(out), profile)}"))


def score(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Parquet, CSV or JSONL with the columns prompt and completion."),
    ],
    reward: Annotated[
        str,
        typer.Option(
            "--reward",
            help="STUDY/ARM/SEED: its training reward; or lexicon, grammar; or the folder of a sequence classifier.",
        ),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="File to create, of FILE's format; default: a.scored.csv beside a.csv.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option("--judge", help="Adds the column gold: the judge of STUDY/ARM/SEED, or as --reward.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="Output of a classifier that has several.")] = None,
    profile: RunProfileOption = None,
    out: OutOption = None,
) -> None:
    """Score a file of prompts and completions.

    Writes the file again with the columns reward, reward/<part> and gold; other columns stay.
    """
    from pipeline.models.process import quiet_libraries
    from pipeline.run.layout import Layout
    from studies.execution.score import score_file

    quiet_libraries()
    notify = partial(say, terminal())
    written = score_file(file, reward, to, Layout.at(out), judge, profile, label, notify)
    print(printable(f"Scored: {written}"))


def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
    out: OutOption = None,
) -> None:
    """Serve the runs with MLflow on this machine until Ctrl-C."""
    from pipeline.run.layout import Layout
    from studies.tracking.ui import serve

    serve(Layout.at(out), port)


def serve(
    what: Annotated[
        str,
        typer.Argument(metavar="TRIAL", help="A trial (STUDY/ARM/SEED), or the folder of an exported policy."),
    ],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8000,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; any other opens it to other machines.")
    ] = "127.0.0.1",
    profile: RunProfileOption = None,
    out: OutOption = None,
) -> None:
    """Serve a policy over HTTP, also while it trains, until Ctrl-C.

    OpenAI's completions, and a page to look at. CPU threads: OMP_NUM_THREADS, else 1.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported, and by every thread of its own

    from pipeline.run.layout import Layout
    from studies.serving.app import serve as answer

    answer(what, Layout.at(out), port, host, profile)


def sync(name: StudyArgument, profile: ProfileOption = None, out: OutOption = None) -> None:
    """Bring MLflow and optuna.db up to date with a study's records."""
    from pipeline.run.layout import Layout
    from studies.claims.verdicts import verdicts
    from studies.definition.design import planned
    from studies.definition.schema import load_study
    from studies.definition.search import confirmation
    from studies.execution.search import searched, write_optuna
    from studies.tracking.sync import View
    from studies.tracking.sync import sync as send

    chosen, layout, console = load_study(name), Layout.at(out), terminal()
    on = profile or chosen.profile
    folder = layout.study(chosen.name, on)
    started, records = folder.started(), folder.records()
    if not records:
        raise UserError(f"{folder.path} has no finished trial to send; start with: ablate study {name}")
    compared, overrides = confirmation(chosen, folder), started.get("overrides", {})
    plan = planned(compared, on, overrides)
    sent = send(
        View(chosen, on, layout, folder, plan, records[0].environment),
        partial(say, console, style="yellow"),
        status="complete",
        verdicts=verdicts(compared, folder, plan),
    )
    if sent is None:
        raise UserError(f"another process is sending the records of {chosen.name} to MLflow; wait for it")
    wanted = {(cell.arm, cell.seed) for cell in plan}
    known = [record for record in records if (record.arm, record.seed) in wanted]
    write_optuna(compared, folder, plan, known, partial(searched, chosen, on, overrides, folder))
    if not sent.complete:
        raise typer.Exit(FAULT)
    which = f"all {len(known)}" if len(known) == len(plan) else f"{len(known)} of {len(plan)}"
    say(console, f"MLflow has {which} trials of {chosen.name}; {sent.metrics_sent} metrics were sent now")


def _run(
    chosen: Study,
    layout: Layout,
    profile: str | None,
    overrides: dict[str, Any],
    jobs: int | None,
    executor: str,
    cluster: Path | None,
) -> None:
    from pipeline.run.layout import read_json
    from studies.claims.badges import standing
    from studies.claims.symptoms import by_arm, health_of
    from studies.console.summary import print_health, print_hypotheses, print_study, print_verdicts
    from studies.definition.design import cells
    from studies.execution.study import CLUSTER_JOBS, CLUSTERS, run_study
    from studies.execution.study import executor as executor_of

    console = terminal()
    on_cluster = executor in CLUSTERS
    usual = CLUSTER_JOBS if on_cluster else default_jobs(cells(chosen, profile, overrides)[0].config)
    try:
        result = run_study(
            chosen,
            layout,
            profile,
            overrides,
            executor_of(executor, jobs or usual, cluster),
            jobs or usual,
            console,
            after=lambda folder: _draw(chosen, folder, console),
        )
    except KeyboardInterrupt:
        say(console, "interrupted; the same command continues")
        raise typer.Exit(INTERRUPTED) from None
    claims = standing(chosen, result.folder, profile or chosen.profile, overrides)
    found: dict[str, Any] = {}
    with suppress(Fault):
        found = read_json(result.folder.claims_file) if chosen.source and result.report else {}
    print_study(console, result.study, result.plan, result.records, found.get("arms"))
    print_health(console, by_arm({(one.arm, one.seed): health_of(result.folder, one) for one in result.records}))
    if chosen.source:
        print_hypotheses(console, claims, found)
        print_verdicts(console, result.study, result.verdicts, claims)
        console.print()
    change = f"Change the study: edit {chosen.source}" if chosen.source else "Change the trial: other --set values"
    say(console, f"Report:  {result.report}" if result.report else f"Records: {result.folder.path}")
    say(console, f"MLflow:  {command('ui')}\n{change}, and run the same command: only what changed runs again")
    failed = len(result.records) < len(result.plan) or any(record.status == "failed" for record in result.records)
    if failed or (_report and chosen.source and result.report is None):
        raise typer.Exit(FAULT)


def _draw(chosen: Study, folder: StudyFolder, console: Console) -> Path | None:
    """Draw the report; a fault in it must not hide the study's end, so it goes to a file whose path is shown."""
    from studies.execution.records import is_newer
    from studies.faults import explained, is_disk_full

    if _report is None or not chosen.source:
        return None
    if is_newer(folder, page := folder.report / "index.html") and folder.claims_file.exists():
        return page
    try:
        return _report(chosen, folder)
    except Exception as error:
        if is_disk_full(error):
            raise
        say(console, f"the report could not be drawn: {explained(error, folder.path)}", "red")
        return None


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text that is not folded, and in which nothing is markup."""
    from rich.text import Text

    console.print(Text(text, style), soft_wrap=True)


def terminal() -> Console:
    """Standard output; wide where it is no terminal, so that tables in a log file are not folded."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """Styles are added to the text rendered here; other control characters come from people's own text."""
            for segment in super().render(renderable, options):
                own = segment.control is not None or not control_character(segment.text)
                yield segment if own else Segment(printable(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which means FALSIFIED

    console = Terminal()
    return console if console.is_terminal or "COLUMNS" in os.environ else Terminal(width=180)


def default_jobs(config: TrialConfig) -> int:
    """Trials at once: one for each share of the usable cores, or of the visible GPUs where trials use them."""
    from pipeline.resources.machine import visible_gpus

    if config.runtime.device != "cpu" and (gpus := len(visible_gpus())):
        return max(1, gpus // config.runtime.processes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // config.runtime.threads)
