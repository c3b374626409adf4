from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.layout import Layout
from studies.definition.schema import Study, load_study
from studies.execution import study as running
from studies.tracking.sync import Synced

HERE = str(Path(__file__).parent)
if HERE not in sys.path:  # children inherit the path and find `fake_trial` on it
    sys.path.insert(0, HERE)


@pytest.fixture(scope="session", autouse=True)
def _impatient_sqlite() -> Iterator[None]:
    """Databases of tests need not survive a power cut; waiting for the disk would be most of their time."""
    from sqlalchemy import Engine, event

    def hurry(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(Engine, "connect", hurry)
    yield
    event.remove(Engine, "connect", hurry)


@pytest.fixture
def write_study(tmp_path: Path) -> Callable[..., Study]:
    from fake_trial import STUDY

    def write(text: str = STUDY, name: str = "small") -> Study:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return load_study(path)

    return write


@pytest.fixture
def no_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave MLflow out where a test is not about it: opening its store takes seconds."""
    monkeypatch.setattr(running, "sync", lambda *arguments, **more: Synced(True, 0))


@pytest.fixture
def whole(write_study: Callable[..., Study], tmp_path: Path) -> dict[str, bytes]:
    """The results of processes on this machine for the study `fake_trial.SHORT`."""
    from fake_trial import SHORT
    from light_study import go, results

    layout = Layout(tmp_path / "whole")
    return results(go(write_study(SHORT), layout, "processes")[0], layout)
