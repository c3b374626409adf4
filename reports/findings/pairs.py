"""What an arm and another share: the same metric on the same seeds and prompts, ready to be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.records.load import StudyRecords
from reports.records.trial_tables import PART
from reports.statistics import two_level as stats
from reports.statistics.two_level import Array, Estimate
from studies.definition.schema import IMPORTED

_PART = "eval/reward/"
PER_PROMPT: dict[str, tuple[str, str | None]] = {
    "eval/win_rate": ("win", None),
    "eval/tie_rate": ("tie", None),
    "eval/gold": ("policy_gold", None),
    "eval/gold_reference": ("reference_gold", None),
    "eval/proxy": ("policy_proxy", None),
    "eval/proxy_reference": ("reference_proxy", None),
    "eval/kl_per_token": ("kl", "policy_length"),
    "eval/kl_per_sequence": ("kl", None),
    "eval/entropy": ("entropy", "policy_length"),
    "eval/length": ("policy_length", None),
    "eval/eos_rate": ("policy_eos", None),
}
"""Metrics that are a mean over prompts, or a ratio of two sums over prompts: numerator and denominator column."""


def columns_of(metric: str) -> tuple[str, str | None] | None:
    """The per-prompt columns that a metric is made of, numerator and denominator; None of one that exists once per
    trial."""
    return (PART + metric.removeprefix(_PART), None) if metric.startswith(_PART) else PER_PROMPT.get(metric)


def parts(records: StudyRecords) -> list[str]:
    """Metrics of the parts of a composite reward, of the evaluation."""
    return sorted(str(column) for column in records.trials.columns if str(column).startswith(_PART))


def per_prompt(records: StudyRecords, metric: str) -> tuple[str, str | None] | None:
    """The columns of a metric that is known prompt by prompt: imported trials bring one value each at most."""
    found = columns_of(metric)
    return found if found and found[0] in records.prompts.columns and records.study.kind != IMPORTED else None


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

    def deciding(self, p: float | None, p_seeds: float | None, arms: int) -> float | None:
        """The larger of both p-values, since either test alone can be passed by chance of what it does not draw anew.

        Of a metric that exists once per trial both speak of seeds: Student's alone decides where flipping the signs of
        so few seeds could not go below the level for so many arms, however large the difference.
        """
        if self.once and 2.0 ** (1 - len(self.seeds)) >= stats.ALPHA / arms:
            return p_seeds
        return max(p, p_seeds) if p is not None and p_seeds is not None else None

    def difference(self, level: float = stats.LEVEL) -> Estimate:
        if self.once:
            return stats.over_seeds(list((self.first - self.second)[:, 0]), level)
        return stats.difference(self.first, self.second, self.first_denominator, self.second_denominator, level)

    def p(self) -> float | None:
        if self.once:
            listed = list((self.first - self.second)[:, 0])
            return stats.seed_flip_test(listed) if len(listed) <= 16 else None
        return stats.swap_test(self.first, self.second, self.first_denominator, self.second_denominator)

    def linear(self) -> Array:
        """(S, P) paired differences whose mean is the effect."""
        return stats.linear(self.first, self.first_denominator) - stats.linear(self.second, self.second_denominator)


def pair_of(records: StudyRecords, metric: str, arm: str, other: str) -> Pair | None:
    """Two arms on one metric; None where they share no evaluated seed and prompt."""
    seeds = [seed for seed in records.evaluated(arm) if seed in set(records.evaluated(other))]
    columns = per_prompt(records, metric)
    if columns is None:
        values = [records.recorded(name, metric) for name in (arm, other)]
        seeds = [seed for seed in seeds if all(seed in known for known in values)]
        first, second = (np.array([[known[seed]] for seed in seeds]) for known in values)
        return Pair(seeds, first, second, None, None, True) if seeds else None
    prompts = records.shared_prompts([(name, seed) for name in (arm, other) for seed in seeds])
    if not seeds or not len(prompts):
        return None
    top, bottom = columns
    first, second = (records.answers(name, top, seeds, prompts) for name in (arm, other))
    under = [records.answers(name, bottom, seeds, prompts) if bottom else None for name in (arm, other)]
    return Pair(seeds, first, second, under[0], under[1], False)
