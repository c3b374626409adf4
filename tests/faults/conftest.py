"""The table of `make faults`."""

from __future__ import annotations

import pandas as pd
import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how often each fault came, what was lost, and how often the command was given."""
    reports = [one for status in ("passed", "failed") for one in terminalreporter.stats.get(status, [])]
    if rows := [dict(one.user_properties) for one in reports if "fault" in dict(one.user_properties)]:
        table = pd.DataFrame(rows).groupby("fault", sort=False)
        figures = table.agg(times=("lost", "size"), lost=("lost", "sum"), commands=("calls", "sum"))
        terminalreporter.write_line(figures.to_string())
