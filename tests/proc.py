"""Who runs on this machine, and with what."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def pids() -> list[int]:
    """Numbers of all processes."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def environment(pid: int) -> list[str]:
    """Variables as ``NAME=value``; none of a process that has ended."""
    return _strings(pid, "environ")


def command(pid: int) -> str:
    """The command line; empty where the process has ended."""
    return " ".join(_strings(pid, "cmdline"))


def _strings(pid: int, name: str) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text("utf-8", "replace").split("\0")
    return []
