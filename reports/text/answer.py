"""What was found, in sentences: the answer, the claims, and what stands in the way of believing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.run.metrics import METRICS
from reports.findings.findings import ArmResult, Claim, Effect, Findings, once
from reports.records.load import StudyRecords
from reports.records.searches import SearchResult
from reports.statistics.coverage import coverage_with
from reports.statistics.equivalence import equivalence_p
from reports.statistics.hierarchical import LONE
from reports.statistics.two_level import ALPHA, Estimate
from reports.text.crossings import crossing_sentence
from reports.text.drift import LISTED, at_equal_drift
from reports.text.proxy import unconfirmed
from reports.text.recommendation import recommendation
from reports.text.replicates import varies_nothing_else, what_varies
from reports.text.words import counted, interval, listed, name, number, percent, setting, signed
from studies.definition.falsifier import Falsifier

FEW = 3
"""Up to so many seeds the page says first how far its intervals can be trusted."""
_OUTCOMES = ("better", "worse", "equivalent", "undecided")
_IT = "{it}"
_SPARED = {"SURVIVED": "survived", "NOT TESTED": "was not tested"}
_ENDS = {"budget": "ended by a cap", "missing": "not run", "failed": "failed", "stale": "of another configuration"}


@dataclass(frozen=True)
class Answer:
    """The head of the page."""

    use: str
    """What to use, at which cost and risk; empty where there is nothing to choose between."""
    sentence: str
    """The answer to the question on the study's objective: effects, intervals, n."""
    crossing: str
    """Simple effects and interactions of crossed knobs; empty where there are none."""
    drift: str
    """The same where arms end at equal drift, and which were not compared; empty without another method."""
    claims: tuple[str, ...]
    """One sentence per falsifier."""
    caveats: tuple[str, ...]
    """Censoring, few seeds, mixed configurations: what a reader has to know first."""


def answer(records: StudyRecords, findings: Findings) -> Answer:
    """Sentences made from effects and verdicts alone; nothing is said that they do not say."""
    claims, caveats = (claim_sentence(claim) for claim in findings.claims), _caveats(records, findings)
    return Answer(
        recommendation(records, findings),
        _sentence(records, findings),
        crossing_sentence(findings.crossings, records.study.objective.metric),
        at_equal_drift(findings.matched),
        tuple(claims),
        tuple(caveats),
    )


def claim_sentence(claim: Claim) -> str:
    """What became of one claim, with the first trial that refuted it."""
    falsifier = claim.falsifier
    tally = {
        outcome: sum(v.outcome == outcome for v in claim.verdicts)
        for outcome in ("FALSIFIED", "SURVIVED", "NOT TESTED")
    }
    head = f"The claim that {falsifier.claim} ({falsifier.name})"
    n = counted(len(claim.verdicts), "trial")
    if claim.outcome == "SURVIVED":
        return f"{head} survived in all {n} of its arms."
    if claim.outcome == "NOT TESTED":
        return (
            f"{head} is not tested: it survived in {tally['SURVIVED']} of {n}, and {tally['NOT TESTED']} could not"
            " test it."
        )
    arms = [arm for arm, verdicts in claim.by_arm().items() if any(v.outcome == "FALSIFIED" for v in verdicts)]
    rest = [f"{words} in {tally[outcome]}" for outcome, words in _SPARED.items() if tally[outcome]]
    return (
        f"{head} is falsified: it was refuted in {tally['FALSIFIED']} of {n} ({listed(arms)}),"
        f" {_how(claim)}{'; it ' * bool(rest)}{listed(rest)}."
    )


def _how(claim: Claim) -> str:
    """The refutation that came first, or of means and evaluations the one that went farthest."""
    falsifier, unit = claim.falsifier, claim.falsifier.unit
    fell = [verdict for verdict in claim.verdicts if verdict.outcome == "FALSIFIED"]
    if falsifier.aggregation == "mean" or falsifier.evaluated:
        worst = (max if falsifier.op.startswith(">") else min)(fell, key=lambda verdict: verdict.value or 0.0)
        when = "at worst"
    else:
        worst = min(fell, key=lambda verdict: verdict.step or 0)
        when = f"as early as step {worst.step or 0:,}"
    decided = f"{number(worst.value)} {unit if unit not in ('1', 'fraction') else ''}".rstrip()
    return f"{when} with {_what(falsifier)}{decided} ({worst.arm} seed {worst.seed})"


