"""The command, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ablate import app
from pipeline.run.layout import Layout


@pytest.fixture
def ablate(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``ablate(arguments)`` with an output root of its own; MLflow only where a test asks for it."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments), "--out", str(layout.root)])


@pytest.fixture
def succeeds(ablate: Callable[..., Any]) -> Callable[..., str]:
    """The same for commands that must succeed: gives what they print."""

    def run(*arguments: Any) -> str:
        done = ablate(*arguments)
        assert done.exit_code == 0, done.output
        return str(done.output)

    return run


@pytest.fixture
def refused(ablate: Callable[..., Any]) -> Callable[..., str]:
    """The same for commands that must be refused with one clear error."""

    def run(*arguments: Any) -> str:
        done = ablate(*arguments)
        assert done.exit_code == 2, done.output
        assert "Traceback" not in done.output
        return str(done.output)

    return run


@pytest.fixture
def drawn(succeeds: Callable[..., str], layout: Layout) -> Callable[..., str]:
    """``drawn(study, figures)``: the text of the page that ``ablate report`` draws, with these figures alone."""

    def run(name: str, *figures: str) -> str:
        file = Path(f"{name}.yaml")
        file.write_text(f"{file.read_text()}figures: [{', '.join(figures)}]\n")
        succeeds("report", name)
        return (layout.study(name, "imported").path / "report" / "report.md").read_text()

    return run
