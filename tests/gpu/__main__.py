"""`make gpu`: test and measure on the card at hand; writes one JSON file and one Markdown page.

Exit code: 0 everything that could be tested passed, 1 something failed, 3 nothing was tested on a card, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu.card import missing, versions
from gpu.page import render
from gpu.sections import FAILED, PASSED, ROOT, SECTIONS, Result, Section, end_all, environment_of, not_tested, run

LEAST_GIB = 14.0
"""A T4 reports 14.6."""
CARD_SECONDS = 120
AT_ONCE = 3


def main(arguments: list[str] | None = None) -> int:
    """Run all sections and return the exit code; the page is written after each of them."""
    options = _options().parse_args(arguments)
    began = time.monotonic()
    chosen = [section for section in SECTIONS if not options.only or section.name in options.only]
    card, why = _card(options.device)
    report: dict[str, Any] = {
        "card": card,
        "versions": versions(),
        "commit": _commit(),
        "rehearsal": options.device == "cpu",
    }
    results = {
        section.name: not_tested(section, why or "the time limit was reached before it began") for section in chosen
    }

    writing = threading.Lock()

    def keep() -> Path:
        with writing:
            report["seconds"] = time.monotonic() - began
            report["sections"] = [asdict(results[section.name]) for section in chosen]
            report["exit_code"], report["headline"] = _verdict(report, why)
            return _write(report, options.out)

    def one(section: Section) -> None:
        left = options.minutes * 60 - (time.monotonic() - began)
        if left > section.limit / 10:
            results[section.name] = _say(run(section, min(section.limit, left), card, options.shape))
        keep()

    keep()
    if not why:
        tests, measurements = (
            [section for section in chosen if bool(section.module) == kind] for kind in (False, True)
        )
        # Figures of memory and time need the card for themselves; tests do not.
        with ThreadPoolExecutor(max(1, min(AT_ONCE, (os.cpu_count() or 2) // 2))) as pool:
            try:
                list(pool.map(one, tests))
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise
        for section in measurements:
            one(section)
    path = keep()
    print(f"{report['headline']}\n{path}\n{path.with_suffix('.json')}")
    return int(report["exit_code"])


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make gpu ARGS=...", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu", help="folder of the page")
    parser.add_argument(
        "--only", nargs="+", choices=[section.name for section in SECTIONS], help="some of the sections"
    )
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit of the whole")
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu: rehearse this program without testing a card",
    )
    parser.add_argument("--shape", choices=["qwen0.5b", "tiny"], default="qwen0.5b", help="network of the measurements")
    return parser


def _card(device: str) -> tuple[dict[str, Any], str]:
    """What the card is, and why nothing can be tested where nothing can. In a process of its own: a sick driver may
    hang."""
    if lacking := missing():
        return {}, f"not installed: {', '.join(lacking)} (make them importable, for example by PYTHONPATH)"
    command = [sys.executable, "-m", "gpu.card", device]
    if device == "cuda":
        seen = _call([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], device)
        last = (seen.strip().splitlines() or ["no answer"])[-1]
        if last == "False":
            return {}, "no CUDA device is visible"
        if last != "True":
            return {}, f"torch could not be asked for a CUDA device: {last[-300:]}"
    said = _call(command, device)
    try:
        card: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}, f"the card could not be asked what it is: {said.strip()[-300:] or 'no answer'}"
    if device == "cuda" and card["memory_gib"] < LEAST_GIB:
        return card, f"{card['name']} has {card['memory_gib']:.1f} GiB; {LEAST_GIB:.0f} GiB are needed"
    return card, ""


def _call(command: list[str], device: str) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=CARD_SECONDS,
            env=environment_of(device),
            cwd=ROOT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {CARD_SECONDS} s"
    return done.stdout if done.returncode == 0 else done.stderr


def _verdict(report: dict[str, Any], why: str) -> tuple[int, str]:
    """Exit code and one line. A rehearsal proves no card, whatever passed in it."""
    statuses = [item["status"] for section in report["sections"] for item in section["items"]]
    count = (
        f"{statuses.count(PASSED)} passed, {statuses.count(FAILED)} failed, {statuses.count('not tested')} not tested"
    )
    if why:
        return 3, f"Not tested: {why}."
    if FAILED in statuses:
        return 1, f"{count}."
    if report["rehearsal"]:
        return 3, f"Rehearsal on a CPU, which proves this program and no card: {count}."
    return (0 if PASSED in statuses else 3), f"{count}."


def _say(result: Result) -> Result:
    for one in result.items:
        print(f"{one['status']:10s} {result.name}: {one['name']}{': ' + one['why'] if one['why'] else ''}", flush=True)
    return result


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
