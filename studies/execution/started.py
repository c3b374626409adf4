"""The start of a study: its claims registered, and all that its hands must agree on pinned in `study.json`.

`ablate study` pins; every hand works from what is pinned. While a hand is at work, a start with other settings, another
program or another precision is refused: hands that disagree would call each other's records stale for ever.

Locks (`flock`) must be refused while another process holds them, on any machine, and end with their holder. Local file
systems, NFS version 4, and version 3 with its lock daemon, offer them, unless they are mounted with locks that end at
the machine.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.config.trial import canonical_json
from pipeline.errors import Damaged, UserError
from pipeline.run.dag import StagePlan
from pipeline.run.layout import Layout, StudyFolder, read_sealed, sealed, set_aside, write_changed
from pipeline.run.store import is_held, try_lock
from pipeline.stages.sources import precision
from studies.claims.registration import content_of, is_registered, register
from studies.definition.design import Cell, cells, check_own, own_digests
from studies.definition.schema import Study
from studies.definition.search import SEARCH
from studies.execution.recorded import own_stages
from studies.execution.status import read_status

HOME = Path(__file__).parents[2]
"""Folder of the packages of this program."""
PACKAGES = ("pipeline", "studies/execution")
"""Packages that compute a trial and carry it out."""
LOOK_SECONDS = 3.0
"""Seconds to watch the status of a trial whose lock looks free; a trial at work renews its own every second."""
TRIALS, COMMANDS = "pipeline.trial", "studies.importing.command"
"""The modules with `run_trial`, `plan_trial`, `check_budget`, `execution`, `environment`, `STAGES` and `PRELOAD`: of
our own trials, and of those of a study's trainer."""
PINNED = {
    "study": "another study file",
    "overrides": "other --set values",
    "program": "another version of the program",
    "precision": "another device or precision",
    "trials": "another kind of trial",
    "own": "another version of a class of its own",
}
"""Keys of `study.json` that all hands of a study share -> the difference, in words."""


def module_of(study: Study) -> str:
    """Name of the module of a study's trials."""
    return TRIALS if study.trainer is None else COMMANDS


@dataclass(frozen=True)
class Started:
    """A study that has been started; the same for all its hands."""

    study: Study
    profile: str
    overrides: Mapping[str, Any]
    layout: Layout
    folder: StudyFolder
    trials: str = TRIALS

    @property
    def module(self) -> Any:
        """The module of the trials."""
        return importlib.import_module(self.trials)

    def cells(self) -> list[Cell]:
        """All trials whose configuration is known before anything has run."""
        return cells(self.study, self.profile, self.overrides)

    def own_cells(self) -> list[Cell]:
        """All trials that have a configuration of ours: none where another program trains."""
        return [] if self.study.foreign else self.cells()

    def stages(self, cell: Cell) -> list[StagePlan]:
        """Stages of a trial, and which of them are in the store."""
        planned: list[StagePlan] = self.module.plan_trial(cell.config, self.layout)
        return planned


