"""The queue of a study's cells: its order, what a driver that died has left in it, and what asking it costs."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest

from pipeline.run.layout import Layout, StudyFolder
from studies.definition.design import Cell, cells
from studies.definition.schema import Study
from studies.execution.planner import Planner


@pytest.fixture
def study(write_study: Callable[..., Study]) -> Study:
    return write_study()


@pytest.fixture
def folder(study: Study, layout: Layout) -> StudyFolder:
    folder = layout.study(study.name, "tiny")
    folder.path.mkdir(parents=True)
    return folder


@pytest.fixture
def plan(study: Study) -> list[Cell]:
    return cells(study)


def asked(planner: Planner) -> list[tuple[str, int]]:
    tickets = iter(planner.ask, None)
    return [(ticket.cell.arm, ticket.cell.seed) for ticket in tickets if ticket is not None]


def keys(plan: list[Cell]) -> list[tuple[str, int]]:
    return [(cell.arm, cell.seed) for cell in plan]


def test_cells_are_asked_in_the_order_of_their_demand_and_once(
    study: Study, folder: StudyFolder, plan: list[Cell]
) -> None:
    planner = Planner(study, folder, plan)
    assert planner.ask() is None
    for cell in [*plan[::-1], *plan]:
        planner.demand(cell)
    assert asked(planner) == keys(plan[::-1])


def test_what_a_driver_that_died_has_left_waiting_or_running_comes_first_or_again(
    study: Study, folder: StudyFolder, plan: list[Cell]
) -> None:
    first = Planner(study, folder, plan)
    first.demand(plan[2])
    assert asked(first) == keys(plan[2:3])
    for cell in (plan[3], plan[1]):  # as a driver leaves them that is killed before it asks
        params = {"arm": cell.arm, "seed": cell.seed}
        first._study.enqueue_trial(params, user_attrs=params)
    planner = Planner(study, folder, plan)
    for cell in plan:
        planner.demand(cell)
    assert asked(planner) == keys([plan[3], plan[1], plan[0], plan[2]])
    states = [trial.state.name for trial in planner._study.trials]
    assert states == ["FAIL", "RUNNING", "RUNNING", "RUNNING", "RUNNING"]


def test_who_demands_and_asks_does_not_read_the_plan_each_time(
    study: Study, folder: StudyFolder, plan: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Planner(study, folder, plan)
    waiting = list[int]()
    enqueue = optuna.Study.enqueue_trial

    def counted(own: optuna.Study, *arguments: object, **more: object) -> None:
        enqueue(own, *arguments, **more)  # type: ignore[arg-type]
        waiting.append(sum(trial.state.name == "WAITING" for trial in own.trials))

    monkeypatch.setattr(optuna.Study, "enqueue_trial", counted)
    for cell in plan:
        planner.demand(cell)
    assert len(asked(planner)) == len(plan)
    assert waiting == [1] * len(plan)
