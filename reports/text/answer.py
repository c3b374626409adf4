"""The head of the page: the recommendation, the findings, and the warnings that come with the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.run.metrics import METRICS
from reports.findings.bound import choosing_arms
from reports.findings.crossings import Crossed
from reports.findings.findings import Claim, Effect, Findings, once
from reports.findings.pairs import by_the_proxy_alone
from reports.records.load import StudyRecords
from reports.statistics.coverage import coverage_with
from reports.statistics.hierarchical import LONE
from reports.statistics.two_level import ALPHA
from reports.text.phrases import at_equal_drift, varies_training_alone, what_varies
from reports.text.say import say
from reports.text.words import knob

FEW = 3
"""Most seeds for which the page states first how far its intervals can be trusted."""
DRIFT = ("eval/kl_per_token", "objective/kl_exact_per_token", "objective/kl_per_token", "objective/kl")
"""Drift of a setting: the first of these that was measured."""


@dataclass(frozen=True)
class Answer:
    """The head of the page."""

    use: str
    """The setting to use, its cost and risk; empty where there is nothing to choose between."""
    sentence: str
    """The answer to the question on the study's objective: effects, intervals, n."""
    crossing: str
    """Simple effects and interactions of crossed knobs; empty where there are none."""
    drift: str
    """The same where arms end at equal drift, and which were not compared; empty without another method."""
    claims: tuple[str, ...]
    """One sentence per falsifier."""
    caveats: tuple[str, ...]
    """Censoring, few seeds, mixed configurations: warnings that come first."""


def answer(records: StudyRecords, findings: Findings) -> Answer:
    """Sentences made from effects and verdicts alone."""
    return Answer(
        recommendation(records, findings),
        _sentence(records, findings),
        crossing_sentence(findings.crossings, records.study.objective.metric),
        at_equal_drift(findings.matched),
        tuple(claim_sentence(claim) for claim in findings.claims),
        tuple(_caveats(records, findings)),
    )


def recommendation(records: StudyRecords, findings: Findings) -> str:
    """The best setting, its cost and its risk; empty where there is nothing to choose between."""
    found = findings.recommendation
    if found is None:
        return ""
    result = findings.arm(found.arm)
    return say(
        "recommendation",
        "recommendation",
        found=found,
        metric=records.study.objective.metric,
        maximize=records.study.objective.direction == "maximize",
        drift=next(((key, result.estimates[key]) for key in DRIFT if key in result.estimates), None),
        samples=choosing_arms(records).get(found.arm),
        diverged=result.counts.get("diverged", 0),
    )


def claim_sentence(claim: Claim) -> str:
    """The verdict on one falsifier. Names the refutation that came first, or of means and evaluations the one that
    went farthest."""
    falsifier = claim.falsifier
    fell = [verdict for verdict in claim.verdicts if verdict.outcome == "FALSIFIED"]
    first = None
    if fell and (falsifier.aggregation == "mean" or falsifier.evaluated):
        first = (max if falsifier.op.startswith(">") else min)(fell, key=lambda verdict: verdict.value or 0.0)
    elif fell:
        first = min(fell, key=lambda verdict: verdict.step or 0)
    return say(
        "claims",
        "claim",
        falsifier=falsifier,
        outcome=claim.outcome,
        trials=len(claim.verdicts),
        fell=len(fell),
        survived=sum(verdict.outcome == "SURVIVED" for verdict in claim.verdicts),
        untested=sum(verdict.outcome == "NOT TESTED" for verdict in claim.verdicts),
        arms=list(dict.fromkeys(verdict.arm for verdict in fell)),
        first=first,
        unit="" if (unit := METRICS[falsifier.metric].unit) in ("1", "fraction") else unit,
    )


def _sentence(records: StudyRecords, findings: Findings) -> str:
    metric, baseline, search = records.study.objective.metric, findings.arm(records.study.baseline), findings.search
    effects = findings.effects_on(metric)
    compared = [_member(effect, findings) for effect in effects if effect.estimate is not None]
    outcomes = ("better", "worse", "equivalent", "undecided")
    groups = {outcome: [one for one in compared if one["outcome"] == outcome] for outcome in outcomes}
    tried = {trial.number: trial.overrides for trial in search.trials} if search else {}
    return say(
        "answer",
        "answer",
        metric=metric,
        the_baseline=records.baseline,
        baseline=baseline,
        base=baseline.estimates.get(metric),
        counts=records.counts(),
        evaluated=any(result.estimates for result in findings.arms),
        unrecorded=records.study.foreign and metric not in records.trials.columns,
        groups={outcome: members for outcome, members in groups.items() if members},
        untested=[one for one in compared if one["outcome"] not in outcomes],
        apart=[findings.arm(effect.arm) for effect in effects if effect.estimate is None],
        elsewhere=records.other_tasks,
        tried=len(search.trials) if search else None,
        confirmed={arm: tried.get(number, {}) for arm, number in search.confirmed.items()} if search else {},
    )


