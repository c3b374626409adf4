"""A study to send, and a store for it: in memory, or MLflow's own database."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import fake_trial
import pytest
from tracked_study import Tracked

from pipeline.run.layout import Layout
from studies.definition.schema import load_study
from studies.tracking import store


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = Layout(tmp_path_factory.mktemp("store"))
    store.connect(layout)
    return layout.mlflow_file


@pytest.fixture
def make(tmp_path: Path, empty_store: Path) -> Callable[..., Tracked]:
    """``make()``: the study of `fake_trial`, with MLflow's database in its output root; to migrate a new one takes
    seconds. Another text, output root and name can be given."""

    def made(text: str = fake_trial.STUDY, out: str = "out", name: str = "small") -> Tracked:
        (tmp_path / f"{name}.yaml").write_text(text)
        tracked = Tracked(load_study(tmp_path / f"{name}.yaml"), Layout(tmp_path / out))
        shutil.copy(empty_store, tracked.layout.mlflow_file)
        return tracked

    return made
