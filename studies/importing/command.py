"""Trials of a training program of the user's own: run its command, follow its logs, read them as `ablate import` does.

A run has the folder ``commands/KEY/out`` below the output root, which is ``{out}`` in its command and stays for the
user. The store keeps what came of it, a copy of its logs, and its series and outcomes by prompt in our names. Every
process of a run carries the folder's path in its environment, so that all of them are found and ended with it, also
after a kill.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pandas as pd
import psutil

from pipeline.config.trial import canonical_json
from pipeline.errors import Fault, UserError
from pipeline.run import dag
from pipeline.run.layout import Layout
from pipeline.run.metrics import MetricsLog
from pipeline.run.progress import Reporter, TrialOutcome
from pipeline.run.store import Artifact, Store
from pipeline.stopping import Watcher
from studies.definition.trainer import OUT, CommandTrial
from studies.importing.logs import Growing, find_file, read_table
from studies.importing.maps import PROMPT_ID, load_map
from studies.importing.run import lines, write
from studies.importing.trials import ImportedTrial, read_trial

PRELOAD: tuple[str, ...] = ()
STAGES: tuple[dag.Stage, ...] = ()
"""No stage is shared by several trials."""
MARK = "ABLATE_COMMAND"
"""Environment variable of every process of a run: the folder of the run."""
LOOK_SECONDS, GRACE_SECONDS = 2.0, 10.0
"""Seconds between two looks at a run's processes and logs, and from SIGTERM to SIGKILL."""
ROOM, GIB = 2**22, 2**30
"""Bytes that must be free for a failure to be the command's own; bytes of a GiB."""


def run_trial(
    config: CommandTrial, layout: Layout, reporter: Reporter, *, until: str | None = None, wait: bool = True
) -> TrialOutcome:
    """Run the command unless it has run, and read its logs. Raises `Fault` for a command that fails or leaves no log,
    and with ``wait=False`` `BuiltElsewhere`."""
    artifacts = dag.run(_stages(config, layout), config, Store(layout.store, reporter.warn, wait=wait), reporter, until)
    ran, read = artifacts["command"].meta, artifacts["train"].meta
    status, reason = ("diverged", read["diverged"]) if read["diverged"] else (ran["status"], ran["reason"])
    cost = {key: ran[key] for key in ("wall_s", "peak_memory_gib")}
    if config.trainer.evaluation:
        artifacts["evaluate"] = replace(artifacts["train"], stage="evaluate")
    return TrialOutcome(
        artifacts, status, reason, read["steps"], read["summary"], cost, execution(config), ends=read["ends"]
    )


def plan_trial(config: CommandTrial, layout: Layout) -> list[dag.StagePlan]:
    """Return what `run_trial` would build and what it would find; builds nothing."""
    planned = dag.plan(_stages(config, layout), config, Store(layout.store))
    return planned + [replace(planned[-1], stage="evaluate")] * bool(config.trainer.evaluation)


def check_budget(config: CommandTrial, label: str) -> None:
    """Raise `UserError` for a program, a file of code or a map that is not there."""
    if not config.home.is_dir():
        raise UserError(f"trainer.folder: {config.home} is no folder")
    program = config.filled(config.trainer.command, "")[0]
    if shutil.which(config.home / program if "/" in program else program) is None:
        raise UserError(f"trainer.command: no program '{program}' is found (PATH, or {config.home})")
    config.code()
    own = _map(config)[0]
    if own.counts == "updates" and own.steps_per_update is None:
        names = config.trainer.logs.names
        raise UserError(
            f"trainer.logs.names: {names} counts updates; name a .yaml file with"
            f" {{program: {own.program or names}, steps_per_update: N}} (epochs x mini-batches)"
        )


def execution(config: CommandTrial) -> dict[str, str]:
    """Device, threads and program of a run."""
    device = f"{config.trainer.gpus} GPU{'s' * (config.trainer.gpus > 1)}" if config.trainer.gpus else "cpu"
    return {"device": device, "threads": str(config.trainer.threads), "program": Path(config.words[0]).name.strip("{}")}


def environment() -> dict[str, str]:
    """Python and platform here; the versions that a trainer imports are its own."""
    return {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}


