"""The findings of a study: each arm's results, its differences from the baseline, and the claims that fell."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.run.metrics import METRICS
from reports.findings import matched_kl, trajectories
from reports.findings.crossings import Crossed, crossed
from reports.findings.hypotheses import Judgement, judge
from reports.findings.matched_kl import MatchedKL
from reports.findings.pairs import Shared, excess, maximized, parts, possible, shared, smallest_of
from reports.findings.pairs import once as once
from reports.findings.recommendation import Recommendation, recommend
from reports.findings.trajectories import ArmAlarm, ArmPeak, Paths, gold_peaks, healths
from reports.records.load import SearchResult, StudyRecords, load_search
from reports.statistics import power, two_level
from reports.statistics.two_level import Estimate, Tested
from studies.claims.evaluations import RATES
from studies.claims.falsifiers import Outcome as FalsifierOutcome
from studies.claims.falsifiers import Verdict, overall
from studies.claims.symptoms import ArmHealth
from studies.claims.verdicts import verdicts
from studies.definition.falsifier import Falsifier

REPORTED = (
    "eval/win_rate", "eval/win_rate_proxy", "eval/preference_accuracy", "eval/tie_rate", "eval/gold", "eval/proxy",
    "eval/kl_per_token", "eval/kl_per_sequence", "eval/entropy", "eval/perplexity_texts",
    "eval/perplexity_texts_reference",
    "eval/length", "eval/eos_rate", "eval/distinct_1", "eval/distinct_2", "eval/ppl_reference",
    "eval/fault_rate", "eval/fault_rate_reference",
)  # fmt: skip
COMPARED = ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_sequence")
ENDS = (
    "objective/scores", "objective/gold", "objective/kl", "objective/kl_per_token", "objective/kl_k3_per_token",
    "objective/entropy", "policy/entropy",
)  # fmt: skip
"""Metrics of trials that were never evaluated here, reported and compared: where their training ended."""


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
    planned: int
    """Seeds that the design gives."""
    excess: Estimate | None
    """Win rate by the proxy minus that by the judge, paired (`reports.findings.pairs`)."""

    @property
    def flags(self) -> str:
        """Trials that did not run to their end, such as ``1 diverged``."""
        return ", ".join(f"{n} {status}" for status, n in self.counts.items() if status != "complete")


@dataclass(frozen=True)
class Effect(Tested):
    """One arm against the baseline on one metric, paired by seed and prompt; the family is the arms of the metric."""

    metric: str
    arm: str
    estimate: Estimate | None
    per_seed: dict[int, float]
    maximize: bool
    smallest: float | None
    """The smallest difference that matters; None where nobody stated one and it cannot be derived."""


@dataclass(frozen=True)
class Power:
    """The difference on the objective that this design would have found in one arm, had it been there."""

    arm: str
    metric: str
    detectable: float
    """Difference found with 80 % power at Holm's strictest step."""
    target: float | None
    """The smallest difference that matters (`smallest_of`)."""
    seeds: int
    seeds_needed: int | None
    """Seeds that find `target` on as many prompts; None where it is unknown (one seed) or no number is enough on so few
    prompts."""


@dataclass(frozen=True)
class Claim:
    """A falsifier, its verdict on every trial of its arms, and on the study."""

    falsifier: Falsifier
    verdicts: tuple[Verdict, ...]
    outcome: FalsifierOutcome

    def by_arm(self) -> dict[str, tuple[Verdict, ...]]:
        arms = dict.fromkeys(verdict.arm for verdict in self.verdicts)
        return {arm: tuple(v for v in self.verdicts if v.arm == arm) for arm in arms}


@dataclass(frozen=True)
class Findings:
    """All computed content of the page."""

    arms: tuple[ArmResult, ...]
    effects: tuple[Effect, ...]
    claims: tuple[Claim, ...]
    power: tuple[Power, ...]
    paths: Paths
    """(arm, seed) -> KL and rewards along the training."""
    matched: tuple[MatchedKL, ...]
    alarms: tuple[ArmAlarm, ...]
    search: SearchResult | None
    """The trials of a search, kept apart from the confirmed arms."""
    recommendation: Recommendation | None
    """The setting to use."""
    hypotheses: tuple[Judgement, ...]
    crossings: tuple[Crossed, ...]
    """Pairs of crossed knobs, on the objective."""
    peaks: tuple[ArmPeak, ...]
    """The highest gold along training, where it was recorded."""
    health: tuple[ArmHealth, ...]
    """Health of every arm with a trial whose series could be judged."""

    def arm(self, name: str) -> ArmResult:
        return next(result for result in self.arms if result.arm == name)

    def effects_on(self, metric: str) -> list[Effect]:
        return [effect for effect in self.effects if effect.metric == metric]


