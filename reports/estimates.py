"""From records to findings: what each arm reached, how it differs from the baseline, and what fell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.metrics import METRICS
from reports import stats
from reports.load import StudyRecords
from reports.stats import Estimate, Outcome
from studies.falsifiers import Outcome as FalsifierOutcome
from studies.falsifiers import Verdict, overall
from studies.schema import Falsifier
from studies.verdicts import verdicts

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

REPORTED = (
    "eval/win_rate", "eval/tie_rate", "eval/gold", "eval/proxy", "eval/kl_per_token", "eval/kl_per_sequence", "eval/entropy",
    "eval/length", "eval/eos_rate", "eval/distinct_1", "eval/distinct_2", "eval/ppl_reference",
)  # fmt: skip
COMPARED = ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_sequence")
_MINIMIZE = {"eval/kl_per_token", "eval/kl_per_sequence", "eval/ppl_reference"}
_RATES = {"eval/win_rate", "eval/tie_rate", "eval/eos_rate"}


@dataclass(frozen=True)
class ArmResult:
    """One arm: its trials by status and its estimates."""

    arm: str
    counts: dict[str, int]
    seeds: tuple[int, ...]
    """Seeds that were evaluated."""
    estimates: dict[str, Estimate]
    per_seed: dict[str, dict[int, float]]
    """Metric -> seed -> value of that trial."""
    divergence: Estimate | None
    """Share of ended trials that diverged."""


@dataclass(frozen=True)
class Effect:
    """One arm against the baseline on one metric, paired by seed and prompt."""

    metric: str
    arm: str
    estimate: Estimate | None
    per_seed: dict[int, float]
    p: float | None
    p_holm: float | None
    maximize: bool
    outcome: Outcome


@dataclass(frozen=True)
class Claim:
    """A falsifier, its verdict on every trial it speaks of, and on the study."""

    falsifier: Falsifier
    verdicts: tuple[Verdict, ...]
    outcome: FalsifierOutcome

    def by_arm(self) -> dict[str, tuple[Verdict, ...]]:
        arms = dict.fromkeys(verdict.arm for verdict in self.verdicts)
        return {arm: tuple(v for v in self.verdicts if v.arm == arm) for arm in arms}


@dataclass(frozen=True)
class Findings:
    """Everything the page says that had to be computed."""

    arms: tuple[ArmResult, ...]
    effects: tuple[Effect, ...]
    claims: tuple[Claim, ...]

    def arm(self, name: str) -> ArmResult:
        return next(result for result in self.arms if result.arm == name)

    def effects_on(self, metric: str) -> list[Effect]:
        return [effect for effect in self.effects if effect.metric == metric]


def analyse(records: StudyRecords) -> Findings:
    """Estimates of every arm, effects against the baseline with Holm's correction per metric, and verdicts."""
    objective = records.study.objective.metric
    compared = dict.fromkeys((objective, *COMPARED))
    return Findings(
        arms=tuple(_arm(records, arm) for arm in records.arms),
        effects=tuple(effect for metric in compared for effect in _effects(records, metric)),
        claims=_claims(records),
    )


def _arm(records: StudyRecords, arm: str) -> ArmResult:
    seeds = records.evaluated(arm)
    per_seed = {metric: _summaries(records, arm, metric) for metric in REPORTED}
    counts = records.counts(arm)
    ended = sum(counts.get(status, 0) for status in ("complete", "budget", "diverged"))
    return ArmResult(
        arm=arm,
        counts=counts,
        seeds=tuple(seeds),
        estimates={metric: found for metric in REPORTED if (found := _estimate(records, arm, metric, seeds, per_seed)) is not None},
        per_seed={metric: values for metric, values in per_seed.items() if values},
        divergence=stats.wilson(counts.get("diverged", 0), ended) if ended else None,
    )


def _summaries(records: StudyRecords, arm: str, metric: str) -> dict[int, float]:
    """What the evaluation of each trial of an arm recorded, by seed."""
    if metric not in records.trials.columns:
        return {}
    rows = records.trials[(records.trials["arm"] == arm) & records.trials["evaluated"]].dropna(subset=[metric])
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows[metric], strict=True)}