def _map(config: CommandTrial) -> tuple[Any, dict[str, Any]]:
    names = config.trainer.logs.names
    return load_map(str(config.folder / names) if names.endswith((".yaml", ".yml")) else names)


def _stages(config: CommandTrial, layout: Layout) -> list[dag.Stage]:
    """Our own code is no part of their keys: a new version of this program trains nothing of the user's again."""
    rules = [rule.model_dump(mode="json") for rule in config.stop]
    files = {f"code {name}": digest for name, digest in config.code().items()}
    run_with = {"words": canonical_json(config.words), "stop": canonical_json(rules), **files}
    logs = config.trainer.logs.files, config.trainer.evaluation, config.window
    run, read = partial(_command, config, layout), partial(_train, config, layout)
    return [
        dag.Stage("command", run, (), outside=lambda _: run_with, unfinished=_unfinished, resumable=True),
        dag.Stage("train", read, (), outside=lambda _: {"logs": canonical_json((*logs, _map(config)[1]))}),
    ]


def _unfinished(config: CommandTrial, artifact: Artifact) -> str | None:
    """A cap that ended the run has been raised."""
    if (cap := artifact.meta["cap"]) and getattr(config.trainer, cap[0]) > cap[1]:
        return f"trainer.{cap[0]} was raised from {cap[1]:g}"
    return None


