"""Data that arms share: the same metric on the same seeds and prompts, ready to be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.intervals import last_tenth
from pipeline.run.metrics import BY_FAMILY, METRICS
from pipeline.run.metrics import PER_PROMPT as PER_PROMPT
from pipeline.run.metrics import per_prompt as columns_of
from reports.records.load import StudyRecords
from reports.statistics import contrast, two_level
from reports.statistics.hierarchical import Moments, moments
from reports.statistics.two_level import Array, Estimate

if TYPE_CHECKING:
    from reports.findings.findings import ArmResult

GOLD, PROXY = "eval/win_rate", "eval/win_rate_proxy"
LIKED = 0.7
"""Share of comparisons that a policy has to win to be called preferred."""
SMALLEST = {"eval/win_rate": 0.05, "eval/win_rate_proxy": 0.05}
"""Smallest differences that matter, where the study gives none: five points of win rate."""
SMALL_EFFECT = 0.2
"""The same for other metrics, in standard deviations of the baseline over prompts: a small effect (Cohen, 1988)."""


def parts(records: StudyRecords) -> list[str]:
    """Metrics of the evaluation that there is one of for every part of a composite reward, or every further judge."""
    return sorted(str(column) for column in records.trials.columns if str(column).startswith(tuple(BY_FAMILY)))


def per_prompt(records: StudyRecords, metric: str) -> tuple[str, str | None] | None:
    """The columns of a metric that is known prompt by prompt."""
    columns = columns_of(metric)
    return columns if columns and records.by_prompt(metric, [key for key in columns if key]) else None


def once(records: StudyRecords, metric: str) -> bool:
    """Return whether a metric exists once per trial, so that only seeds can distinguish arms."""
    return per_prompt(records, metric) is None


def maximized(records: StudyRecords, metric: str) -> bool:
    """Return whether more of a metric is better."""
    objective = records.study.objective
    return (objective.direction if metric == objective.metric else METRICS[metric].direction) != "minimize"


@dataclass(frozen=True)
class Shared:
    """One metric of several arms on the seeds and prompts that all of them have; P = 1 where it exists once per
    trial."""

    seeds: list[int]
    tables: list[tuple[Array, Array | None]]
    """(S, P) numerator and denominator of each arm."""
    once: bool

    def difference(self) -> Estimate:
        """The first arm minus the second."""
        return contrast.estimate((1, -1), self.tables)

    def lines(self) -> tuple[Array, Array]:
        """(S, P) tables of two arms whose means differ by the effect."""
        first, second = (two_level.linear(*table) for table in self.tables)
        return first, second

    def per_seed(self) -> dict[int, float]:
        """The effect on each seed."""
        first, second = self.lines()
        return dict(zip(self.seeds, map(float, (first - second).mean(1)), strict=True))

    def moments(self) -> Moments:
        """Moments from which the effect's interval is computed."""
        first, second = self.lines()
        return replace(moments(first - second), spread=np.hypot(moments(first).spread, moments(second).spread))


def shared(records: StudyRecords, metric: str, arms: Sequence[str], *, series: bool = False) -> Shared | None:
    """A metric of several arms; None where they share no evaluated seed and prompt. `series`: where a metric was not
    evaluated, the end of its series stands for it."""
    evaluated = [set(records.evaluated(arm)) for arm in arms]
    seeds = [seed for seed in records.evaluated(arms[0]) if all(seed in own for own in evaluated)]
    columns = per_prompt(records, metric)
    if columns is None:
        values = [_ended(records, arm, metric) if series else records.recorded(arm, metric) for arm in arms]
        seeds = [seed for seed in seeds if all(seed in known for known in values)]
        tables = [(np.array([[known[seed]] for seed in seeds]), None) for known in values]
        return Shared(seeds, list(tables), True) if seeds else None
    top, bottom = columns
    needed = [key for key in columns if key]
    seeds = [seed for seed in seeds if all(seed in records.answered(arm, needed) for arm in arms)]
    prompts = records.shared_prompts([(arm, seed) for arm in arms for seed in seeds], needed)
    if not seeds or not len(prompts):
        return None
    above = [records.answers(arm, top, seeds, prompts) for arm in arms]
    below = [records.answers(arm, bottom, seeds, prompts) if bottom else None for arm in arms]
    return Shared(seeds, list(zip(above, below, strict=True)), False)


def contrast_of(records: StudyRecords, metric: str, weights: Mapping[str, float]) -> Estimate | None:
    """A weighted sum of arms on the seeds and prompts that all share; None without any."""
    found, factors = shared(records, metric, list(weights), series=True), list(weights.values())
    return possible(contrast.estimate(factors, found.tables), metric, factors) if found else None


def smallest_of(records: StudyRecords, metric: str, pair: Shared) -> float | None:
    """The smallest difference that matters, in the metric's unit: `objective.smallest` of the study, `SMALLEST`, or
    `SMALL_EFFECT` standard deviations of the baseline over prompts; None of another metric that exists once per
    trial."""
    objective = records.study.objective
    stated = objective.smallest if metric == objective.metric else None
    if stated is not None or metric in SMALLEST:
        return stated if stated is not None else SMALLEST[metric]
    return None if pair.once else SMALL_EFFECT * float(moments(pair.lines()[1]).spread) or None


def _ended(records: StudyRecords, arm: str, metric: str) -> Mapping[int, float]:
    """Seed -> value of a metric that exists once per trial; of a series the mean of the last tenth of its records."""
    recorded = records.recorded(arm, metric)
    if recorded or metric.startswith("eval/"):
        return recorded
    return {seed: last_tenth(values) for seed, (_, values) in records.series(arm, metric).items()}


def possible(estimate: Estimate, metric: str, weights: Sequence[float] = (1, -1)) -> Estimate:
    """A contrast cut to its possible range: two win rates differ by 1 at most."""
    reach = (METRICS[metric].high - METRICS[metric].low) * math.fsum(map(abs, weights)) / 2
    return estimate.clipped(-reach, reach)


def excess(records: StudyRecords, arm: str) -> Estimate | None:
    """Win rate by the proxy - win rate by the judge, of the same answers, as the reports estimate paired effects (new
    seeds and new prompts); None where the two are not known of the same seeds and prompts."""
    columns = [pair[0] for metric in (PROXY, GOLD) if (pair := per_prompt(records, metric))]
    seeds = records.answered(arm, columns) if len(columns) == 2 else []
    prompts = records.shared_prompts([(arm, seed) for seed in seeds], columns)
    if not len(prompts):
        return None
    proxy, gold = (records.answers(arm, column, seeds, prompts) for column in columns)
    return contrast.estimate((1, -1), [(proxy, None), (gold, None)]).clipped(-1.0, 1.0)


def by_the_proxy_alone(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """Return the arms that are shown to win more by the proxy than by the judge: the interval of the proxy's win rate
    is above `LIKED`, that of the judge's is below the proxy's rate, and that of the paired difference is above 0."""
    return [arm for arm in arms if _shown(arm.estimates.get(GOLD), arm.estimates.get(PROXY), arm.excess)]


def _shown(gold: Estimate | None, proxy: Estimate | None, apart: Estimate | None) -> bool:
    if not gold or not proxy or not apart or gold.high is None or proxy.low is None or apart.low is None:
        return False
    return proxy.low > LIKED and gold.high < proxy.value and apart.low > 0
