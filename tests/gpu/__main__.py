"""`make gpu`: test and measure on the card at hand; writes one JSON file and one Markdown page.

Each section runs in a process of its own with a time limit, so that a hang or a crash costs one section. Exit code: 0
everything that could be tested passed, 1 something failed, 3 nothing was tested on a card, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AT_ONCE = 3
SECTIONS = {
    "sampler": ("Samplers against float64 and each other", 120),
    "stages": ("Every stage in every precision, in 4 bits, by two processes", 300),
    "steps": ("Gradient steps: loss scaling, controllers, self-checks, kill and resume, the head", 300),
    "memory": ("Out of memory, and the cap on the allocator", 240),
    "measure": ("Memory, time and throughput of a trial against the forecast", 330),
}
"""Title and time limit in seconds, by the name of the test file. The last needs the card for itself."""
CARD = "import json; from gpu.hardware import card; print(json.dumps(card()))"


def main(arguments: list[str] | None = None) -> int:
    """Run all sections and return the exit code; the page is written after each of them."""
    parser = argparse.ArgumentParser(prog="make gpu ARGS=...", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu", help="folder of the page")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections; default: all")
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit of the whole")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a rehearsal without a card")
    options = parser.parse_args(arguments)
    end, card = time.monotonic() + options.minutes * 60, _card(options.device)
    late = _item("all tests", "not tested", card["why"] or "the time limit was reached before it began")
    sections = {name: {"title": SECTIONS[name][0], "seconds": 0.0, "items": [late]} for name in options.only}
    report = {"card": card, "rehearsal": options.device == "cpu", "sections": sections}

    def one(name: str) -> None:
        if (left := min(SECTIONS[name][1], end - time.monotonic())) > 10:
            sections[name] = run(name, left, options.device)
            for item in sections[name]["items"]:
                print(f"{item['status']:10s} {name}: {item['name']}{': ' * bool(item['why'])}{item['why']}", flush=True)
            write(report, options.out)

    if not card["why"]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(one, [name for name in options.only if name != "measure"]))
        if "measure" in options.only:
            one("measure")
    code, page = write(report, options.out)
    print(f"{report['headline']}\n{page}")
    return code


def _card(device: str) -> dict[str, Any]:
    """The card, and `why` nothing can be tested. A process of its own looks at it: a sick driver may hang."""
    asked: Any = {"capture_output": True, "text": True, "env": environment_of(device), "cwd": ROOT, "timeout": 120}
    try:
        done = subprocess.run([sys.executable, "-c", CARD], check=False, **asked)
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"why": "the card did not answer within 120 s"}
    except (ValueError, IndexError):
        return {"why": f"the card could not be asked what it is: {done.stderr.strip()[-300:] or 'no answer'}"}


def _item(name: str, status: str, why: str) -> dict[str, Any]:
    return {"name": name, "status": status, "why": why, "values": {}}


def run(name: str, limit: float, device: str) -> dict[str, Any]:
    """Run a section for at most `limit` seconds; results that it had written by then are kept."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        out, log = Path(folder) / "out.jsonl", Path(folder) / "log"
        environment = environment_of(device) | {"GPU_OUTCOMES": str(out), "TMPDIR": folder}
        command = ["timeout", "--signal=KILL", str(limit), sys.executable, "-m", "pytest", "-c", str(HERE / "card.ini")]
        command += ["--noconftest", "-p", "gpu.__main__", str(HERE / f"test_{name}.py")]
        began = time.monotonic()
        with log.open("w") as file:
            code = subprocess.run(command, stdout=file, stderr=file, env=environment, cwd=ROOT, check=False).returncode
        seconds = time.monotonic() - began
        ended = f"exit code {code}" if seconds < limit else f"not finished after {limit:.0f} s"
        found = {}
        for line in out.read_text("utf-8").splitlines() if out.exists() else []:
            item = json.loads(line)  # the last line of a test wins
            found[item["name"]] = item | {"why": item["why"].replace("did not end", f"did not end: {ended}")}
        last = "\n".join(log.read_text("utf-8", "replace").strip().splitlines()[-12:])
        items = list(found.values()) or [_item("all tests", "failed", f"none was collected ({ended}): {last}")]
        return {"title": SECTIONS[name][0], "seconds": seconds, "items": items}


def environment_of(device: str) -> dict[str, str]:
    """The environment of a section: this checkout first on the path, no network, no plug-in of pytest."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    fixed = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if device == "cpu" else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "GPU_DEVICE": device, **fixed, **hidden}


def write(report: dict[str, Any], folder: Path) -> tuple[int, Path]:
    """Write the page, with the JSON file beside it; returns the exit code and the page. A rehearsal proves no card."""
    statuses = [item["status"] for one in report["sections"].values() for item in one["items"]]
    passed, failed, skipped = (statuses.count(status) for status in ("passed", "failed", "not tested"))
    why, rehearsal = report["card"]["why"], report["rehearsal"]
    intro = "Rehearsal on a CPU, which proves this program and no card: " * rehearsal
    report["headline"] = (
        f"Not tested: {why}." if why else f"{intro}{passed} passed, {failed} failed, {skipped} not tested."
    )
    name = "rehearsal" if rehearsal else report["card"].get("name", "no card")
    page = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.md"
    folder.mkdir(parents=True, exist_ok=True)
    page.with_suffix(".json").write_text(json.dumps(report, indent=1), "utf-8")
    page.write_text(render(report), "utf-8")
    return (1 if failed else 0 if passed and not rehearsal else 3), page


# The plug-in of pytest: a JSON line for each test that is planned, and for each that has ended, so that a crash or a
# hang loses nothing that came before.


def _record(**line: Any) -> None:
    with Path(os.environ["GPU_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _record(name=item.name, status="failed", why="did not end", values={})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The call ends a test, or the set-up that skipped or failed it; a failed tear-down fails what had passed."""
    if report.when == "call" or not report.passed:
        crash = getattr(report.longrepr, "reprcrash", None)
        skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        why = skipped.removeprefix("Skipped: ") or (crash.message if crash else str(report.longrepr or ""))[:600]
        status = {"skipped": "not tested"}.get(report.outcome, report.outcome)
        _record(name=report.nodeid.rpartition("::")[2], status=status, why=why, values=dict(report.user_properties))


def render(report: dict[str, Any]) -> str:
    """The whole page: the items of each section, and below them the tables (lists of rows) that they have recorded."""
    card = report["card"]
    parts = [f"# {card.get('name', 'No card')}: {report['headline']}\n", table(["", ""], card.items())]
    for section in report["sections"].values():
        rows, tables = [], []
        for item in section["items"]:
            values = {name: one for name, one in item["values"].items() if not isinstance(one, list)}
            words = filter(None, [item["why"], *(f"{name} {one}" for name, one in values.items())])
            rows.append([item["name"].removeprefix("test_").replace("_", " "), item["status"], "; ".join(words)])
            for name in item["values"].keys() - values.keys():
                lines = item["values"][name]
                tables.append(f"\n{name}:\n\n" + table(list(lines[0]), [one.values() for one in lines]))
        head = f"## {section['title']} ({section['seconds']:.0f} s)\n"
        parts += [head, table(["test", "result", "reason, or measured"], rows), *sorted(tables)]
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; a bar within a cell is escaped, and numbers have three digits."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
