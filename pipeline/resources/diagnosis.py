"""What a machine offers: Python, packages, torch and its card, memory, disk. Each is looked at by itself, and what is
wrong is said with what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from pipeline.errors import UserError
from pipeline.faults import existing, in_words
from pipeline.resources.machine import GIB, processor

State = Literal["ok", "note", "missing"]
"""ok: as it should be; note: something optional is not there; missing: nothing runs without it."""
FEWEST_PYTHON = (3, 11)
EXTRAS = {
    "quantize": "weights in 4 or 8 bits",
    "ocr": "rewards that read text from pictures",
    "bench": "benchmarks beside TRL",
}
"""Extras that a user may want, and what for."""
LEAST_FREE_GIB = 2.0
"""Disk that a study of the profile tiny takes with room to spare; its 25 trials leave 0.6 GiB."""
ON_CPU = "CUDA_VISIBLE_DEVICES= hides it, and trials run on the CPU"
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Finding:
    """One fact of the machine."""

    what: str
    state: State
    found: str
    advice: str = ""
    """What to do, where something is to be done."""


def python() -> Finding:
    """The interpreter."""
    here = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < FEWEST_PYTHON:
        return Finding("Python", "missing", here, "install Python 3.11 or newer, and set PYTHON=/path/to/it")
    return Finding("Python", "ok", f"{here}, {sys.executable}")


def packages() -> Iterator[Finding]:
    """Whether each requirement of this project is met, and which extras are installed."""
    needed, extras = requirements()
    wrong = list(unmet(needed))
    if wrong:
        yield Finding("packages", "missing", "; ".join(wrong), "run make setup, which installs what is pinned")
    else:
        shown = ", ".join(f"{name} {version(name)}" for name in ("transformers", "mlflow", "optuna"))
        yield Finding("packages", "ok", f"all {len(needed)} as required, among them {shown}")
    for extra, purpose in EXTRAS.items():
        if lacking := list(unmet(extras.get(extra, ()))):
            yield Finding(
                f"extra {extra}", "note", f"{'; '.join(lacking)} (for {purpose})", f"pip install '.[{extra}]'"
            )
        else:
            yield Finding(f"extra {extra}", "ok", f"installed (for {purpose})")


def requirements() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """What this project needs, and what each extra needs, as it was installed."""
    lines = [Requirement(line) for line in requires("ablate") or ()]
    needed = [one for one in lines if one.marker is None or one.marker.evaluate({"extra": ""})]
    own = {name: [one for one in lines if one.marker and one.marker.evaluate({"extra": name})] for name in EXTRAS}
    return needed, {name: [one for one in found if one not in needed] for name, found in own.items()}


def unmet(wanted: Iterable[Requirement]) -> Iterator[str]:
    """Requirements that the installed packages do not meet, each in words."""
    for one in wanted:
        try:
            here = version(one.name)
        except PackageNotFoundError:
            yield f"{one.name} is not installed"
            continue
        if not one.specifier.contains(here, prereleases=True):
            yield f"{one.name} is {here} and must be {one.specifier}"


def cards(precision: Callable[[int], str]) -> Iterator[Finding]:
    """Every card that torch sees, or why it sees none; `precision` of the card with a number."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "torch was built for CPUs" if built is None else f"torch, built for CUDA {built}, sees none"
        yield Finding("card", "note", f"{why}; trials run on the CPU", "" if built is None else "look at nvidia-smi")
    for number in range(torch.cuda.device_count()):
        try:
            yield Finding(f"card {number}", "ok", _card(number, precision))
        except (RuntimeError, UserError) as error:  # a card that is counted may still not answer
            yield Finding(
                f"card {number}", "note", f"cannot be used: {in_words(error)}", f"look at nvidia-smi; {ON_CPU}"
            )


def _card(number: int, precision: Callable[[int], str]) -> str:
    import torch

    free, total = torch.cuda.mem_get_info(number)
    kind = torch.cuda.get_device_properties(number)
    return (
        f"{kind.name}, {total / GIB:.1f} GiB ({free / GIB:.1f} free), compute capability {kind.major}.{kind.minor},"
        f" computes in {precision(number)}"
    )


def memory() -> Finding:
    """Cores and memory, as far as this process may use them."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seen = psutil.virtual_memory()
    limit = min([seen.total, *limits()])
    held = f" (limited by a container, of {seen.total / GIB:.1f})" if limit < seen.total else ""
    free = min(seen.available, limit) / GIB
    return Finding(
        "processor", "ok", f"{cores} cores of {processor()}; {limit / GIB:.1f} GiB of memory{held}, {free:.1f} free"
    )


def limits() -> Iterator[int]:
    """Bytes that a container allows its processes."""
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            yield int(path.read_text())


def disk(root: Path) -> Finding:
    """Room for outputs under `root`, which need not exist yet."""
    folder = existing(root.absolute())
    free = shutil.disk_usage(folder).free / GIB
    found = f"{free:.1f} GiB free at {root.absolute()}"
    if not folder.is_dir():
        return Finding("disk", "missing", f"{folder} is no folder", "give another folder by --out or ABLATE_HOME")
    if not os.access(folder, os.W_OK):
        return Finding("disk", "missing", f"{folder} cannot be written", "give another folder by --out or ABLATE_HOME")
    if free < LEAST_FREE_GIB:
        return Finding("disk", "missing", found, f"free {LEAST_FREE_GIB:g} GiB, or give another folder by --out")
    return Finding("disk", "ok", found)
