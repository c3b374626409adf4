"""The reading of one log, and the command, in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl_logs
import yaml
from typer.testing import CliRunner

from ablate import app
from pipeline.run.layout import Layout
from studies.importing.logs import find_logs
from studies.importing.maps import check_columns, load_map
from studies.importing.trials import ImportedTrial, read_trial


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ImportedTrial]:
    """``read(rows, key=value, ...)``: the trial that a log of these rows is by a map with these entries."""

    def of(rows: trl_logs.Rows, **entries: Any) -> ImportedTrial:
        (tmp_path / "map.yaml").write_text(yaml.safe_dump({"program": "trl-ppo", "steps_per_update": 16, **entries}))
        trl_logs.write(tmp_path / "logs" / "a-seed0.jsonl", rows)
        own, stated = load_map("map.yaml")
        logs, _ = find_logs(tmp_path / "logs", own)
        check_columns(own, stated, [*logs["a", 0]])
        return read_trial(("a", 0), logs["a", 0], own)

    return of


@pytest.fixture
def run(layout: Layout) -> Callable[..., str]:
    """``run(code, arguments)``: the output of a command, on one line, that must end with this exit code."""

    def call(code: int, *arguments: Any) -> str:
        done = CliRunner().invoke(app, [*map(str, arguments), "--out", str(layout.root)])
        assert done.exit_code == code, done.output
        assert "Traceback" not in done.output
        return " ".join(str(done.output).split())

    return call
