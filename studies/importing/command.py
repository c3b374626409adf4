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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from pipeline.config.trial import canonical_json
from pipeline.errors import Fault, UserError
from pipeline.intervals import last_tenth
from pipeline.run import dag
from pipeline.run.layout import Layout
from pipeline.run.metrics import MetricsLog
from pipeline.run.progress import Reporter, TrialOutcome
from pipeline.run.store import Artifact, Store
from pipeline.stopping import Watcher
from studies.definition.trainer import OUT, CommandTrial
from studies.importing.logs import find_file, read_table
from studies.importing.maps import load_map
from studies.importing.run import lines, write
from studies.importing.trials import ImportedTrial, read_trial

PRELOAD: tuple[str, ...] = ()
STAGES: tuple[dag.Stage, ...] = ()
"""No stage is shared by several trials."""
MARK = "ABLATE_COMMAND"
"""Environment variable of every process of a run: the folder of the run."""
LOOK_SECONDS, GRACE_SECONDS = 2.0, 10.0
"""Seconds between two looks at a run's processes and logs, and from SIGTERM to SIGKILL."""
GIB = 2**30


def run_trial(
    config: CommandTrial, layout: Layout, reporter: Reporter, *, until: str | None = None, wait: bool = True
) -> TrialOutcome:
    """Run the command unless it has run, and read its logs. Raises `Fault` for a command that fails or leaves no log,
    and with ``wait=False`` `BuiltElsewhere`."""
    artifacts = dag.run(_stages(config, layout), config, Store(layout.store, reporter.warn, wait=wait), reporter, until)
    ran, read = artifacts["command"].meta, artifacts["train"].meta
    status, reason = ("diverged", read["diverged"]) if read["diverged"] else (ran["status"], ran["reason"])
    cost = {key: ran[key] for key in ("wall_s", "peak_memory_gib")}
    return TrialOutcome(
        artifacts, status, reason, read["steps"], read["summary"], cost, execution(config), ends=read["ends"]
    )


def plan_trial(config: CommandTrial, layout: Layout) -> list[dag.StagePlan]:
    """Return what `run_trial` would build and what it would find; builds nothing."""
    return dag.plan(_stages(config, layout), config, Store(layout.store))


def check_budget(config: CommandTrial, label: str) -> None:
    """Raise `UserError` for a program, a file of code or a map that is not there."""
    if not config.home.is_dir():
        raise UserError(f"trainer.folder: {config.home} is no folder")
    program = config.filled(config.trainer.command, "")[0]
    if shutil.which(program) is None and not os.access(config.home / program, os.X_OK):
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


@lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """What is known of the machine; the versions that a trainer imports are its own."""
    return {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}


def _map(config: CommandTrial) -> tuple[Any, dict[str, Any]]:
    names = config.trainer.logs.names
    return load_map(str(config.folder / names) if names.endswith((".yaml", ".yml")) else names)


def _stages(config: CommandTrial, layout: Layout) -> list[dag.Stage]:
    """Our own code is no part of their keys: a new version of this program trains nothing of the user's again."""

    def run_with(_: CommandTrial) -> dict[str, str]:
        rules = [rule.model_dump(mode="json") for rule in config.stop]
        return {"words": canonical_json(config.words), "stop": canonical_json(rules), **config.code()}

    def read_with(_: CommandTrial) -> dict[str, str]:
        logs = config.trainer.logs.files, config.trainer.evaluation, config.window, _map(config)[1]
        return {"logs": canonical_json(logs)}

    stages = [
        dag.Stage(
            "command", partial(_command, config, layout), (), outside=run_with, unfinished=_unfinished, resumable=True
        ),
        dag.Stage("train", partial(_train, config, layout), (), outside=read_with),
    ]
    return stages + [dag.Stage("evaluate", _evaluate, ())] * (config.trainer.evaluation is not None)


def _unfinished(config: CommandTrial, artifact: Artifact) -> str | None:
    """A cap that ended the run has been raised."""
    cap = artifact.meta["cap"]
    larger = cap and getattr(config.trainer, cap[0]) > cap[1]
    return f"trainer.{cap[0]} was raised from {cap[1]:g}" if larger else None


@dataclass
class _Run:
    """What is known of a run so far; `status` is empty while it goes on."""

    status: str = ""
    reason: str | None = None
    cap: tuple[str, float] | None = None
    wall_s: float = 0.0
    peak_memory_gib: float = 0.0
    began: float = field(default_factory=time.time)


