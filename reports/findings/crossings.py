"""Crossed knobs: the effect of one knob at each level of another, and whether the two effects add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

from pipeline.config.trial import flatten
from reports.findings.pairs import contrast_of
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.two_level import Estimate
from studies.definition.hypotheses import Weights
from studies.definition.testable import SEEDS


@dataclass(frozen=True)
class Crossing:
    """Two knobs whose values were combined in full, with everything else as in the baseline."""

    rows: str
    columns: str
    row_values: tuple[Any, ...]
    column_values: tuple[Any, ...]
    arms: dict[tuple[Any, Any], str]
    """(row value, column value) -> arm."""
    baseline: tuple[Any, Any]

    @property
    def transposed(self) -> Crossing:
        """The same cells with rows and columns exchanged."""
        arms = {(column, row): arm for (row, column), arm in self.arms.items()}
        row, column = self.baseline
        return Crossing(self.columns, self.rows, self.column_values, self.row_values, arms, (column, row))


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of arms on the seeds and prompts that they share, tested against 0."""

    weights: Weights
    estimate: Estimate | None
    p: float | None
    """Two-sided, over new seeds and new prompts; None from a single seed, which gives no inference on new ones."""
    p_holm: float | None = None
    """`p` with Holm's correction over the contrasts of its kind in its crossing."""

    @property
    def differs(self) -> bool:
        """True where it is distinguishable from 0: the corrected p is below alpha and the interval excludes 0."""
        small = self.p_holm is not None and self.p_holm < two_level.ALPHA
        return small and self.estimate is not None and self.estimate.excludes_zero


@dataclass(frozen=True)
class SimpleEffect:
    """A value of one knob minus its baseline value, at one level of the other knob."""

    knob: str
    value: Any
    base: Any
    other: str
    level: Any
    contrast: Contrast


@dataclass(frozen=True)
class Interaction:
    """``cell - row alone - column alone + baseline``: 0 where the effects of both knobs add up."""

    row: Any
    column: Any
    contrast: Contrast


_One = TypeVar("_One", SimpleEffect, Interaction)


@dataclass(frozen=True)
class Crossed:
    """A crossing with its contrasts on the study's objective."""

    crossing: Crossing
    effects: tuple[SimpleEffect, ...]
    """The column knob's at each row value, then the row knob's at each column value; the baseline's level first."""
    interactions: tuple[Interaction, ...]
    """Interactions of each cell beside the baseline's row and column."""

    @property
    def simple_effects(self) -> tuple[SimpleEffect, ...]:
        """Effects of the column knob alone."""
        return tuple(one for one in self.effects if one.knob == self.crossing.columns)

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        return *(one.contrast for one in self.effects), *(one.contrast for one in self.interactions)


def crossed(records: StudyRecords) -> tuple[Crossed, ...]:
    """Every crossing of the study with its simple effects and interactions on the objective.

    All contrasts are paired by seed, and by prompt where the metric is known prompt by prompt.
    """
    found = []
    for crossing in crossings(records):
        effects = [*_row_by_row(records, crossing), *_row_by_row(records, crossing.transposed)]
        found.append(Crossed(crossing, _corrected(effects), _corrected(list(_interactions(records, crossing)))))
    return tuple(found)


def crossings(records: StudyRecords) -> list[Crossing]:
    """Every pair of varied knobs with a full product of at least 2 x 2 around the baseline, in the order of the
    study."""
    own = {arm: dict(flatten(overrides)) for arm, overrides in records.study.arm_overrides().items()}
    varied = list(dict.fromkeys(key for overrides in own.values() for key in overrides))
    if not records.configs:
        return []  # run by another program: what its arms held equal is not known
    settings = {arm: dict(flatten(config.model_dump(mode="json"))) for arm, config in records.configs.items()}
    values = {arm: {key: _plain(settings[arm].get(key, own[arm].get(key))) for key in varied} for arm in own}
    base = values[records.study.baseline]
    found = []
    for first, second in combinations(varied, 2):
        others = [key for key in varied if key not in (first, second)]
        arms = {
            (at[first], at[second]): arm for arm, at in values.items() if all(at[key] == base[key] for key in others)
        }
        rows, columns = (tuple(dict.fromkeys(pair[axis] for pair in arms)) for axis in (0, 1))
        if len(rows) > 1 and len(columns) > 1 and len(arms) == len(rows) * len(columns):
            found.append(Crossing(first, second, _ordered(rows), _ordered(columns), arms, (base[first], base[second])))
    return found


def _row_by_row(records: StudyRecords, crossing: Crossing) -> Iterator[SimpleEffect]:
    """Compare, in each row, every value of the columns' knob with its baseline value."""
    (base_row, base), arms = crossing.baseline, crossing.arms
    for row in sorted(crossing.row_values, key=lambda row: bool(row != base_row)):
        for value in crossing.column_values:
            if value != base:
                contrast = _contrast(records, {arms[row, value]: 1.0, arms[row, base]: -1.0})
                yield SimpleEffect(crossing.columns, value, base, crossing.rows, row, contrast)


def _interactions(records: StudyRecords, crossing: Crossing) -> Iterator[Interaction]:
    (base_row, base_column), arms = crossing.baseline, crossing.arms
    for row in crossing.row_values:
        for column in crossing.column_values:
            if row != base_row and column != base_column:
                alone = {arms[row, base_column]: -1.0, arms[base_row, column]: -1.0}
                weights = {arms[row, column]: 1.0, **alone, arms[crossing.baseline]: 1.0}
                yield Interaction(row, column, _contrast(records, weights))


def _contrast(records: StudyRecords, weights: Weights) -> Contrast:
    metric = records.study.objective.metric
    effect = contrast_of(records, metric, weights)
    return Contrast(weights, effect, two_level.two_level_p(effect) if effect and effect.seeds >= SEEDS else None)


def _corrected(tested: Sequence[_One]) -> tuple[_One, ...]:
    found = zip(tested, two_level.holm([one.contrast.p for one in tested]), strict=True)
    return tuple(replace(one, contrast=replace(one.contrast, p_holm=p)) for one, p in found)


def _ordered(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers by size; words as the study gives them."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return tuple(sorted(values)) if numbers else values


def _plain(value: Any) -> Any:
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else value
