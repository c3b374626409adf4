"""`make gpu`: test and measure on the card at hand; writes one JSON file and one Markdown page.

Each section runs in a process of its own with a time limit, so that a hang or a crash costs one section. Exit code: 0
everything that could be tested passed, 1 something failed, 3 nothing was tested on a card, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu.card import missing, versions
from gpu.page import render

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CARD_SECONDS = 120
AT_ONCE = 3
SECTIONS = {
    "sampler": ("Sampler against a reference implementation", 120),
    "stages": ("Every stage in every precision, in 4 bits, by two processes", 300),
    "steps": ("Gradient steps: loss scaling, controllers, self-checks", 240),
    "head": ("Language-modelling head in half precision", 90),
    "resume": ("Kill and resume", 180),
    "memory": ("Out of memory, and the cap on the allocator", 240),
    "frozen": ("Frozen networks off the card, and in half precision", 120),
    "measure": ("Memory, time and throughput of a trial against the forecast", 330),
    "trl": ("Speed and memory beside TRL's PPO", 180),
}
"""Title and time limit in seconds, by the name of the test file."""
ALONE = ("measure", "trl")
"""Figures of memory and time need the card for themselves; tests do not."""
RUNNING: set[subprocess.Popen[bytes]] = set()


def main(arguments: list[str] | None = None) -> int:
    """Run all sections and return the exit code; the page is written after each of them."""
    options = _options().parse_args(arguments)
    began, writing = time.monotonic(), threading.Lock()
    card = _card(options.device)
    why = card.pop("why")
    chosen = options.only or list(SECTIONS)
    sections = {name: section(name, not_tested(why or "the time limit was reached before it began")) for name in chosen}
    report = {"card": card, "versions": versions(), "commit": _commit(), "rehearsal": options.device == "cpu"}

    def keep() -> Path:
        with writing:
            report.update(seconds=time.monotonic() - began, sections=list(sections.values()))
            report["exit_code"], report["verdict"], report["headline"] = verdict(report, why)
            return _write(report, options.out)

    def one(name: str) -> None:
        left, limit = options.minutes * 60 - (time.monotonic() - began), SECTIONS[name][1]
        if left > limit / 10:
            sections[name] = run(name, min(limit, left), card, options.shape)
            for item in sections[name]["items"]:
                print(f"{item['status']:10s} {name}: {item['name']}{': ' * bool(item['why'])}{item['why']}", flush=True)
        keep()

    path = keep()
    if not why:
        with ThreadPoolExecutor(max(1, min(AT_ONCE, (os.cpu_count() or 2) // 2))) as pool:
            try:
                list(pool.map(one, [name for name in chosen if name not in ALONE]))
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise
        for name in chosen:
            if name in ALONE:
                one(name)
        path = keep()
    print(f"{report['headline']}\n{path}\n{path.with_suffix('.json')}")
    return int(report["exit_code"])


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make gpu ARGS=...", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu", help="folder of the page")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), help="some of the sections")
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit of the whole")
    rehearsal = "cpu: rehearse this program without testing a card"
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=rehearsal)
    parser.add_argument("--shape", choices=["qwen0.5b", "tiny"], default="qwen0.5b", help="network of the measurements")
    return parser


def _card(device: str) -> dict[str, Any]:
    """The card, and `why` nothing can be tested. A process of its own looks at it: a sick driver may hang."""
    if lacking := missing():
        return {"why": f"not installed: {', '.join(lacking)} (make them importable, for example by PYTHONPATH)"}
    said = _asked([sys.executable, "-m", "gpu.card", device], device)
    try:
        return dict(json.loads(said.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return {"why": f"the card could not be asked what it is: {said.strip()[-300:] or 'no answer'}"}


def _asked(command: list[str], device: str) -> str:
    environment: Any = {"capture_output": True, "text": True, "env": environment_of(device), "cwd": ROOT}
    try:
        done = subprocess.run(command, timeout=CARD_SECONDS, check=False, **environment)
    except subprocess.TimeoutExpired:
        return f"no answer within {CARD_SECONDS} s"
    return done.stdout if done.returncode == 0 else done.stderr


def section(name: str, items: list[dict[str, Any]], seconds: float = 0.0) -> dict[str, Any]:
    return {"name": name, "title": SECTIONS[name][0], "seconds": seconds, "items": items}


def not_tested(why: str) -> list[dict[str, Any]]:
    return [{"name": "all tests", "status": "not tested", "why": why, "values": {}}]


def run(name: str, limit: float, card: dict[str, Any], shape: str, tests: Path | None = None) -> dict[str, Any]:
    """Run a section for at most `limit` seconds; what it had written by then is kept."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        out, log = Path(folder) / "out.jsonl", Path(folder) / "log"
        environment = environment_of(card["device"]) | {"GPU_OUTCOMES": str(out), "GPU_SHAPE": shape, "TMPDIR": folder}
        environment["GPU_CARD"] = json.dumps(card)
        command = [sys.executable, "-m", "pytest", "-c", str(HERE / "card.ini"), "--noconftest", "-p", "gpu.outcomes"]
        began = time.monotonic()
        ended = _finish([*command, str(tests or HERE / f"test_{name}.py")], environment, log, limit)
        found = {}
        for line in out.read_text("utf-8").splitlines() if out.exists() else []:
            with suppress(ValueError):  # a line that was not written whole
                item = json.loads(line)  # the last line of a test wins
                found[item["name"]] = item | {"why": item["why"].replace("did not end", f"did not end: {ended}")}
        if not found:
            said = "\n".join(log.read_text("utf-8", "replace").strip().splitlines()[-12:])
            found[""] = {
                "name": "all tests",
                "status": "failed",
                "why": f"none was collected ({ended}): {said}",
                "values": {},
            }
        return section(name, list(found.values()), time.monotonic() - began)


