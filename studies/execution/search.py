"""A search: TPE proposes, trials answer, and every hand computes the same proposals from the records.

Nothing of the sampler is kept between calls. It is seeded afresh from (search seed, trial number) before each proposal,
results enter in the order of their numbers, and trial n is proposed when those up to n - parallel have entered,
neither earlier nor later; the ones between count as running (constant liar). So a proposal depends on the design and on
results alone: not on how many trials run at once, nor on which of two ended first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from pipeline.config.effects import value_at
from pipeline.config.loading import load_config
from pipeline.run.layout import StudyFolder, TrialRecord, replacing
from pipeline.run.metrics import METRICS
from studies.definition.checks import CONFIRM
from studies.definition.design import Cell, Planned, design_digest, seeded, with_code
from studies.definition.fields import STOP_KEY
from studies.definition.schema import Study
from studies.definition.search import Tried, arm, choose, load, objectives, save, tried, violations
from studies.definition.space import Dimension, Objective
from studies.execution.records import is_newer, sound_record

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

STARTUP = 8
"""Trials proposed at random before the sampler models anything."""


class Proposals:
    """The trials of a search that have been proposed, and those that have ended."""

    def __init__(
        self,
        study: Study,
        profile: str,
        overrides: Mapping[str, Any],
        folder: StudyFolder,
        recorded: Callable[[Cell], TrialRecord | None],
    ) -> None:
        """`recorded` gives the record of a trial that is settled."""
        import optuna

        assert study.search is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study, self._search, self._profile, self._overrides = study, study.search, profile, dict(overrides)
        self._folder, self._recorded = folder, recorded
        self._space = {key: distribution(dimension) for key, dimension in self._search.space.items()}
        self.optuna: OptunaStudy = optuna.create_study(directions=[aim.direction for aim in objectives(study)])
        self._asked: list[tuple[Trial, Cell]] = []
        self.ended: dict[int, TrialRecord] = {}
        """Records of the trials that have ended, by number."""
        self._answered = 0
        self.over = False
        """True when all trials have ended, and those to be confirmed are on file."""

    def advance(self) -> list[Cell]:
        """Take in ended trials and propose new ones; returns the proposed trials that have not ended.

        Writes `search.json` where that lacks a trial that has ended.
        """
        known = len(self.ended)
        left = self.replay()
        if not left and not self.over:
            self._save(self._chosen())
            self.over = True
        elif len(self.ended) > known:
            self._save(())
        return left

    def replay(self) -> list[Cell]:
        """Advance as `advance` does, but write nothing."""
        self._take_in()
        while len(self._asked) < self._search.trials and self._tell_until(len(self._asked) - self._search.parallel):
            self._propose(len(self._asked))
            self._take_in()
        left = [cell for number, (_, cell) in enumerate(self._asked) if number not in self.ended]
        if not left:
            self._tell_until(len(self._asked) - 1)
        return left

    @property
    def trials(self) -> list[Tried]:
        """Trials that have ended, by number."""
        return [
            tried(self._study, number, dict(self._asked[number][0].params), self.ended[number])
            for number in sorted(self.ended)
        ]

    def proposed(self) -> list[Cell]:
        """The trials proposed so far, also those that have ended."""
        return [cell for _, cell in self._asked]

    def describe(self, number: int) -> str:
        """A trial that has ended, in one line."""
        trial = next(trial for trial in self.trials if trial.number == number)
        knobs = "  ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in trial.overrides.items())
        values = "  ".join(f"{key} {value:.4g}" for key, value in trial.values.items()) or "nothing measured"
        state = "feasible" if trial.feasible else "infeasible"
        return f"{trial.arm}: {values}  {state}  ({knobs})"

    def summary(self, plan: Sequence[Cell]) -> tuple[str, str]:
        """The whole search in one line, and its style; `plan` holds the trials of the confirmation."""
        arms = list(dict.fromkeys(cell.arm for cell in plan if cell.arm.startswith(CONFIRM)))
        head = f"search: {len(self.trials)} trials, {sum(trial.feasible for trial in self.trials)} feasible; "
        if arms:
            return f"{head}confirmed on fresh seeds and prompts: {', '.join(arms)}", "bold"
        return f"{head}nothing to confirm but the baseline: widen search.space, or relax search.constraints", "yellow"

    def _take_in(self) -> None:
        for number, (_, cell) in enumerate(self._asked):
            if number not in self.ended and (record := self._recorded(cell)) is not None:
                self.ended[number] = record

    def _propose(self, number: int) -> None:
        import optuna

        own = seed_of(self._search.seed, number)
        self.optuna.sampler = optuna.samplers.TPESampler(seed=own, n_startup_trials=STARTUP)
        trial = self.optuna.ask(self._space)
        (seed,) = self._study.seeds
        stop = [self._search.prune.rule.model_dump(mode="json")] if self._search.prune else []
        origin = f"{self._study.source or self._study.name}: search, trial {number}"
        config = load_config(self._profile, {**trial.params, STOP_KEY: stop}, origin, below=self._overrides)
        config = with_code(seeded(config, seed, self._study.vary), self._study)
        self._asked.append((trial, Cell(arm(number), seed, config)))

    def _tell_until(self, last: int) -> bool:
        """Pass all trials up to and with `last` on to Optuna, in order. False while one of them is still running."""
        from optuna.trial import TrialState

        if any(number not in self.ended for number in range(self._answered, last + 1)):
            return False
        for number in range(self._answered, last + 1):
            trial, record = self._asked[number][0], self.ended[number]
            if record.status == "failed":
                self.optuna.tell(trial, state=TrialState.FAIL)
                continue
            for name, value in violations(self._study, record.status, record.summary).items():
                trial.set_constraint(name, value)
            self.optuna.tell(
                trial, [objective_value(aim, record.status, record.summary) for aim in objectives(self._study)]
            )
        self._answered = max(self._answered, last + 1)
        return True

    def _chosen(self) -> list[Tried]:
        base = load_config(self._profile, below=self._overrides).model_dump(mode="json")
        own = {key: value_at(base, key) for key in self._search.space}
        return choose(self.trials, objectives(self._study), self._search.confirm.top, own)

    def _save(self, chosen: Sequence[Tried]) -> None:
        """Write `search.json`, unless another hand has written as much or more."""
        with FileLock(self._folder.lock_file("search")):
            before = load(self._study, self._folder)
            if before is None or len(before["trials"]) < len(self.ended) or chosen:
                save(self._study, self._folder, self.trials, chosen)


def searched(study: Study, profile: str, overrides: Mapping[str, Any], folder: StudyFolder) -> OptunaStudy | None:
    """Rebuild the search of a study from its records; None for a study without one."""
    if study.search is None:
        return None
    proposals = Proposals(study, profile, overrides, folder, partial(sound_record, folder))
    proposals.replay()
    return proposals.optuna


def seed_of(seed: int, number: int) -> int:
    """Seed of the sampler that proposes a trial."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def distribution(dimension: Dimension) -> BaseDistribution:
    """Optuna's word for a dimension."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.values is not None:
        return CategoricalDistribution(dimension.values)
    kind = IntDistribution if dimension.integer else FloatDistribution
    return kind(*dimension.ends, log=dimension.log)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_optuna(
    study: Study,
    folder: StudyFolder,
    plan: Sequence[Planned],
    records: Sequence[TrialRecord],
    search: Callable[[], OptunaStudy | None],
) -> None:
    """Write the compared trials as a study of Optuna, and beside it the search that chose them, where `search` gives
    one.

    Does nothing where the file is newer than the records.
    """
    if is_newer(folder, folder.optuna_file):
        return

    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with replacing(folder.optuna_file) as beside:
        storage = f"sqlite:///{beside}"
        if (searched := search()) is not None:
            optuna.copy_study(
                from_study_name=searched.study_name,
                from_storage=searched._storage,
                to_storage=storage,
                to_study_name=f"{study.name}-search",
            )
        name, direction = f"{study.name}-{design_digest(plan)}", study.objective.direction
        copy = optuna.create_study(storage=storage, study_name=name, direction=direction)
        copy.add_trials(_trials(study, plan, records))


def objective_value(objective: Objective, status: str, summary: Mapping[str, float]) -> float:
    """Return a trial's value of the metric, or the worst value in the metric's direction."""
    value = summary.get(objective.metric)
    if status == "diverged" or value is None or value != value:
        metric = METRICS[objective.metric]
        return metric.low if objective.direction == "maximize" else metric.high
    return value


def _trials(study: Study, plan: Sequence[Planned], records: Sequence[TrialRecord]) -> list[Any]:
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    space = {
        "arm": CategoricalDistribution(list(dict.fromkeys(cell.arm for cell in plan))),
        "seed": CategoricalDistribution(list(dict.fromkeys(cell.seed for cell in plan))),
    }
    return [
        create_trial(
            state=TrialState.FAIL if one.status == "failed" else TrialState.COMPLETE,
            value=None if one.status == "failed" else objective_value(study.objective, one.status, one.summary),
            params={"arm": one.arm, "seed": one.seed},
            distributions=space,
            user_attrs={"arm": one.arm, "seed": one.seed, "config": one.config_digest},
        )
        for one in records
    ]