def analyse(records: StudyRecords) -> Findings:
    """Estimates of every arm, effects against the baseline with Holm's correction per metric, drift, and verdicts."""
    objective = records.study.objective.metric
    compared = dict.fromkeys((objective, *records.reported(COMPARED, ENDS)))
    arms = tuple(_arm(records, arm) for arm in records.arms)
    return Findings(
        arms=arms,
        effects=tuple(effect for metric in compared for effect in _effects(records, metric)),
        claims=_claims(records),
        power=_power(records),
        paths=trajectories.paths(records),
        matched=matched_kl.matched(records),
        alarms=trajectories.alarms(records),
        search=load_search(records.folder, records.study),
        recommendation=recommend(records, arms, maximized(records, objective)),
        hypotheses=judge(records),
        crossings=crossed(records),
        peaks=gold_peaks(records),
        health=healths(records),
    )


def _arm(records: StudyRecords, arm: str) -> ArmResult:
    seeds = records.evaluated(arm)
    reported = dict.fromkeys((*records.reported(REPORTED, ENDS), *parts(records), records.study.objective.metric))
    per_seed = {metric: records.recorded(arm, metric) for metric in reported}
    counts = records.counts(arm)
    return ArmResult(
        arm=arm,
        counts=counts,
        seeds=tuple(seeds),
        estimates={
            metric: estimate for metric in reported if (estimate := _estimate(records, arm, metric)) is not None
        },
        per_seed={metric: values for metric, values in per_seed.items() if values},
        planned=len(records.seeds),
        excess=excess(records, arm),
    )


def _estimate(records: StudyRecords, arm: str, metric: str) -> Estimate | None:
    found = shared(records, metric, [arm])
    if found is None:
        return None
    bounds = METRICS[metric].low, METRICS[metric].high
    ((numerator, denominator),) = found.tables
    if found.once:
        return two_level.over_seeds(list(numerator[:, 0])).clipped(*bounds)
    if denominator is not None:
        decided = (denominator > 0).any(0)  # a prompt on which the judge decides no pair is no evidence
        numerator, denominator = numerator[:, decided], denominator[:, decided]
    if metric in RATES:
        return two_level.rate(two_level.linear(numerator, denominator))
    return two_level.mean(numerator, denominator).clipped(*bounds)


def _pairs(records: StudyRecords, metric: str) -> list[tuple[str, Shared | None]]:
    base = records.study.baseline
    arms = [arm for arm in records.arms if arm not in (base, *records.other_tasks)]
    return [(arm, shared(records, metric, [arm, base])) for arm in arms]


def _effects(records: StudyRecords, metric: str) -> list[Effect]:
    maximize = maximized(records, metric)
    pairs = _pairs(records, metric)
    estimates = [possible(pair.difference(), metric) if pair else None for _, pair in pairs]
    smallest = [smallest_of(records, metric, pair) if pair else None for _, pair in pairs]
    tested = map(vars, two_level.verdicts(estimates, smallest, maximize))
    found = [(arm, pair.per_seed() if pair else {}) for arm, pair in pairs]
    return [
        Effect(**one, metric=metric, arm=arm, estimate=estimate, per_seed=own, maximize=maximize, smallest=size)
        for (arm, own), estimate, size, one in zip(found, estimates, smallest, tested, strict=True)
    ]


def _power(records: StudyRecords) -> tuple[Power, ...]:
    """The minimum detectable effect of each arm on the objective."""
    metric = records.study.objective.metric
    pairs = [(arm, pair) for arm, pair in _pairs(records, metric) if pair]
    powers = []
    for arm, pair in pairs:
        given = pair.moments()
        if given.between + given.spread == 0.0 or (pair.once and len(pair.seeds) == 1):
            continue
        alpha = two_level.ALPHA / len(pairs)
        target = smallest_of(records, metric, pair)
        needed = power.seeds_needed(given, target, alpha) if target else None
        powers.append(Power(arm, metric, power.detectable(given, alpha), target, len(pair.seeds), needed))
    return tuple(powers)


def _claims(records: StudyRecords) -> tuple[Claim, ...]:
    """The verdicts that `falsify` gives, grouped by claim."""
    judged, claims = verdicts(records.study, records.folder, records.plan), records.study.falsifiers
    grouped = [(claim, tuple(verdict for verdict in judged if verdict.name == claim.name)) for claim in claims]
    return tuple(Claim(claim, own, overall(own)) for claim, own in grouped)