def _command(config: CommandTrial, layout: Layout, _: Any, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Run the command to its end. What it prints goes where this process prints: into the trial's log."""
    folder = layout.root / "commands" / out.name
    resume = config.trainer.resume
    end_all(folder)
    again = resume is not None and any((folder / OUT).glob(resume.if_))
    if not again:
        shutil.rmtree(folder, ignore_errors=True)
    (folder / OUT).mkdir(parents=True, exist_ok=True)
    words = [*config.trainer.command, *(resume.add if resume and again else ())]
    words = config.filled(words, str((folder / OUT).absolute()))
    environment = {**os.environ, MARK: str(folder), "OMP_NUM_THREADS": str(config.trainer.threads)}
    environment |= {} if config.trainer.gpus else {"CUDA_VISIBLE_DEVICES": ""}
    follow, run = _Follower(config, folder, reporter), _Run()
    print("$", subprocess.list2cmdline(words), flush=True)
    with _ended_with_us(folder):
        process = subprocess.Popen(
            words, cwd=config.home, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
        while not run.status:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                break
            _check_caps(config, folder, run)
            if broken := follow.look():
                run.status, run.reason = "pruned", broken
    code = process.wait()
    run.wall_s = time.time() - run.began
    if not run.status and code:
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if not follow.diverged():
            raise Fault(f"the command {killed}: {subprocess.list2cmdline(words)}")
    _files(config, folder, evaluation=not (run.status or code))
    run.status = run.status or "complete"
    return asdict(run)


def _check_caps(config: CommandTrial, folder: Path, run: _Run) -> None:
    """Note memory, and a cap that is reached."""
    memory = 0
    for process in processes(folder):
        with suppress(psutil.Error):
            memory += process.memory_info().rss
    run.peak_memory_gib = max(run.peak_memory_gib, memory / GIB)
    hours = (time.time() - run.began) / 3600
    for cap, value, unit in (("wall_clock_h", hours, "hours"), ("memory_gib", memory / GIB, "GiB")):
        if value > (most := getattr(config.trainer, cap)):
            run.status, run.cap = "budget", (cap, most)
            run.reason = f"trainer.{cap}: {value:.3g} of {most:g} {unit}"


def processes(folder: Path) -> Iterator[psutil.Process]:
    """Yield the processes of a run, wherever they have moved."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(folder):
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


class _Follower:
    """Reads the logs of a run while they grow, and writes the records that are complete to a file of our own."""

    def __init__(self, config: CommandTrial, folder: Path, reporter: Reporter) -> None:
        self._config, self._folder, self._reporter = config, folder, reporter
        self._watcher, self._path, self._last, self._next = Watcher(config.stop), folder / "live.jsonl", -1, 0.0

    def look(self) -> str | None:
        """Take over new records; returns the rule that they break, in words."""
        if time.monotonic() < self._next:
            return None
        began = time.monotonic()
        with suppress(UserError, Fault, OSError):  # no record yet, or half of one
            self._take(_read(self._config, self._folder, evaluation=False))
        self._next = time.monotonic() + 10 * (time.monotonic() - began)  # at most a tenth of a core
        return self._watcher.broken()

    def _take(self, trial: ImportedTrial) -> None:
        table = pd.DataFrame(trial.series).sort_index()
        new = table[table.index > self._last].iloc[:-1]  # the last record may still grow
        if new.empty:
            return
        with MetricsLog(self._path, self._path.stat().st_size if self._last >= 0 else 0) as log:
            for step, row in zip(new.index, new.to_dict("records"), strict=True):
                values = {str(ours): value for ours, value in row.items() if not np.isnan(value)}
                log.append(int(step), values)
                self._watcher.observe(int(step), values)
        if self._last < 0:
            self._reporter.follow(self._path)
        self._last = int(new.index[-1])
        self._reporter.metrics(self._last, values)
        if self._config.trainer.steps:
            self._reporter.progress("train", min(trial.steps, self._config.trainer.steps), self._config.trainer.steps)

    def diverged(self) -> bool:
        """Return whether the log ends in values that are not finite."""
        with suppress(UserError, Fault, OSError):
            return bool(_read(self._config, self._folder, evaluation=False).diverged)
        return False


def _files(config: CommandTrial, folder: Path, *, evaluation: bool) -> list[Path]:
    """The log of a run, and its table of an evaluation. Raises `Fault` where the run left none."""
    named = [config.trainer.logs.files]
    named += [(config.trainer.evaluation,)] if evaluation and config.trainer.evaluation else []
    found = list[Path]()
    for patterns in named:
        if (file := find_file(folder / OUT, patterns)) is None:
            raise Fault(f"the command left no file {' or '.join(patterns)} in {folder / OUT}")
        found.append(file)
    return found


def _read(config: CommandTrial, folder: Path, *, evaluation: bool) -> ImportedTrial:
    """The trial in the logs of a run. Raises `UserError`, and `Fault` for a missing file."""
    files = _files(config, folder, evaluation=evaluation)
    rows = {file.relative_to(folder / OUT).as_posix(): read_table(file) for file in files}
    return read_trial(("", config.seed), pd.concat(rows), _map(config)[0])


def _train(
    config: CommandTrial, layout: Layout, _: Any, out: Path, reporter: Reporter, *, command: Artifact
) -> dict[str, Any]:
    """Read the logs, and keep a copy of them."""
    folder = layout.root / "commands" / command.key
    try:
        trial = _read(config, folder, evaluation=find_file(folder / OUT, (str(config.trainer.evaluation),)) is not None)
    except UserError as error:
        raise Fault(str(error)) from None
    for name in trial.origin["file"].split(", "):
        if (folder / OUT / name).is_file():
            (out / "logs" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / OUT / name, out / "logs" / name)
    write(trial, out)
    for line in lines(trial.problems):
        reporter.warn(line)
    end = last_tenth if config.window == "last_tenth" else lambda values: float(values[-1])
    ends = {ours: end(np.asarray(series, dtype=np.float64)) for ours, series in trial.series.items()}
    return {"steps": trial.steps, "diverged": trial.diverged, "summary": trial.summary, "ends": ends}


def _evaluate(_: Any, out: Path, reporter: Reporter, *, train: Artifact) -> dict[str, Any]:
    """The outcomes by prompt, which the logs were read with."""
    if (train.path / "prompts.parquet").exists():
        shutil.copyfile(train.path / "prompts.parquet", out / "prompts.parquet")
    else:  # the run was ended before its evaluation
        pd.DataFrame({"prompt_id": pd.Series(dtype="int64")}).to_parquet(out / "prompts.parquet", index=False)
    return {"summary": train.meta["summary"]}
