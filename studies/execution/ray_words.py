"""What Ray's exceptions mean for a worker. Reads their texts, so it needs no Ray."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from pipeline.faults import disk_full
from studies.execution.file_executor import Ended
from studies.execution.worker import DISK_FULL

_EXIT_CODE = re.compile(r"NoOutcome: (\d+)")
_ADDRESS = re.compile(r"^\s*ip: (\S+)", re.MULTILINE)
_LOST_NODE = (
    "its node has died",
    "node was terminated",
    "The node died",
    "NodeAffinitySchedulingStrategy doesn't exist",
)
"""The last one of a task that was bound to a node, and had not begun."""
_GUESSES = "Some common causes"
"""From here on Ray lists what might have been."""
_MEMORY = re.compile(r"running low on memory|memory pressure|\bOOM\b(?! killer due)", re.IGNORECASE)


def died_with_node(error: BaseException) -> bool:
    """Whether a node was lost under a worker, or was taken back by its owner."""
    text = str(error)
    return any(words in text for words in _LOST_NODE) or bool(getattr(error, "preempted", False))


def in_words(error: BaseException, root: Path) -> Ended:
    """How a worker ended that wrote no outcome, or did not begin. `root` is the output root."""
    text = str(error)
    address = found[1] if (found := _ADDRESS.search(text)) else ""
    node, where = f" {address}" if address else "", f" on {address}" if address else ""
    if died_with_node(error):
        return Ended(f"its node{node} died or was taken back", lost=True)
    if code := _EXIT_CODE.search(text):
        if int(code[1]) == DISK_FULL:
            full = disk_full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), root)
            return Ended(str(full), disk_full=True)
        return Ended(f"the worker ended with exit code {code[1]} and no result")
    if getattr(error, "actor_init_failed", False):
        return Ended(f"it could not start on a node of the cluster: {last_line(error)}")
    if "exit_actor()" in text:
        return Ended("the worker ended without a result")
    if "killed by `ray.kill`" in text:
        return Ended("its Ray actor was killed from outside", interrupted=True)
    if _MEMORY.search(text.partition(_GUESSES)[0]):
        return Ended(f"Ray killed the worker{where}: the node ran out of memory")
    if "worker process has died" in text:
        return Ended(f"the worker's process{where} was killed or crashed (often: out of memory)")
    return Ended(f"Ray lost the worker{where}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """Type and first line of an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def last_line(error: BaseException) -> str:
    """The last line of an exception that carries a traceback in its text: what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return last.removeprefix("studies.execution.ray_worker.NotHere: ")