def _what(falsifier: Falsifier) -> str:
    """What the number that decided is, before the number; nothing of a plain value."""
    if falsifier.bound:
        of = " of the difference to the baseline" if falsifier.relative else ""
        return f"the {falsifier.bound} end of the 95 % interval{of} at "
    word = " ".join(filter(None, ["mean" * (falsifier.aggregation == "mean"), falsifier.relative]))
    return f"a {word}{' to the baseline' * bool(falsifier.relative)} of " if word else ""


def _sentence(records: StudyRecords, findings: Findings) -> str:
    objective, baseline = records.study.objective.metric, findings.arm(records.study.baseline)
    search = findings.search
    before = _searched(search) if search else ""
    if not any(result.estimates for result in findings.arms):
        return before + _nothing(records)
    base = baseline.estimates.get(objective)
    if base is None and records.study.imported is not None and objective not in records.trials.columns:
        return (
            f"The imported records hold no {name(objective)}, so no arm can be compared on it; the objective can be a"
            " series that they contain."
        )
    if base is None:
        why = _ended(baseline) or "no trial has this metric"
        return (
            f"{before}T{records.baseline[1:]} has no evaluated trial ({why}), so no arm can be compared with it on"
            f" {name(objective)}."
        )
    effects = findings.effects_on(objective)
    compared = [effect for effect in effects if effect.estimate is not None]
    if not compared:
        reached = f"{baseline.arm} reaches a {name(objective)} of {interval(base, objective)} ({_size(base, baseline)})"
        rest = (
            "; ".join(_alone(findings.arm(effect.arm)) for effect in effects)
            or "there is no other evaluated arm to compare it with"
        )
        return f"{before}{reached}; {rest}."
    parts = [part for outcome in _OUTCOMES if (part := _group(findings, compared, outcome))]
    parts = [part.replace(_IT, "it" if index else records.baseline) for index, part in enumerate(parts)]
    parts += _untested(records, findings, [effect for effect in compared if effect.outcome not in _OUTCOMES])
    parts += [_alone(findings.arm(effect.arm)) for effect in effects if effect.estimate is None]
    only = (
        ", as far as a single seed can tell"
        if all(effect.estimate and effect.estimate.seeds == 1 for effect in compared)
        else ""
    )
    return f"{before}On {name(objective)}{only}, {'; '.join(parts)}."


def _searched(search: SearchResult) -> str:
    if not search.confirmed:
        return f"The search has tried {counted(len(search.trials), 'configuration')} and confirmed none yet. "
    chosen = {trial.number: trial for trial in search.trials}
    named = []
    for arm, tried in search.confirmed.items():
        knobs = chosen[tried].overrides if tried in chosen else {}
        named.append(
            f"{arm} ({', '.join(f'{key} {setting(value)}' for key, value in knobs.items())})" if knobs else arm
        )
    return f"Of {counted(len(search.trials), 'configuration')} tried, {listed(named)} ran again on fresh seeds. "


def _nothing(records: StudyRecords) -> str:
    counts = records.counts()
    tally = listed([f"{n} {status}" for status, n in counts.items()])
    if set(counts) == {"diverged"}:
        return (
            f"Every trial diverged ({counts['diverged']} of {counts['diverged']}) and none could be evaluated, so no"
            " arm can be compared."
        )
    still = bool(set(counts) & {"missing", "failed", "stale"})
    return f"No trial has been evaluated, so there is no answer{' yet' if still else ''} ({tally})."


def _group(findings: Findings, compared: list[Effect], outcome: str) -> str:
    """What is said of all arms of one outcome; `_IT` stands for the baseline."""
    members = [effect for effect in compared if effect.outcome == outcome]
    if not members:
        return ""
    one = len(members) == 1
    who = listed([_member(effect, findings.arm(effect.arm)) for effect in members])
    if len(members) > LISTED:
        ranked = sorted(members, key=lambda effect: effect.estimate.value if effect.estimate else 0.0)
        ends = [
            f"{signed(effect.estimate, effect.metric)} ({effect.arm})"
            for effect in (ranked[0], ranked[-1])
            if effect.estimate
        ]
        who = f"{len(members)} arms, from {ends[0]} to {ends[1]},"
    if outcome == "undecided":
        return f"the comparison{'' if one else 's'} of {who} with {_IT} {'is' if one else 'are'} undecided"
    if outcome == "equivalent":
        return f"{who} {'is' if one else 'are'} equivalent to {_IT} within {_margin(members)}"
    return f"{who} {'is' if one else 'are'} {outcome} than {_IT}{_too_small(members)}"