def _member(effect: Effect, findings: Findings) -> dict[str, Any]:
    """An effect with the arm's trials, for a template."""
    negligible = effect.p_equivalence is not None and effect.p_equivalence < ALPHA
    return {**vars(effect), "result": findings.arm(effect.arm), "negligible": negligible}


def crossing_sentence(found: tuple[Crossed, ...], metric: str) -> str:
    """Simple effects and interaction of a single 2 x 2, else how many cells depart from the sum of both effects; empty
    where no knobs were crossed, or no arm was evaluated."""
    known = [one.estimate for pair in found for one in pair.contrasts if one.estimate]
    if not known:
        return ""
    single = all(estimate.seeds == 1 for estimate in known)
    if len(found) == 1 and len(found[0].effects) == 4:
        rows, columns = knob(found[0].crossing.rows), knob(found[0].crossing.columns)
        return say("crossings", "two_by_two", found[0], metric, rows, columns, single)
    cells = [(pair, cell) for pair in found for cell in pair.interactions if cell.contrast.estimate]
    cells.sort(key=lambda one: -abs(one[1].contrast.estimate.value) if one[1].contrast.estimate else 0.0)
    departing = [(pair, cell) for pair, cell in cells if cell.contrast.differs]
    planned = sum(len(one.interactions) for one in found)
    return say("crossings", "cells", len(found), cells, planned, departing, metric, single)


def _caveats(records: StudyRecords, findings: Findings) -> list[str]:
    metric, counts = records.study.objective.metric, records.counts()
    effects = [effect for effect in findings.effects_on(metric) if effect.estimate is not None]
    ended = {status: [one.arm for one in findings.arms if one.counts.get(status)] for status in ("diverged", "budget")}
    lost = list(records.trials.query("status == 'diverged' and not evaluated")["arm"].unique())
    seeds = [effect.estimate.seeds for effect in effects if effect.estimate]
    fewest = min((*seeds, *(len(result.seeds) for result in findings.arms if result.seeds)), default=0)
    kinds = sorted({machine(record.environment) for record in records.records.values()} - {""})
    alone = by_the_proxy_alone(findings.arms)
    turned = [one for one in findings.alarms if one.alarms and one.arm in {result.arm for result in alone}]
    silent = [one for one in effects if one.outcome in ("equivalent", "undecided") and one.p_holm is not None]
    apart = [one for one in silent if one.estimate and one.estimate.excludes_zero]  # the corrected p alone is too large
    equal = max((one.smallest or 0.0 for one in effects if one.outcome == "equivalent"), default=0.0)
    base = findings.arm(records.study.baseline).estimates.get(metric)
    undecided = {one.arm for one in effects if one.outcome == "undecided"}
    missed = [one for one in findings.power if one.arm in undecided]
    worst = max(missed, key=lambda one: one.detectable, default=None)
    caveats = [
        *records.notes,
        say("caveats", "incomplete", counts),
        say("caveats", "diverged", ended["diverged"], lost, records.study.objective.worst),
        say("caveats", "censored", ended["budget"]),
        say("caveats", "few_seeds", coverage_with(fewest), LONE)
        if 1 <= fewest <= FEW and not once(records, metric)
        else "",
        what_varies(records) if varies_training_alone(records) else "",
        say("caveats", "once", metric) if once(records, metric) and effects else "",
        say("caveats", "proxy_alone", alone, turned),
        say("caveats", "machines", kinds),
        say("caveats", "without_zero", apart, len(effects)),
        say("caveats", "little_gained", base.value, equal) if base and metric == "eval/win_rate" else "",
        say("caveats", "sensitivity", worst, METRICS[metric].high - METRICS[metric].low),
    ]
    return list(filter(None, caveats))


def machine(environment: Mapping[str, str]) -> str:
    """Name a trial's card, else its processor; empty where the record names neither."""
    device = environment.get("device", "cpu")
    if device != "cpu":
        return device
    return ", ".join(environment[key] for key in ("processor", "instruction_set") if key in environment)
