"""The trials of a search, read from ``search.json``: tuning is shown apart from its confirmation on fresh seeds."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.run.layout import StudyFolder, read_sealed
from studies.definition.schema import Study
from studies.definition.search import Tried, trial_of


@dataclass(frozen=True)
class SearchResult:
    """All trials of a search, its front, and its confirmation."""

    trials: tuple[Tried, ...]
    pareto: tuple[int, ...]
    """Numbers of the trials that no other one beats on all objectives."""
    confirmed: dict[str, int]
    """Arm of the confirmation -> number of the trial it repeats."""

    @property
    def metrics(self) -> list[str]:
        """Metrics that some trial has, in the order of first appearance."""
        return list(dict.fromkeys(key for trial in self.trials for key in trial.values))

    @property
    def knobs(self) -> list[str]:
        """Knobs that were searched."""
        return list(dict.fromkeys(key for trial in self.trials for key in trial.overrides))


def load_search(folder: StudyFolder, study: Study) -> SearchResult | None:
    """Read the search of a study; None where it has none or the file is of another search than the study gives now.

    Raises `Damaged`.
    """
    if study.search is None or not folder.search_file.exists():
        return None
    with folder.naming_remedy():
        content = read_sealed(folder.search_file)
    if content["search"] != study.search.model_dump(mode="json"):
        return None
    return SearchResult(
        trials=tuple(trial_of(entry) for entry in content["trials"]),
        pareto=tuple(int(number) for number in content["pareto"]),
        confirmed={str(entry["arm"]): int(entry["number"]) for entry in content["confirmed"]},
    )
