"""The plan in Optuna: which cells are to run, which run, which have ended and how well. One driver owns the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.run.layout import write_json
from pipeline.run.metrics import METRICS
from studies.definition.design import Cell, design_digest
from studies.definition.schema import Study
from studies.definition.space import Objective

if TYPE_CHECKING:
    from pipeline.run.layout import StudyFolder, TrialRecord


SETTLED = ".settled.json"
"""What the plan in Optuna looked like when it had been told of every cell."""


@dataclass(frozen=True)
class Ticket:
    """A cell that the planner has handed out, and the number under which it expects the answer."""

    number: int
    cell: Cell


class Planner:
    """Ask and tell for the cells of a study.

    The Optuna study is named after the design, so that an edited YAML starts a new plan instead of
    colliding with the old one; cells that are already recorded are then told from their records.
    """

    def __init__(self, study: Study, folder: StudyFolder, plan: Sequence[Cell]) -> None:
        """Open the plan; trials left running by a driver that died are told as failed. Raises what SQLAlchemy and
        Optuna raise."""
        import optuna
        from optuna.trial import TrialState

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = TrialState
        self._objective = study.objective
        self._cells = {(cell.arm, cell.seed): cell for cell in plan}
        choices = optuna.distributions.CategoricalDistribution
        self._space = {
            "arm": choices(list(dict.fromkeys(cell.arm for cell in plan))),
            "seed": choices(list(dict.fromkeys(cell.seed for cell in plan))),
        }
        self._study = optuna.create_study(
            storage=folder.optuna_uri,
            study_name=f"{study.name}-{design_digest(plan)}",
            direction=study.objective.direction,
            load_if_exists=True,
        )
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        self._found_waiting = {(trial.user_attrs["arm"], trial.user_attrs["seed"]) for trial in waiting}
        self._queue = {key: self._cells[key] for key in self._found_waiting}
        self.settled()  # reads every trial: a file that cannot be understood shows itself here

    def demand(self, cell: Cell) -> None:
        """Put a cell in the queue, unless it is there already."""
        self._queue.setdefault((cell.arm, cell.seed), cell)

    def ask(self) -> Ticket | None:
        """The next cell in the queue, or None.

        Optuna learns of a cell here, one at a time: it reads all that wait whenever it is asked.
        """
        if not self._queue:  # Optuna would invent a cell
            return None
        if not self._found_waiting:
            (arm, seed), cell = next(iter(self._queue.items()))
            params = {"arm": arm, "seed": seed}
            self._study.enqueue_trial(params, user_attrs={**params, "config": cell.config.digest()})
        trial = self._study.ask(self._space)
        asked = trial.params["arm"], trial.params["seed"]
        self._found_waiting.discard(asked)
        return Ticket(trial.number, self._queue.pop(asked, self._cells[asked]))

    def settled(self) -> set[tuple[str, int]]:
        """Arm and seed of cells that have been told a value."""
        return {
            (trial.params["arm"], trial.params["seed"])
            for trial in self._study.get_trials(deepcopy=False, states=(self._states.COMPLETE,))
        }

    def tell(self, ticket: Ticket, record: TrialRecord | None) -> None:
        """Answer a ticket; None is a failure. A trial that diverged, or could not be judged, is the worst there is,
        never nothing."""
        if record is None or record.status == "failed":
            self._study.tell(ticket.number, state=self._states.FAIL)
        else:
            self._study.tell(ticket.number, objective_value(self._objective, record.status, record.summary))

    def describe(self, ticket: Ticket) -> str | None:
        """What to say of a trial that has ended; the table of the arms says it all."""
        return None


def is_settled(study: Study, folder: StudyFolder, plan: Sequence[Cell]) -> bool:
    """Whether the plan in Optuna was told of all these cells and its file has not changed since, so that it need not be
    opened."""
    try:
        return bool(json.loads((folder.path / SETTLED).read_text("utf-8")) == _settled(study, folder, plan))
    except (OSError, ValueError):
        return False


def remember_settled(study: Study, folder: StudyFolder, plan: Sequence[Cell]) -> None:
    """Note that the plan in Optuna has been told of all these cells."""
    write_json(folder.path / SETTLED, _settled(study, folder, plan))


def _settled(study: Study, folder: StudyFolder, plan: Sequence[Cell]) -> dict[str, object]:
    state = (folder.path / "optuna.db").stat()
    return {"plan": f"{study.name}-{design_digest(plan)}", "bytes": state.st_size, "modified_ns": state.st_mtime_ns}


def objective_value(objective: Objective, status: str, summary: Mapping[str, float]) -> float:
    """What a trial counts as: its metric, or the worst value that the metric's direction knows."""
    value = summary.get(objective.metric)
    if status == "diverged" or value is None or value != value:
        metric = METRICS[objective.metric]
        return metric.low if objective.direction == "maximize" else metric.high
    return value
