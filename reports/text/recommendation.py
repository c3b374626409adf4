"""What to use, in words: the first thing that the page says."""

from __future__ import annotations

from pipeline.run.metrics import METRICS
from reports.findings.best_of_n import choosing_arms
from reports.findings.findings import Findings
from reports.findings.recommendation import ONE_IN, Recommendation
from reports.records.load import StudyRecords
from reports.text.words import counted, interval, listed, name, number

DRIFT = ("eval/kl_per_token", "objective/kl_exact_per_token", "objective/kl_per_token", "objective/kl")
"""What a setting costs, the first that was measured."""
NAMED = 4
"""Arms that are listed by name."""


def recommendation(records: StudyRecords, findings: Findings) -> str:
    """Three or four sentences; empty where there is nothing to choose between."""
    found = findings.recommendation
    if found is None:
        return ""
    if not found.named:
        return _best(records, found)
    parts = _best(records, found), _cost(records, findings, found), _risk(records, findings, found)
    return " ".join(filter(None, parts))


def _best(records: StudyRecords, found: Recommendation) -> str:
    metric = records.study.objective.metric
    within = listed([_bound(bound.metric, bound.max, bound.min) for bound in found.constraints])
    among = f"of the {found.compared} arms {f'with {within}' if within else 'compared'}"
    if found.compared == 1:
        among = f"alone has {within}"
    value = f"{name(metric)} {interval(found.value, metric)}{_unit(metric)}"
    size = counted(found.value.seeds, "seed") + (f" × {found.value.prompts} prompts" if found.value.prompts else "")
    head = f"Best setting: {found.arm}, {among}" if found.compared > 1 else f"Best setting: {found.arm}, which {among}"
    broken = (
        f" Outside the constraint{'s' * (len(found.constraints) > 1)}: {_named(found.excluded)}."
        if found.excluded
        else ""
    )
    if not found.named:
        return (
            f"No best setting can be named: {found.arm} has the best mean {among} ({value}; {size}), but is not"
            f" distinguishable from {_named(found.rivals)}.{broken}"
        )
    rivals = f" {_named(found.rivals)} {'is' if len(found.rivals) == 1 else 'are'} not distinguishable from it."
    alone = " It is better than each of the others." if found.compared > 1 else ""
    return f"{head} ({value}; {size}).{rivals if found.rivals else alone}{broken}"


def _cost(records: StudyRecords, findings: Findings, found: Recommendation) -> str:
    estimates = findings.arm(found.arm).estimates
    metric = next((key for key in DRIFT if key in estimates), None)
    drift = f"a KL to the reference of {interval(estimates[metric], metric)}{_unit(metric)}" if metric else ""
    time = f"{number(found.seconds)} s of wall clock per trial" if found.seconds else ""
    samples = f"{n} samples for each answer" if (n := choosing_arms(records).get(found.arm)) else ""
    return f"It costs {listed(list(filter(None, [drift, time, samples])))}." if drift or time else ""


def _risk(records: StudyRecords, findings: Findings, found: Recommendation) -> str:
    metric, result = records.study.objective.metric, findings.arm(found.arm)
    seed, value = found.worst_seed
    worst = f"Its worst seed ({seed}) reached {number(value, metric)}"
    worse = "below" if records.study.objective.direction == "maximize" else "above"
    next_one = f"; about one new seed in {ONE_IN} would end {worse} {number(found.bad_seed, metric)}"
    fell = result.counts.get("diverged", 0)
    diverged = f" {counted(fell, 'trial')} of it diverged." if fell else ""
    return f"{worst}{next_one if found.bad_seed is not None else ''}.{diverged}"


def _bound(metric: str, most: float | None, least: float | None) -> str:
    return f"{name(metric)} {'≤' if most is not None else '≥'} {most if most is not None else least:g}"


def _unit(metric: str) -> str:
    unit = METRICS[metric].unit
    return "" if unit in ("1", "fraction") else f" {unit}"


def _named(arms: tuple[str, ...]) -> str:
    return listed(list(arms)) if len(arms) <= NAMED else f"{len(arms)} others"