def _estimate(records: StudyRecords, arm: str, metric: str, seeds: list[int], per_seed: dict[str, dict[int, float]]) -> Estimate | None:
    if not seeds:
        return None
    bounds = METRICS[metric].low, METRICS[metric].high
    if metric not in PER_PROMPT:
        values = list(per_seed.get(metric, {}).values())
        return stats.over_seeds(values).clipped(*bounds) if values else None
    top, bottom = PER_PROMPT[metric]
    prompts = records.shared_prompts([(arm, seed) for seed in seeds])
    if not len(prompts):
        return None
    numerator = records.answers(arm, top, seeds, prompts)
    denominator = records.answers(arm, bottom, seeds, prompts) if bottom else None
    found = stats.mean(numerator, denominator)
    if metric in _RATES and found.low == found.high and found.value in (0.0, 1.0):
        # The bootstrap of a constant has no width; completions of one prompt are not independent, so n = prompts.
        rate = stats.wilson(found.value * len(prompts), len(prompts))
        return Estimate(found.value, rate.low, rate.high, found.seeds, found.prompts, "wilson")
    return found.clipped(*bounds)


def _effects(records: StudyRecords, metric: str) -> list[Effect]:
    base = records.study.baseline
    objective = records.study.objective
    maximize = objective.direction == "maximize" if metric == objective.metric else metric not in _MINIMIZE
    found = [(arm, *_compare(records, metric, arm, base)) for arm in records.arms if arm != base]
    tested = [index for index, (_, _, _, p) in enumerate(found) if p is not None]
    corrected = dict(zip(tested, stats.holm([p for *_, p in found if p is not None]), strict=True))
    return [
        Effect(metric, arm, estimate, per_seed, p, corrected.get(i), maximize, stats.verdict(estimate, corrected.get(i), maximize))
        for i, (arm, estimate, per_seed, p) in enumerate(found)
    ]


def _compare(records: StudyRecords, metric: str, arm: str, base: str) -> tuple[Estimate | None, dict[int, float], float | None]:
    seeds = [seed for seed in records.evaluated(arm) if seed in set(records.evaluated(base))]
    if not seeds:
        return None, {}, None
    if metric not in PER_PROMPT:
        return _compare_seeds(records, metric, arm, base, seeds)
    prompts = records.shared_prompts([(name, seed) for name in (arm, base) for seed in seeds])
    if not len(prompts):
        return None, {}, None
    top, bottom = PER_PROMPT[metric]
    first, second = (records.answers(name, top, seeds, prompts) for name in (arm, base))
    under = [records.answers(name, bottom, seeds, prompts) if bottom else np.ones_like(first) for name in (arm, base)]
    per_seed = first.sum(1) / under[0].sum(1) - second.sum(1) / under[1].sum(1)
    estimate = stats.difference(first, second, under[0], under[1])
    p = stats.swap_test(first, second, under[0], under[1])
    return estimate, dict(zip(seeds, map(float, per_seed), strict=True)), p


def _compare_seeds(
    records: StudyRecords, metric: str, arm: str, base: str, seeds: list[int]
) -> tuple[Estimate | None, dict[int, float], float | None]:
    first, second = _summaries(records, arm, metric), _summaries(records, base, metric)
    differences = {seed: first[seed] - second[seed] for seed in seeds if seed in first and seed in second}
    if not differences:
        return None, {}, None
    listed = list(differences.values())
    return stats.over_seeds(listed), differences, stats.seed_flip_test(listed) if len(listed) <= 16 else None


def _claims(records: StudyRecords) -> tuple[Claim, ...]:
    """The verdicts that `falsify` gives, grouped by claim."""
    found = verdicts(records.study, records.folder, records.plan)
    grouped = {
        falsifier.name: tuple(verdict for verdict in found if verdict.name == falsifier.name) for falsifier in records.study.falsifiers
    }
    return tuple(Claim(falsifier, grouped[falsifier.name], overall(grouped[falsifier.name])) for falsifier in records.study.falsifiers)