@lru_cache(maxsize=1)
def code_digest() -> str:
    """SHA-256 of the program's source files: paths below `HOME`, and contents."""
    files = sorted(path for package in PACKAGES for path in (HOME / package).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(HOME).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def python_path() -> str:
    """``PYTHONPATH`` for a hand on another machine: this program first, then the variable's value here."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(HOME), *filter(None, given)]))


@contextmanager
def start(run: Started, say: Callable[[str], None]) -> Iterator[None]:
    """Pin a study, or join the hands that are at work on it; afterwards, count as one of them.

    Claims are registered before a trial begins. Trials that were given up are tried again, unless other hands are at
    work. Raises `UserError` where hands work with other settings, or where their locks are not seen here.
    """
    check_own(run.study, {cell.arm: cell.config for cell in run.own_cells()})
    wanted, folder = _pinned(run), run.folder
    folder.path.mkdir(parents=True, exist_ok=True)
    check_locks(folder)
    with ExitStack() as presence:
        with FileLock(folder.path / ".start.lock"):
            if at_work(folder):
                _refuse(run, wanted)
            else:
                _pin(run, wanted, say)
            presence.enter_context(present(folder))
        yield


@contextmanager
def join(layout: Layout, name: str, profile: str) -> Iterator[Started]:
    """Work on a study that was started, as one of its hands. Raises `UserError` where this machine would work with
    other settings, or does not see the locks of the others."""
    folder = layout.study(name, profile)
    content = folder.started()
    if "program" not in content:
        raise UserError(
            f"study '{name}' has not been started on profile '{profile}' in {layout.root}; start it with: ablate study"
            f" {name}"
        )
    study = Study.model_validate({**content["study"], "source": content["source"]})
    run = Started(study, profile, content["overrides"], layout, folder, content["trials"])
    check_locks(folder)
    with ExitStack() as presence:
        with FileLock(folder.path / ".start.lock"):
            _refuse(run, _pinned(run))
            presence.enter_context(present(folder))
        yield run


def at_work(folder: StudyFolder) -> bool:
    """Return whether any process works on a study."""
    return any(is_held(path) for path in (folder.path / "hands").glob("*"))


@contextmanager
def alone(folder: StudyFolder, name: str) -> Iterator[None]:
    """Keep hands from a study meanwhile. Raises `UserError` where one is at work."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.path / ".start.lock"):
        if at_work(folder):
            raise UserError(f"study '{name}' is being run in {folder.path}; wait for it, or use another --out")
        yield


def shared_of(stages: Sequence[StagePlan]) -> list[StagePlan]:
    """The stages that a trial has in common with others; they come first."""
    own = own_stages(stage.stage for stage in stages)
    return list(takewhile(lambda stage: stage.stage not in own, stages))


def _pin(run: Started, wanted: Mapping[str, Any], say: Callable[[str], None]) -> None:
    _set_damaged_aside(run.folder, say)
    for left in (*given_up(run), *(run.folder.path / "deaths").glob("*"), *(run.folder.path / "hands").glob("*")):
        left.unlink()
    environment: dict[str, str] = run.module.environment()
    content = {**wanted, "source": run.study.source, "profile": run.profile, "environment": environment}
    if is_registered(run.study):
        claims, commit = content_of(run.study, run.profile, run.overrides), environment.get("git_commit", "unknown")
        content["registered"] = register(claims, run.folder, commit, say)
    write_changed(run.folder.study_file, sealed(content))


def _set_damaged_aside(folder: StudyFolder, say: Callable[[str], None]) -> None:
    """Move every damaged file of a study to ``.damaged/``, one line for each; the start makes it again."""
    then = dict.fromkeys(folder.trial_files(), "the trial is recorded again from the store, or runs again")
    written = {folder.study_file: "written again", folder.search_file: "made again from the records"}
    then |= {path: words for path, words in written.items() if path.exists()}
    for path in then:
        try:
            read_sealed(path) if path in written else folder.read(path)
        except Damaged as error:
            say(f"{path} is damaged: {error.why}; set aside as {set_aside(path)}; {then[path]}")


def given_up(run: Started) -> list[Path]:
    """Records of failed trials that can be tried again.

    Not those of a search's trials on whose failure later proposals were built: another result would change all that
    came after it.
    """
    searched = {record.arm: record for record in run.folder.records() if record.arm.startswith(SEARCH)}
    numbers = {arm: int(arm.removeprefix(SEARCH)) for arm in searched}
    ended = [numbers[arm] for arm, record in searched.items() if record.status != "failed"]
    built_on = max(ended, default=-1) - (run.study.search.parallel if run.study.search else 0)
    return [
        run.folder.trial_file(record.arm, record.seed)
        for record in run.folder.records()
        if record.status == "failed" and numbers.get(record.arm, built_on + 1) > built_on
    ]


def _pinned(run: Started) -> dict[str, Any]:
    configs = [cell.config for cell in run.own_cells()]
    own = own_digests(configs)
    return {
        "study": run.study.model_dump(mode="json"),
        "overrides": dict(run.overrides),
        "program": code_digest(),
        "precision": sorted({str(precision(config)) for config in configs}),
        "trials": run.trials,
        **({"own": own} if own else {}),
    }


def _refuse(run: Started, wanted: Mapping[str, Any]) -> None:
    """Raise `UserError` where the pinned start differs from the one of this process."""
    pinned = run.folder.started()
    for key, words in PINNED.items():
        if canonical_json(pinned.get(key)) != canonical_json(wanted.get(key)):
            shown = f": {pinned.get(key)} there, {wanted[key]} here" if key in ("overrides", "precision") else ""
            raise UserError(
                f"study '{run.study.name}' is being run in {run.folder.path} with {words}{shown}; wait for it, or use"
                " another --out"
            )


def present(folder: StudyFolder) -> FileLock:
    """The lock in ``hands/`` that shows that this process is at work."""
    return FileLock(folder.path / "hands" / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")


def check_locks(folder: StudyFolder) -> None:
    """Refuse a study's folder without locks, or one in which a trial runs on another machine while its lock looks free
    from here. (A trial that died leaves a free lock too, but renews its status no more.)

    Raises `UserError`.
    """
    tried = folder.lock_file("tried")
    try:
        if (lock := try_lock(tried)) is not None:
            held = is_held(tried)
            lock.release()
            if not held:
                raise _refusal(folder, "two processes can hold the same lock (flock)")
    except OSError as error:
        raise _refusal(folder, f"it has no locks (flock: {error.strerror})") from None
    before = _free_elsewhere(folder)
    if before:
        time.sleep(LOOK_SECONDS)
    for path, (host, renewed) in _free_elsewhere(folder).items():
        if renewed != before.get(path, (host, renewed))[1]:
            raise _refusal(folder, f"locks that {host} holds are not seen on {socket.gethostname()} (flock)")


def _free_elsewhere(folder: StudyFolder) -> dict[Path, tuple[str, int]]:
    """Status files of trials that run on other machines while their lock looks free: machine, and time of the file."""
    found = dict[Path, tuple[str, int]]()
    for path in (folder.path / "status").glob("*.json"):
        status = read_status(path)
        if status is None or status.outcome or status.host == socket.gethostname():
            continue
        if not is_held(folder.lock_file(status.lock)):
            found[path] = status.host, path.stat().st_mtime_ns
    return found


def _refusal(folder: StudyFolder, lack: str) -> UserError:
    return UserError(
        f"{folder.root} cannot be shared by several processes: {lack}; use a local folder, NFS 4 or a parallel file"
        " system with locks (--out)"
    )
