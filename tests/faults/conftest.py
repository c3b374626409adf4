"""The table of `make faults`."""

from __future__ import annotations

import pandas as pd
import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How often each fault came, what was lost, and how long it took to go on."""
    reports = [one for status in ("passed", "failed") for one in terminalreporter.stats.get(status, [])]
    if rows := [dict(one.user_properties) for one in reports if "fault" in dict(one.user_properties)]:
        columns = {"times": ("lost", "size"), "lost": ("lost", "sum"), "ended with a word": ("told", "sum")}
        waits = {"seconds until it goes on: median": ("seconds", "median"), "most": ("seconds", "max")}
        table = pd.DataFrame(rows).groupby("fault", sort=False).agg(**columns, **waits)
        terminalreporter.write_line(table.round(1).to_string())
