"""What `make gpu` runs: each section in a process of its own, with a time limit, so that a hang or a crash costs one
section."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEVICE = "GPU_DEVICE"
"""Environment variable: ``cuda``, or ``cpu`` for a rehearsal of this program."""
TAIL = 12
RUNNING: set[subprocess.Popen[bytes]] = set()
PASSED, FAILED, NOT_TESTED = "passed", "failed", "not tested"

Item = dict[str, Any]
"""``name``, ``status`` (passed, failed, not tested), ``why``, ``seconds``, ``values``."""


@dataclass(frozen=True)
class Section:
    """A file of tests, or a module that measures."""

    name: str
    title: str
    limit: int
    """Seconds."""
    tests: str = ""
    module: str = ""

    def items(self) -> list[str]:
        """What it tests, without running it."""
        if self.module:
            return [self.title]
        tree = ast.parse((HERE / self.tests).read_text("utf-8"))
        return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


SECTIONS = (
    Section("sampler", "Sampler against a reference implementation", 120, tests="test_sampler.py"),
    Section("stages", "Every stage in every precision", 240, tests="test_gpu_stages.py"),
    Section("steps", "Gradient steps: loss scaling, controllers, self-checks", 240, tests="test_gpu_steps.py"),
    Section("head", "Language-modelling head in half precision", 90, tests="test_gpu_head.py"),
    Section("resume", "Kill and resume", 180, tests="test_gpu_resume.py"),
    Section("memory", "Out of memory, and the cap on the allocator", 240, tests="test_gpu_memory.py"),
    Section("frozen", "Frozen networks off the card, and in half precision", 120, tests="test_gpu_frozen.py"),
    Section("machine", "4-bit weights, two processes", 150, tests="test_gpu_machine.py"),
    Section("measure", "Memory, time and throughput of a trial against the forecast", 330, module="gpu.measure"),
    Section("trl", "Speed and memory beside TRL's PPO", 180, module="gpu.beside_trl"),
)


@dataclass
class Result:
    """What came of a section."""

    name: str
    title: str
    seconds: float = 0.0
    items: list[Item] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)


def not_tested(section: Section, why: str) -> Result:
    """The result of a section that was not run."""
    return Result(section.name, section.title, 0.0, [item(name, NOT_TESTED, why) for name in section.items()])


def item(name: str, status: str, why: str = "", **more: Any) -> Item:
    """One line of the page."""
    return {"name": name, "status": status, "why": why, "seconds": 0.0, "values": {}, **more}


def run(section: Section, limit: float, card: dict[str, Any], shape: str) -> Result:
    """Run a section for at most `limit` seconds; what it had written by then is kept."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        out, log = Path(folder) / "out.jsonl", Path(folder) / "log"
        environment = environment_of(card["device"]) | {"GPU_OUTCOMES": str(out), "GPU_SHAPE": shape}
        environment |= {"GPU_CARD": json.dumps(card), "TMPDIR": folder}
        began = time.monotonic()
        ended = _finish(_command(section, out), environment, log, limit)
        result = Result(section.name, section.title, time.monotonic() - began)
        said = "\n".join(log.read_text("utf-8", "replace").strip().splitlines()[-TAIL:])
        lines = list(_lines(out))
        if section.module:
            _read_measured(result, lines, ended, said)
        else:
            _read_tests(result, lines, ended, said)
        return result


def environment_of(device: str) -> dict[str, str]:
    """The environment of a section: this checkout first on the path, no network, no plug-in of pytest."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        DEVICE: device,
    }
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **fixed, **hidden}


def _command(section: Section, out: Path) -> list[str]:
    if section.module:
        return [sys.executable, "-m", section.module, str(out)]
    return [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(HERE / "card.ini"),
        "--noconftest",
        "-p",
        "gpu.outcomes",
        str(HERE / section.tests),
    ]


def _finish(command: list[str], environment: dict[str, str], log: Path, limit: float) -> str:
    """Run to the end or the limit; says how it ended where it did not end well."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
        )
        RUNNING.add(process)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"not finished after {limit:.0f} s"
        finally:
            RUNNING.discard(process)
            _end_group(process)
    return "" if code == 0 else f"exit code {code}"


def end_all() -> None:
    """End every section that is running: Ctrl-C does not reach their process groups."""
    for process in list(RUNNING):
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the section and whatever it started: the group is its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Those that were written whole."""
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            yield json.loads(line)
        except ValueError:
            return


def _read_tests(result: Result, lines: list[dict[str, Any]], ended: str, said: str) -> None:
    planned = [line["planned"] for line in lines if "planned" in line]
    found = {line["name"]: line for line in lines if "name" in line}  # the last line of a test wins
    for name in planned:
        result.items.append(found.get(name) or item(name, FAILED, f"did not end: {ended or 'its process is gone'}"))
    if not planned:
        result.items.append(item(result.title, FAILED, f"no test was collected ({ended or 'exit code 0'}): {said}"))


def _read_measured(result: Result, lines: list[dict[str, Any]], ended: str, said: str) -> None:
    for line in lines:
        if "name" in line:
            result.items.append(item(**line))
        else:
            result.measured |= line
    if ended or not lines:
        result.items.append(item(result.title, FAILED, f"{ended or 'nothing was written'}: {said}"))