def _too_small(members: list[Effect]) -> str:
    """Which differences are certain and yet too small to matter; nothing where there are none."""
    small = [one for one in members if one.p_equivalence is not None and one.p_equivalence < ALPHA]
    if not small:
        return ""
    which = "the difference" if small == members else f"the difference of {listed([effect.arm for effect in small])}"
    return f" ({which} is below {_margin(small)}, the smallest that matters)"


def _margin(effects: list[Effect]) -> str:
    """The difference within which arms are equivalent, with its unit."""
    metric = effects[0].metric
    return f"{number(max(effect.smallest or 0.0 for effect in effects), metric)}{_unit(metric)}"


def _unit(metric: str) -> str:
    """The unit behind a number; nothing for shares."""
    return "" if METRICS[metric].unit in ("fraction", "1") else f" {METRICS[metric].unit}"


def _untested(records: StudyRecords, findings: Findings, effects: list[Effect]) -> list[str]:
    """Differences of which no test is possible, as of a single number per trial and a single seed."""
    if not effects:
        return []
    named = [_member(effect, findings.arm(effect.arm)) for effect in effects[:LISTED]]
    named += [f"{len(effects) - LISTED} more arms"] if len(effects) > LISTED else []
    verb = "is" if len(named) == 1 else "are"
    return [f"{listed(named)} {verb} not tested against {records.baseline}: a test needs at least two seeds per arm"]


def _member(effect: Effect, result: ArmResult) -> str:
    assert effect.estimate is not None
    return f"{effect.arm} ({signed(effect.estimate, effect.metric)}; {_size(effect.estimate, result)})"


def _size(estimate: Estimate, result: ArmResult) -> str:
    """``2 of 3 seeds × 512 prompts, 1 diverged``."""
    seeds = (
        counted(estimate.seeds, "seed")
        if estimate.seeds == result.planned
        else f"{estimate.seeds} of {counted(result.planned, 'seed')}"
    )
    how = f"{seeds} × {estimate.prompts} prompts" if estimate.prompts else seeds
    return ", ".join([how, ended]) if (ended := _ended(result)) else how


def _ended(result: ArmResult) -> str:
    """``1 diverged, 1 ended by a cap``; empty where all trials are complete."""
    return ", ".join(f"{n} {_ENDS.get(status, status)}" for status, n in result.counts.items() if status != "complete")


def _alone(result: ArmResult) -> str:
    """Why an arm is not compared."""
    if result.seeds:
        return f"{result.arm} shares no evaluated seed with the baseline and is not compared"
    return f"{result.arm} has no evaluated trial ({_ended(result) or 'no results in the store'}) and is not compared"


def _caveats(records: StudyRecords, findings: Findings) -> list[str]:
    caveats = list(records.notes)
    counts = records.counts()
    planned = sum(counts.values())
    if set(counts) != {"complete"}:
        tally = listed([f"{n} {status}" for status, n in counts.items()])
        caveats.append(f"Of {counted(planned, 'planned trial')}: {tally}. Means are over evaluated seeds alone.")
    if counts.get("diverged"):
        arms = [result.arm for result in findings.arms if result.counts.get("diverged")]
        caveats.append(
            f"{listed(arms)} had diverged seeds: the mean over the remaining seeds is biased in favour of such an arm."
        )
    if counts.get("budget"):
        arms = [result.arm for result in findings.arms if result.counts.get("budget")]
        caveats.append(
            f"{listed(arms)} had trials that a cap ended early: they were evaluated at that point (censored), after"
            " fewer steps than the others."
        )
    shared = [
        effect.estimate.seeds for effect in findings.effects_on(records.study.objective.metric) if effect.estimate
    ]
    fewest = min((*shared, *(len(result.seeds) for result in findings.arms if result.seeds)), default=0)
    metric = records.study.objective.metric
    if 1 <= fewest <= FEW and not once(records, metric):
        caveats.append(_trust(fewest))
    if varies_nothing_else(records):
        caveats.append(what_varies(records))
    if once(records, metric) and any(effect.estimate for effect in findings.effects_on(metric)):
        what = name(metric)[0].upper() + name(metric)[1:]
        why = "so arms are compared over seeds alone: n is seeds, and intervals are wide with few of them"
        caveats.append(f"{what} exists once per trial and not prompt by prompt, {why}.")
    caveats += filter(None, [unconfirmed(findings.arms, findings.alarms), _mixed_machines(records)])
    return caveats + _beside_zero(records, findings) + _sensitivity(records, findings)


