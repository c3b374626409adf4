"""The plan of a search: TPE asks, trials answer, and a resumed search equals an uninterrupted one.

Nothing of the sampler is kept between calls. Every call replays the search from its records: the sampler is
seeded afresh from (search seed, trial number) before each proposal, trials are told in the order of their
numbers, and trial n is proposed when those up to n - parallel have been told, neither earlier nor later; the
ones between count as running (constant liar). So a proposal depends on the design and on results, and on
nothing else: not on how many trials run at once, nor on which of two ended first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.config.loading import load_config
from pipeline.run.layout import StudyFolder, TrialRecord
from studies.definition.design import Cell
from studies.definition.replicates import seeded
from studies.definition.schema import STOP_KEY, Study
from studies.definition.search import Tried, arm, choose, load, objectives, pareto, save, tried, violations
from studies.definition.space import Dimension
from studies.execution.planner import Ticket, objective_value

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.distributions import BaseDistribution
    from optuna.storages import InMemoryStorage
    from optuna.trial import Trial

STARTUP = 8
"""Trials proposed at random before the sampler models anything."""


class Tuner:
    """Ask and tell for the trials of a search; the counterpart of `studies.execution.planner.Planner`."""

    def __init__(
        self,
        study: Study,
        profile: str,
        overrides: Mapping[str, Any],
        folder: StudyFolder,
        recorded: Callable[[Cell], TrialRecord | None],
    ) -> None:
        """`recorded` gives the record of a cell that has not to be run again."""
        assert study.search is not None
        self._study, self._search, self._profile, self._overrides = study, study.search, profile, dict(overrides)
        self._folder, self._recorded = folder, recorded
        self._space = {key: distribution(dimension) for key, dimension in self._search.space.items()}
        self._optuna, self._storage = _in_memory([aim.direction for aim in objectives(study)])
        self._asked: list[tuple[Trial, Cell]] = []
        self._ended: dict[int, tuple[Tried, TrialRecord | None]] = {}
        self._told = 0
        self._again: list[int] = []
        self._given_up = self._failures_built_on()
        self._news = False
        self.replayed = 0
        """Trials that were found recorded."""

    def ask(self) -> Ticket | None:
        """The next trial to run, or None: there is none, or its proposal waits for results."""
        if self._again:
            return self._ticket(self._again.pop(0))
        while len(self._asked) < self._search.trials and self._tell_until(len(self._asked) - self._search.parallel):
            number = len(self._asked)
            cell = self._propose(number)
            record = self._recorded(cell)
            if record is None and number not in self._given_up:
                return self._ticket(number)
            self._ended[number] = (tried(self._study, number, self._params(number), record), record)
            self.replayed += 1
        return None

    def demand(self, cell: Cell) -> None:
        """Hand a trial out again, before all others."""
        number = next(number for number, (_, asked) in enumerate(self._asked) if asked.arm == cell.arm)
        self._ended.pop(number, None)
        self._again.append(number)

    def tell(self, ticket: Ticket, record: TrialRecord | None) -> None:
        """Take a result; None is a failure, from which the search learns nothing."""
        self._ended[ticket.number] = (tried(self._study, ticket.number, self._params(ticket.number), record), record)
        self._news = True
        save(self._study, self._folder, self.trials, ())

    @property
    def trials(self) -> list[Tried]:
        """Those that have ended, by number."""
        return [self._ended[number][0] for number in sorted(self._ended)]

    @property
    def records(self) -> list[TrialRecord]:
        """Their records."""
        return [record for number in sorted(self._ended) if (record := self._ended[number][1]) is not None]

    def close(self) -> list[Tried]:
        """End the search: write what is to be confirmed, and keep it where Optuna's own tools look. Returns the
        chosen."""
        self._tell_until(len(self._asked) - 1)
        base = load_config(self._profile, below=self._overrides).model_dump(mode="json")
        own = {key: base[key.partition(".")[0]][key.partition(".")[2]] for key in self._search.space}
        chosen = choose(self.trials, objectives(self._study), self._search.confirm.top, own)
        save(self._study, self._folder, self.trials, chosen)
        if self._news or not self._folder.optuna_file.exists():
            self._publish(f"{self._study.name}-search")
        return chosen

    def describe(self, ticket: Ticket) -> str:
        """A trial that has just ended, in one line."""
        trial = self._ended[ticket.number][0]
        knobs = "  ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in trial.overrides.items())
        values = "  ".join(f"{key} {value:.4g}" for key, value in trial.values.items()) or "nothing measured"
        front = pareto(self.trials, objectives(self._study))
        best = (
            f"{'best' if len(objectives(self._study)) == 1 else 'front'} so far:"
            f" {', '.join(map(arm, front)) or 'none feasible'}"
        )
        return f"{trial.arm}: {values}  {'feasible' if trial.feasible else 'infeasible'}  ({knobs})  {best}"

    def _ticket(self, number: int) -> Ticket:
        return Ticket(number, self._asked[number][1])

    def _params(self, number: int) -> dict[str, Any]:
        return dict(self._asked[number][0].params)

    def _propose(self, number: int) -> Cell:
        import optuna

        self._optuna.sampler = optuna.samplers.TPESampler(
            seed=seed_of(self._search.seed, number), n_startup_trials=STARTUP
        )
        trial = self._optuna.ask(self._space)
        (row,) = self._study.replicates
        stop = [self._search.prune.rule.model_dump(mode="json")] if self._search.prune else []
        changes = {**trial.params, STOP_KEY: stop}
        origin = f"{self._study.source or self._study.name}: search, trial {number}"
        config = load_config(self._profile, changes, origin, below=self._overrides)
        cell = Cell(arm(number), row.number, seeded(config, row, self._study.vary))
        self._asked.append((trial, cell))
        return cell

    def _tell_until(self, last: int) -> bool:
        """Tell Optuna all trials up to and with `last`, in order. False while one of them is still running."""
        from optuna.trial import TrialState

        if any(number not in self._ended for number in range(self._told, last + 1)):
            return False
        for number in range(self._told, last + 1):
            trial, record = self._asked[number][0], self._ended[number][1]
            if record is None or record.status == "failed":
                self._optuna.tell(trial, state=TrialState.FAIL)
                continue
            for name, value in violations(self._study, record.status, record.summary).items():
                trial.set_constraint(name, value)
            self._optuna.tell(
                trial, [objective_value(aim, record.status, record.summary) for aim in objectives(self._study)]
            )
        self._told = max(self._told, last + 1)
        return True

    def _publish(self, name: str) -> None:
        """Copy the search into the study's Optuna file, in place of an older copy."""
        import optuna

        if name in optuna.get_all_study_names(self._folder.optuna_uri):
            optuna.delete_study(study_name=name, storage=self._folder.optuna_uri)
        here = self._optuna.study_name
        optuna.copy_study(
            from_study_name=here, from_storage=self._storage, to_storage=self._folder.optuna_uri, to_study_name=name
        )

    def _failures_built_on(self) -> set[int]:
        """Failed trials of an earlier call that later proposals have taken note of.

        To try one of these again would change all trials after it; one that nothing was built on is tried again.
        """
        before = (load(self._study, self._folder) or {}).get("trials", [])
        good = max((trial["number"] for trial in before if trial["status"] != "failed"), default=-1)
        return {
            trial["number"]
            for trial in before
            if trial["status"] == "failed" and trial["number"] + self._search.parallel <= good
        }


def seed_of(seed: int, number: int) -> int:
    """Seed of the sampler that proposes a trial."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def distribution(dimension: Dimension) -> BaseDistribution:
    """Optuna's word for a dimension."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.values is not None:
        return CategoricalDistribution(dimension.values)
    low, high = dimension.ends
    return (
        IntDistribution(low, high, log=dimension.log)
        if dimension.integer
        else FloatDistribution(low, high, log=dimension.log)
    )


def _in_memory(directions: Sequence[str]) -> tuple[OptunaStudy, InMemoryStorage]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.InMemoryStorage()
    return optuna.create_study(directions=list(directions), storage=storage), storage


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