def _command(config: CommandTrial, layout: Layout, _: Any, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Run the command to its end. What it prints goes where this process prints: into the trial's log."""
    folder, resume = layout.root / "commands" / out.name, config.trainer.resume
    end_all(folder)
    more = resume.add if resume and any((folder / OUT).glob(resume.if_)) else ()
    if not more:
        shutil.rmtree(folder, ignore_errors=True)
    (folder / OUT).mkdir(parents=True, exist_ok=True)
    words = config.filled([*config.trainer.command, *more], str((folder / OUT).absolute()))
    environment = {**os.environ, MARK: str(folder), "OMP_NUM_THREADS": str(config.trainer.threads)}
    environment |= {} if config.trainer.gpus else {"CUDA_VISIBLE_DEVICES": ""}
    follow, began, peak = _follow(config, folder, reporter), time.time(), 0.0
    status, reason, cap, code = "", None, None, None
    print("$", subprocess.list2cmdline(words), flush=True)
    with ExitStack() as last, _ended_with_us(folder):
        process = subprocess.Popen(
            words, cwd=config.home, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
        last.callback(process.wait)
        while not status:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(LOOK_SECONDS)
                break
            memory = sum(process.info["memory_info"].rss for process in processes(folder)) / GIB
            used, peak = {"wall_clock_h": (time.time() - began) / 3600, "memory_gib": memory}, max(peak, memory)
            for name, value in used.items():
                if value > (most := getattr(config.trainer, name)):
                    status, reason, cap = "budget", f"trainer.{name}: {value:.3g} of {most:g}", (name, most)
            if not status and (reason := next(follow)):
                status = "pruned"
    if code and not _diverged(config, folder):
        with TemporaryFile(dir=folder) as probe:
            probe.write(bytes(ROOM))  # raises `OSError` where a full disk may have ended the command
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise Fault(f"the command {killed}: {subprocess.list2cmdline(words)}")
    status, seconds = status or ("diverged" if code else "complete"), time.time() - began
    _logs(config, folder, evaluated=status == "complete")
    return {"status": status, "reason": reason, "cap": cap, "wall_s": seconds, "peak_memory_gib": peak}


def processes(folder: Path) -> Iterator[psutil.Process]:
    """Yield the processes of a run, wherever they have moved."""
    for process in psutil.process_iter(["environ", "memory_info"]):  # None where it has ended, or is another user's
        if (process.info["environ"] or {}).get(MARK) == str(folder) and process.info["memory_info"]:
            yield process


def end_all(folder: Path) -> None:
    """End all processes of a run: by SIGTERM, at last by SIGKILL."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for process in processes(folder):
            with suppress(psutil.Error):
                process.send_signal(signum)
        deadline = time.monotonic() + GRACE_SECONDS
        while next(processes(folder), None) and time.monotonic() < deadline:  # zombies count as ended
            time.sleep(0.05)


def _die_with_parent() -> None:
    """Have the command end with its parent even where that is killed; without Linux it ends at the next start."""
    if hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@contextmanager
def _ended_with_us(folder: Path) -> Iterator[None]:
    """End the run with this block, also where SIGTERM ends this process."""

    def leave(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    finally:
        end_all(folder)
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _follow(config: CommandTrial, folder: Path, reporter: Reporter) -> Iterator[str | None]:
    """Read the log of a run while it grows, and write the records that are complete to a file of our own: at each step
    the new ones. Yields the rule that they break, in words. Raises `OSError` for a full disk."""
    log, own, watcher, path, last = Growing(), _map(config)[0], Watcher(config.stop), folder / "live.jsonl", -1
    while True:
        began, new = time.monotonic(), pd.DataFrame()
        with suppress(UserError, Fault, OSError):  # no record yet, or half of one
            file = _logs(config, folder, evaluated=False)[0]
            trial = read_trial(("", config.seed), pd.concat({file.name: log.rows(file)}), own)
            table = pd.DataFrame(trial.series).sort_index()
            new = table[table.index > last].iloc[:-1]  # the last record may still grow
        if len(new):
            with MetricsLog(path, path.stat().st_size if last >= 0 else 0) as records:
                for step, row in zip(map(int, new.index), new.to_dict("records"), strict=True):
                    values = {str(ours): value for ours, value in row.items() if not np.isnan(value)}
                    records.append(step, values)
                    watcher.observe(step, values)
            if last < 0:
                reporter.follow(path)
            last = step
            reporter.metrics(last, values)
            if steps := config.trainer.steps:
                reporter.progress("train", min(trial.steps, steps), steps)
        rested = time.monotonic() + 10 * (time.monotonic() - began)  # at most a tenth of a core
        yield watcher.broken()
        while time.monotonic() < rested:
            yield None


def _logs(config: CommandTrial, folder: Path, *, evaluated: bool) -> list[Path]:
    """The log of a run, and its table of an evaluation. Raises `Fault` where there is none, of the table only where the
    run has `evaluated`."""
    named = [config.trainer.logs.files, *([(config.trainer.evaluation,)] if config.trainer.evaluation else ())]
    found = [find_file(folder / OUT, patterns) for patterns in named]
    if None in found[: 1 + evaluated]:
        raise Fault(f"the command left no file {' or '.join(named[found.index(None)])} in {folder / OUT}")
    return [file for file in found if file]


def _read(config: CommandTrial, folder: Path, *, evaluated: bool) -> tuple[ImportedTrial, list[Path]]:
    """The trial in the logs of a run, and these. Raises `UserError`, and `Fault` for a missing file."""
    files = _logs(config, folder, evaluated=evaluated)
    rows = {file.relative_to(folder / OUT).as_posix(): read_table(file) for file in files}
    return read_trial(("", config.seed), pd.concat(rows), _map(config)[0]), files


def _diverged(config: CommandTrial, folder: Path) -> bool:
    """Return whether the log of a run ends in values that are not finite."""
    with suppress(UserError, Fault, OSError):
        return bool(_read(config, folder, evaluated=False)[0].diverged)
    return False


def _train(
    config: CommandTrial, layout: Layout, _: Any, out: Path, reporter: Reporter, *, command: Artifact
) -> dict[str, Any]:
    """Read the logs, and keep a copy of them."""
    folder = layout.root / "commands" / command.key
    try:
        trial, files = _read(config, folder, evaluated=command.meta["status"] == "complete")
    except UserError as error:
        raise Fault(str(error)) from None
    for file in (file for file in files if file.is_file()):
        copy = out / "logs" / file.relative_to(folder / OUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    if config.trainer.evaluation and trial.prompts is None:  # the run was ended before its evaluation
        trial.prompts = pd.DataFrame({PROMPT_ID: pd.Series(dtype="int64")})
    write(trial, out)
    for line in lines(trial.problems):
        reporter.warn(line)
    ends = trial.ends(config.window)
    return {"steps": trial.steps, "diverged": trial.diverged, "summary": trial.summary, "ends": ends}
