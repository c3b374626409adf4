"""The report of `make gpu` as one Markdown page, and the plug-in of pytest that records what it shows: a JSON line for
each test that is planned, and for each that has ended, so that a crash or a hang loses nothing that came before."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest


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
