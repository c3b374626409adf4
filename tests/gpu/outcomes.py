"""A plug-in of pytest: a JSON line for each test that is planned, and for each that has ended, written as it goes, so
that a crash or a hang loses nothing that came before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


def _write(line: dict[str, Any]) -> None:
    with Path(os.environ["GPU_OUTCOMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _write({"name": item.name, "status": "failed", "why": "did not end", "values": {}})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The call ends a test, or the set-up that skipped or failed it; a failed tear-down fails what had passed."""
    if report.when == "call" or not report.passed:
        crash = getattr(report.longrepr, "reprcrash", None)
        skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        why = skipped.removeprefix("Skipped: ") or (crash.message if crash else str(report.longrepr or ""))[:600]
        status = {"skipped": "not tested"}.get(report.outcome, report.outcome)
        name = report.nodeid.rpartition("::")[2]
        _write({"name": name, "status": status, "why": why, "values": dict(report.user_properties)})
