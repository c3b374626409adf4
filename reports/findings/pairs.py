"""What arms share: the same metric on the same seeds and prompts, ready to be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.run.metrics import BY_FAMILY, METRICS
from pipeline.run.metrics import PER_PROMPT as PER_PROMPT
from pipeline.run.metrics import per_prompt as columns_of
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.hierarchical import Moments
from reports.statistics.two_level import Array, Estimate
from studies.importing.trials import ends


def parts(records: StudyRecords) -> list[str]:
    """Metrics of the evaluation that there is one of for every part of a composite reward, or every further judge."""
    return sorted(str(column) for column in records.trials.columns if str(column).startswith(tuple(BY_FAMILY)))


def per_prompt(records: StudyRecords, metric: str) -> tuple[str, str | None] | None:
    """The columns of a metric that is known prompt by prompt."""
    columns = columns_of(metric)
    return columns if columns and records.by_prompt(metric, [key for key in columns if key]) else None


def maximized(records: StudyRecords, metric: str) -> bool:
    """Whether more of a metric is better."""
    objective = records.study.objective
    return (objective.direction if metric == objective.metric else METRICS[metric].direction) != "minimize"


@dataclass(frozen=True)
class Pair:
    """An arm and another on one metric, on the seeds and prompts that both share: (S, P) each, P = 1 where it exists
    once per trial."""

    seeds: list[int]
    first: Array
    second: Array
    first_denominator: Array | None
    second_denominator: Array | None
    once: bool

    def difference(self, level: float = two_level.LEVEL) -> Estimate:
        if self.once:
            return two_level.over_seeds(list((self.first - self.second)[:, 0]), level)
        return two_level.difference(self.first, self.second, self.first_denominator, self.second_denominator, level)

    def lines(self) -> tuple[Array, Array]:
        """(S, P) tables whose means differ by the effect."""
        return (
            two_level.linear(self.first, self.first_denominator),
            two_level.linear(self.second, self.second_denominator),
        )

    def per_seed(self) -> dict[int, float]:
        """The effect on each seed."""
        first, second = self.lines()
        return dict(zip(self.seeds, map(float, (first - second).mean(1)), strict=True))

    def moments(self) -> Moments:
        """What the effect's interval is made of."""
        return two_level.contrast(*self.lines())


def pair_of(records: StudyRecords, metric: str, arm: str, other: str) -> Pair | None:
    """Two arms on one metric; None where they share no evaluated seed and prompt."""
    seeds = [seed for seed in records.evaluated(arm) if seed in set(records.evaluated(other))]
    columns = per_prompt(records, metric)
    if columns is None:
        values = [records.recorded(name, metric) for name in (arm, other)]
        seeds = [seed for seed in seeds if all(seed in known for known in values)]
        first, second = (np.array([[known[seed]] for seed in seeds]) for known in values)
        return Pair(seeds, first, second, None, None, True) if seeds else None
    top, bottom = columns
    needed = [key for key in columns if key]
    seeds = [seed for seed in seeds if all(seed in records.answered(name, needed) for name in (arm, other))]
    prompts = records.shared_prompts([(name, seed) for name in (arm, other) for seed in seeds], needed)
    if not seeds or not len(prompts):
        return None
    first, second = (records.answers(name, top, seeds, prompts) for name in (arm, other))
    under = [records.answers(name, bottom, seeds, prompts) if bottom else None for name in (arm, other)]
    return Pair(seeds, first, second, under[0], under[1], False)


def tables_of(records: StudyRecords, metric: str, arms: Sequence[str]) -> list[tuple[Array, Array | None]] | None:
    """(S, P) numerator and denominator of each arm on the seeds and prompts that all share; None without any."""
    seeds = [seed for seed in records.evaluated(arms[0]) if all(seed in records.evaluated(arm) for arm in arms[1:])]
    columns = per_prompt(records, metric)
    if columns is None:
        values = [_per_trial(records, arm, metric) for arm in arms]
        seeds = [seed for seed in seeds if all(seed in known for known in values)]
        return [(np.array([[known[seed]] for seed in seeds]), None) for known in values] if seeds else None
    needed = [key for key in columns if key]
    seeds = [seed for seed in seeds if all(seed in records.answered(arm, needed) for arm in arms)]
    prompts = records.shared_prompts([(arm, seed) for arm in arms for seed in seeds], needed)
    if not len(prompts):
        return None
    return [
        tuple(records.answers(arm, column, seeds, prompts) if column else None for column in columns)  # type: ignore[misc]
        for arm in arms
    ]


def _per_trial(records: StudyRecords, arm: str, metric: str) -> Mapping[int, float]:
    """Seed -> value of a metric that exists once per trial; of a series the mean of the last tenth of its records."""
    recorded = records.recorded(arm, metric)
    if recorded or metric.startswith("eval/"):
        return recorded
    return {seed: ends({metric: values})[metric] for seed, (_, values) in records.series(arm, metric).items()}


def possible(estimate: Estimate, metric: str, weights: Sequence[float] = (1, -1)) -> Estimate:
    """A contrast cut to what it can be at all: two win rates differ by 1 at most."""
    reach = (METRICS[metric].high - METRICS[metric].low) * math.fsum(map(abs, weights)) / 2
    return estimate.clipped(-reach, reach)
