"""What of the difference between two versions comes from running the same trials on another processor.

The same code on the same kind of processor gives the same bytes; another processor rounds differently, and a trained
policy amplifies that to a run that is as different as one of another seed can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipeline.errors import Gone
from pipeline.run.store import Manifest, artifact_of
from reports.findings.changes import COMPARED
from reports.records.versions import Version

PROCESSOR = ("processor", "instruction_set")
UNKNOWN = "unknown"
"""Of records that are older than these keys."""
POLICY = "policy/"
"""Folder of the trained policy in its artifact."""
ALPHA = 0.05
Cell = tuple[str, int]


@dataclass(frozen=True)
class Shift:
    """Mean difference of an arm between the machines."""

    arm: str
    seeds: int
    difference: float
    limit: float | None
    """What re-running moves the mean of so many seeds by, at most, in 95 % of studies; by the other arms' trials. None
    without another arm."""

    @property
    def exceeds(self) -> bool:
        return self.limit is not None and abs(self.difference) > self.limit


@dataclass(frozen=True)
class Rerun:
    """By how much a trial's metric varies when it is run again on the other processor."""

    metric: str
    pairs: int
    sd: float
    """Of one run about its mean over processors, unit of the metric: sqrt(mean d² / 2) over paired differences d."""
    low: float
    high: float
    """95 %, chi-squared with as many degrees of freedom as pairs."""
    seed_sd: float | None
    """Between the seeds of an arm on the old machine, pooled over arms; None with one seed."""
    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class Machines:
    """Trials of equal configuration and seed in both versions."""

    old: Version
    new: Version

    @cached_property
    def cells(self) -> list[Cell]:
        """That both trained, with equal digests of their configurations."""
        return [
            cell
            for cell, record in sorted(self.old.records.items())
            if cell[0] in self.new.arms
            and (other := self.new.records.get(cell)) is not None
            and record.config_digest == other.config_digest
            and "train" in record.stages.keys() & other.stages.keys()
        ]

    @cached_property
    def processors(self) -> tuple[str, str]:
        """Of the old and of the new version, in words."""
        return _processors(self.old, self.cells), _processors(self.new, self.cells)

    @property
    def known(self) -> bool:
        return UNKNOWN not in self.processors

    @property
    def same(self) -> bool:
        """Whether every trial is known to have run on the same model of processor in both."""
        return self.known and all(_where(self.old, cell) == _where(self.new, cell) for cell in self.cells)

    @cached_property
    def equal(self) -> int:
        """Trials whose policies are equal byte for byte."""
        return sum(self._equal(cell) for cell in self.cells)

    @cached_property
    def otherwise(self) -> list[str]:
        """What else differs between the environments of these trials: commit, versions, threads."""
        keys: dict[str, None] = {}
        for cell in self.cells:
            first, second = (version.records[cell].environment for version in (self.old, self.new))
            keys |= {
                key: None for key in (*first, *second) if key not in PROCESSOR and first.get(key) != second.get(key)
            }
        return list(keys)

    @cached_property
    def reruns(self) -> tuple[Rerun, ...]:
        """One for each metric that both measured."""
        objective = str((self.new.study.get("objective") or {}).get("metric", COMPARED[0]))
        found = (rerun(metric, *self._values(metric)) for metric in dict.fromkeys((objective, *COMPARED)))
        return tuple(one for one in found if one is not None)

    def _values(self, metric: str) -> tuple[dict[Cell, float], dict[Cell, float]]:
        cells = [
            cell for cell in self.cells if (old := _where(self.old, cell)) == UNKNOWN or old != _where(self.new, cell)
        ]
        first, second = (
            {cell: v.records[cell].summary[metric] for cell in cells if metric in v.records[cell].summary}
            for v in (self.old, self.new)
        )
        return first, second

    def _equal(self, cell: Cell) -> bool:
        refs = [version.records[cell].stages["train"] for version in (self.old, self.new)]
        if refs[0].digest is not None and refs[0].digest == refs[1].digest:
            return True
        first, second = (_trained(version, cell) for version in (self.old, self.new))
        if first is None or second is None:
            return False
        weights = [{name: one for name, one in m.files.items() if name.startswith(POLICY)} for m in (first, second)]
        return first.digest == second.digest or (bool(weights[0]) and weights[0] == weights[1])


def rerun(metric: str, old: dict[Cell, float], new: dict[Cell, float]) -> Rerun | None:
    """The spread of one metric over paired trials, and the arms that moved by more; None without a pair."""
    from scipy.special import chdtri

    cells = [cell for cell in old if cell in new]
    if not cells:
        return None
    moved = {cell: new[cell] - old[cell] for cell in cells}
    n, sd = len(cells), _spread(list(moved.values()))
    low, high = (sd * math.sqrt(n / float(chdtri(n, tail))) for tail in (ALPHA / 2, 1 - ALPHA / 2))
    arms = list(dict.fromkeys(arm for arm, _ in cells))
    return Rerun(metric, n, sd, low, high, _between_seeds(old), tuple(_shift(arm, moved, len(arms)) for arm in arms))


def _shift(arm: str, moved: dict[Cell, float], arms: int) -> Shift:
    """Bonferroni over the arms: all stay within their limits in 95 % of studies in which nothing but noise differs."""
    from scipy.special import stdtrit

    own = [value for cell, value in moved.items() if cell[0] == arm]
    rest = [value for cell, value in moved.items() if cell[0] != arm]
    limit = None
    if rest:
        quantile = float(stdtrit(len(rest), 1 - ALPHA / 2 / arms))
        limit = quantile * math.sqrt(2 / len(own)) * _spread(rest)
    return Shift(arm, len(own), math.fsum(own) / len(own), limit)


def _spread(differences: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value**2 for value in differences) / len(differences) / 2)


def _between_seeds(values: dict[Cell, float]) -> float | None:
    by_arm: dict[str, list[float]] = {}
    for (arm, _), value in values.items():
        by_arm.setdefault(arm, []).append(value)
    squares = math.fsum((value - math.fsum(own) / len(own)) ** 2 for own in by_arm.values() for value in own)
    free = sum(len(own) - 1 for own in by_arm.values())
    return math.sqrt(squares / free) if free else None


def _where(version: Version, cell: Cell) -> str:
    named = [version.records[cell].environment.get(key, UNKNOWN) for key in PROCESSOR]
    return UNKNOWN if named[0] == UNKNOWN else ", ".join(one for one in named if one != UNKNOWN)


def _processors(version: Version, cells: Sequence[Cell]) -> str:
    names = sorted({_where(version, cell) for cell in cells})
    return UNKNOWN if UNKNOWN in names or not names else " and ".join(names)


def _trained(version: Version, cell: Cell) -> Manifest | None:
    """What training left; None where that is no longer there."""
    ref = version.records[cell].stages["train"]
    try:
        return artifact_of(version.folder, ref.path, ref.digest)[1]
    except Gone:
        return None