def _mixed_machines(records: StudyRecords) -> str:
    """A warning where trials ran on several kinds of processor or card; empty where they did not."""
    kinds = sorted({_machine(record.environment) for record in records.records.values()} - {""})
    if len(kinds) < 2:
        return ""
    return (
        f"Trials ran on different machines ({'; '.join(kinds)}), which train different policies from equal code and"
        " seeds: part of a difference between trials can come from the machine."
    )


def _machine(environment: Mapping[str, str]) -> str:
    """What a trial computed on: its card, else its processor; empty where the record names neither."""
    device = environment.get("device", "cpu")
    if device != "cpu":
        return device
    return ", ".join(environment[key] for key in ("processor", "instruction_set") if key in environment)


def _trust(seeds: int) -> str:
    """How often intervals from so few seeds were right in simulation."""
    known = coverage_with(seeds)
    covered = (
        f"95 % intervals covered {percent(known.lowest)} to {percent(known.highest)} % in simulation, and"
        f" {percent(known.rare)} % where one seed in five drops by half a standard deviation over prompts."
    )
    if seeds > 1:
        return f"With {seeds} seeds {covered}"
    return (
        "Some arm has a single evaluated seed, or shares one with the baseline. One seed does not show how seeds"
        f" differ: its interval rests on an assumption (a half-Cauchy prior of scale {LONE:g} standard deviations over"
        f" prompts on the standard deviation between seeds). With it, {covered}"
    )


def _beside_zero(records: StudyRecords, findings: Findings) -> list[str]:
    """Why an effect whose interval leaves out 0, or lies within the smallest difference, can still be no verdict."""
    effects = [effect for effect in findings.effects_on(records.study.objective.metric) if effect.estimate is not None]
    silent = [
        effect for effect in effects if effect.outcome in ("equivalent", "undecided") and effect.p_holm is not None
    ]
    odd = [
        f"{effect.arm} (p {effect.p_holm:.2g})"
        for effect in silent
        if effect.estimate and (effect.estimate.low or 0) * (effect.estimate.high or 0) > 0
    ]
    within = [
        f"{effect.arm} (p {effect.p_equivalence:.2g})"
        for effect in silent
        if effect.outcome == "undecided" and effect.estimate and effect.smallest and effect.p_equivalence is not None
        if (equivalence_p(effect.estimate, effect.smallest) or 0.0) < ALPHA
    ]
    n = counted(len(effects), "comparison")
    rule = f"this is no verdict, since a verdict has to hold after Holm's correction for {n}"
    found = [f"The interval of {listed(odd)} excludes 0, but {rule}."] if odd else []
    if within:
        found.append(
            f"The 90 % interval of {listed(within)} lies within the smallest difference that matters, but {rule}."
        )
    return found


def _sensitivity(records: StudyRecords, findings: Findings) -> list[str]:
    """Whether the seeds suffice: what could have been missed where nothing was found."""
    metric = records.study.objective.metric
    silent = {effect.arm for effect in findings.effects_on(metric) if effect.outcome == "undecided"}
    missed = [power for power in findings.power if power.arm in silent]
    if not missed:
        return []
    worst = max(missed, key=lambda power: power.detectable)
    unit = _unit(metric)
    seeds, known = counted(worst.seeds, "seed"), METRICS[metric]
    possible = worst.detectable <= known.high - known.low
    text = (
        f"Undecided does not mean equal: with {seeds}, a true difference in"
        f" {name(metric)} of {number(worst.detectable, metric)}{unit} ({worst.arm}) would have been detected with"
        " 80 % power, a smaller one less often."
        if possible
        else f"Undecided does not mean equal: with {seeds}, no difference in {name(metric)} ({worst.arm}), however"
        " large, would have been detected with 80 % power."
    )
    if worst.target is None or worst.suffices:
        return [text]
    goal = f"{number(worst.target, metric)}{unit}"
    if worst.more_prompts:
        return [f"{text} On so few prompts no number of seeds can detect {goal}."]
    takes = f" Detecting {goal} takes about {worst.seeds_needed} seeds." if worst.seeds_needed else ""
    return [text + takes]
