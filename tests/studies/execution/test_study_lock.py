"""The one driver of a study folder, and what it says where the folder is removed under it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_trial import STUDY

from pipeline.errors import Fault, UserError
from pipeline.run.layout import Layout, StudyFolder
from studies.definition.design import cells
from studies.definition.schema import Study
from studies.execution.planner import Planner
from studies.execution.study_lock import only_driver


@pytest.fixture
def folder(layout: Layout) -> StudyFolder:
    return layout.study("small", "tiny")


def test_a_second_driver_is_refused_and_the_first_lets_go(folder: StudyFolder) -> None:
    with (
        only_driver(folder, "small"),
        pytest.raises(UserError, match=r"study 'small' is being run by another process"),
        only_driver(folder, "small"),
    ):
        pass
    with only_driver(folder, "small"):
        pass


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_removed_under_the_driver_is_named_in_one_line(
    write_study: Callable[..., Study], folder: StudyFolder, whole: bool
) -> None:
    study = write_study(STUDY)
    plan = cells(study, "tiny", {})

    def go() -> None:
        with only_driver(folder, study.name):
            planner = Planner(study, folder, plan)
            planner.demand(plan[0])
            ticket = planner.ask()
            assert ticket is not None
            shutil.rmtree(folder.path) if whole else folder.optuna_file.unlink()
            planner.tell(ticket, None)

    with pytest.raises(Fault) as caught:
        go()
    removed = folder.path if whole else folder.optuna_file
    assert str(caught.value).startswith(f"{removed} was removed meanwhile (")
    assert "\n" not in str(caught.value)
    assert "Run the same command again" in str(caught.value)


@pytest.mark.parametrize("error", [ValueError("a mistake"), sqlite3.OperationalError("locked"), UserError("lr: 0")])
def test_other_errors_pass(folder: StudyFolder, error: Exception) -> None:
    folder.path.mkdir(parents=True)
    folder.optuna_file.touch()
    with pytest.raises(type(error), match=str(error)), only_driver(folder, "small"):
        raise error


def test_a_database_that_was_never_there_is_not_blamed(write_study: Callable[..., Study], tmp_path: Path) -> None:
    """Such as one whose path is too long to be opened."""
    folder = Layout(tmp_path / ("x" * 200) / ("y" * 200) / ("z" * 200)).study("small", "tiny")
    study = write_study(STUDY)
    with pytest.raises(Exception, match="unable to open database file") as caught, only_driver(folder, "small"):
        Planner(study, folder, cells(study, "tiny", {}))
    assert not isinstance(caught.value, Fault)


def test_a_fault_that_speaks_for_itself_keeps_its_words(folder: StudyFolder) -> None:
    said = Fault("the disk is full")
    folder.path.mkdir(parents=True)

    def go() -> None:
        with only_driver(folder, "small"):
            shutil.rmtree(folder.path)
            raise said

    with pytest.raises(Fault) as caught:
        go()
    assert caught.value is said