def environment_of(device: str) -> dict[str, str]:
    """The environment of a section: this checkout first on the path, no network, no plug-in of pytest."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    fixed = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "GPU_DEVICE": device, **fixed, **hidden}


def _finish(command: list[str], environment: dict[str, str], log: Path, limit: float) -> str:
    """Run to the end or the limit; says how it ended."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
        )
        RUNNING.add(process)
        try:
            return f"exit code {process.wait(limit)}"
        except subprocess.TimeoutExpired:
            return f"not finished after {limit:.0f} s"
        finally:
            RUNNING.discard(process)
            _end_group(process)


def end_all() -> None:
    """End every section that is running: Ctrl-C does not reach their process groups."""
    for process in list(RUNNING):
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def verdict(report: dict[str, Any], why: str) -> tuple[int, str, str]:
    """Exit code, two words and one line. A rehearsal proves no card, whatever passed in it."""
    statuses = [item["status"] for one in report["sections"] for item in one["items"]]
    passed, failed, skipped = (statuses.count(status) for status in ("passed", "failed", "not tested"))
    count = f"{passed} passed, {failed} failed, {skipped} not tested"
    if why:
        return 3, "not tested", f"Not tested: {why}."
    if failed:
        return 1, "something failed", f"{count}."
    if report["rehearsal"]:
        return 3, "not tested", f"Rehearsal on a CPU, which proves this program and no card: {count}."
    return (0, "everything that could be tested passed", f"{count}.") if passed else (3, "not tested", f"{count}.")


def _write(report: dict[str, Any], folder: Path) -> Path:
    """The page; the JSON file lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "rehearsal" if report["rehearsal"] else report["card"].get("name", "no card")
    page = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.md"
    for path, text in ((page.with_suffix(".json"), json.dumps(report, indent=1)), (page, render(report))):
        beside = path.with_name(f".{path.name}")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    return page


def _commit() -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def guarded(arguments: list[str] | None = None) -> int:
    """`main`, which ends in one line whatever happens to its page or its user."""
    try:
        return main(arguments)
    except OSError as error:
        print(f"make gpu: {error.filename or 'the page'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        end_all()
        print("interrupted; the page holds what had ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(guarded())
