"""A plug-in of pytest: one JSON line for each test that is planned, and one for each that has ended.

It writes as it goes, so that a crash or a hang loses nothing that came before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FILE = "GPU_OUTCOMES"
"""Environment variable: where the lines go."""


def _write(line: dict[str, Any]) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        _write({"planned": item.name})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The call ends a test, or the set-up that skipped or failed it; a failed tear-down fails what the call had
    passed."""
    if report.when == "call" or not report.passed:
        name = report.nodeid.rpartition("::")[2]
        _write(
            {
                "name": name,
                **_status(report),
                "seconds": round(report.duration, 2),
                "values": dict(report.user_properties),
            }
        )


def _status(report: pytest.TestReport) -> dict[str, str]:
    if report.skipped:
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        return {"status": "not tested", "why": reason.removeprefix("Skipped: ")}
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return {"status": "failed", "why": (crash.message if crash else str(report.longrepr))[:600]}
    return {"status": "passed", "why": ""}
