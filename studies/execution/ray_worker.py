"""What runs on the nodes of a Ray cluster: a worker for one job, and a look at the node's view of the output root.

A worker is an actor that does its job while it is made. It has a process of its own, which ends with the job and gives
the card's memory back, as that of a task with ``max_calls=1`` does. A task ends with the process that asked for it; a
detached actor goes on without its driver, also while it waits for a free place, and is found by its name.
"""

from __future__ import annotations

import faulthandler
import signal
import socket
import threading
import time
from pathlib import Path

from pipeline.errors import USER_ERROR
from pipeline.faults import existing
from studies.execution.job_folder import JobFolder, OutcomeFile
from studies.execution.program import HOME, code_digest
from studies.execution.shared_store import Answer, answer
from studies.execution.worker import open_log, work

SIGHT_SECONDS = 10.0
"""How long a new job folder may take to be seen on a node."""
LOOK_SECONDS = 0.5
WITNESS = "traceback"
"""A file that asks the worker to write into its log where it stands."""


class NoOutcome(Exception):
    """The worker ended without an outcome; the text is its exit code."""


class NotHere(Exception):
    """A worker cannot run on this node; the text says why."""


class Worker:
    """The actor: making it runs the job."""

    def __init__(self, root: str, path: str, name: str, code: str, host: str) -> None:
        """`name` is what the job folder must say, `code` the digest of the driver's program, `host` its machine."""
        import ray

        ended = do(Path(root), Path(path), name, code, host)
        if ended and not JobFolder(Path(path)).outcome_file.exists():
            raise NoOutcome(ended)
        ray.actor.exit_actor()


def do(root: Path, path: Path, name: str, code: str, host: str) -> int:
    """Run the job in a folder, if it is still the one that was meant. Returns the worker's exit code."""
    folder = JobFolder(path)
    if not is_wanted(root, folder, name):
        return 0
    try:
        check_program(code, host)
    except NotHere as error:
        refused = OutcomeFile.without_result("crashed", str(error), user_error=True)
        folder.end(refused.model_copy(update={"work": folder.read().work}))
        return USER_ERROR
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a node that is drained ends its workers: no fault, and no outcome
    threading.Thread(target=_testify, args=(folder,), daemon=True).start()
    return work(path)


def is_wanted(root: Path, folder: JobFolder, name: str) -> bool:
    """Whether the job of a folder names this worker. Another driver may have given it to another one since."""
    deadline = time.monotonic() + SIGHT_SECONDS
    while not folder.worker:
        if time.monotonic() > deadline:
            if not root.is_dir():
                raise NotHere(f"{root} is not there ({existing(root)} is); mount it under the same path on every node")
            return False
        folder.refresh()
        time.sleep(0.1)
    return folder.worker == name


def check_program(code: str, host: str) -> None:
    """Raises `NotHere` where this node has another version of the program."""
    if code_digest() != code:
        raise NotHere(
            f"the program in {HOME} on {socket.gethostname()} is another version than the one that was started on"
            f" {host}; have the same one on all nodes, and run the same command again"
        )


def look(root: str, token: str, code: str, driver: str, node: str) -> Answer:
    """What a node sees of the output root (`studies.execution.shared_store.answer`), under the name `node`. Raises
    `NotHere`."""
    check_program(code, driver)
    return answer(Path(root), token, node)


def _testify(folder: JobFolder) -> None:
    """Write the traceback of every thread when the driver asks where this worker hangs."""
    ask = folder.path / WITNESS
    while True:
        time.sleep(LOOK_SECONDS)
        if ask.exists():
            job = folder.read().job(folder.path)
            with open_log(job.log) as log:
                faulthandler.dump_traceback(log)
            ask.unlink(missing_ok=True)
