"""What was found, in sentences: the answer, the claims, and what stands in the way of believing them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.run.metrics import METRICS
from reports.findings.findings import ArmResult, Claim, Effect, Findings, once
from reports.findings.trajectories import REWARDS
from reports.records.load import StudyRecords
from reports.records.searches import SearchResult
from reports.statistics.two_level import Estimate
from reports.text.words import counted, interval, listed, name, number, setting, signed
from studies.definition.schema import IMPORTED

_COVERAGE = {2: 86, 3: 92}
"""What `reports.statistics.two_level.mean` says of itself, in percent by seeds."""
LISTED = 5
"""Arms of one outcome that are named with their numbers; of more, the sentence gives the range."""
_PHRASES = {"better": "better than", "worse": "worse than", "no detectable difference": "not detectably different from"}
_SPARED = {"SURVIVED": "survived", "NOT TESTED": "was not tested"}
_ENDS = {"budget": "ended by a cap", "missing": "not run", "failed": "failed", "stale": "of another configuration"}


@dataclass(frozen=True)
class Answer:
    """The head of the page."""

    sentence: str
    """The answer to the question on the study's objective: effects, intervals, n."""
    drift: str
    """The same where arms had drifted equally far; empty where that cannot be compared."""
    claims: tuple[str, ...]
    """One sentence per falsifier."""
    caveats: tuple[str, ...]
    """Censoring, few seeds, mixed configurations: what a reader has to know first."""


def answer(records: StudyRecords, findings: Findings) -> Answer:
    """Sentences made from effects and verdicts alone; nothing is said that they do not say."""
    claims, caveats = (claim_sentence(claim) for claim in findings.claims), _caveats(records, findings)
    return Answer(_sentence(records, findings), _at_equal_drift(records, findings), tuple(claims), tuple(caveats))


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
        return f"{head} survived in all {n} it speaks of."
    if claim.outcome == "NOT TESTED":
        return (
            f"{head} is not tested: it survived in {tally['SURVIVED']} of {n}, and {tally['NOT TESTED']} could not"
            " test it."
        )
    arms = [arm for arm, verdicts in claim.by_arm().items() if any(v.outcome == "FALSIFIED" for v in verdicts)]
    rest = [f"{words} in {tally[outcome]}" for outcome, words in _SPARED.items() if tally[outcome]]
    return (
        f"{head} is falsified: it fell in {tally['FALSIFIED']} of {n} ({listed(arms)}),"
        f" {_how(claim)}{'; it ' * bool(rest)}{listed(rest)}."
    )


def _how(claim: Claim) -> str:
    """The refutation that came first, or of means the one that went farthest."""
    falsifier, unit = claim.falsifier, METRICS[claim.falsifier.metric].unit
    fell = [verdict for verdict in claim.verdicts if verdict.outcome == "FALSIFIED"]
    if falsifier.aggregation == "mean":
        worst = (max if falsifier.op.startswith(">") else min)(fell, key=lambda verdict: verdict.value or 0.0)
        how = "at worst with a mean of"
    else:
        worst = min(fell, key=lambda verdict: verdict.step or 0)
        how = f"as early as step {worst.step or 0:,} with"
    return f"{how} {number(worst.value)} {unit if unit != '1' else ''}".rstrip() + f" ({worst.arm} seed {worst.seed})"


def _sentence(records: StudyRecords, findings: Findings) -> str:
    objective, baseline = records.study.objective.metric, findings.arm(records.study.baseline)
    found = findings.search
    before = _searched(found) if found else ""
    if not any(result.estimates for result in findings.arms):
        return before + _nothing(records)
    base = baseline.estimates.get(objective)
    if base is None and records.study.kind == IMPORTED and objective not in records.trials.columns:
        return (
            f"The imported records hold no {name(objective)}, so no arm can be compared on it; the objective can be a"
            " series they hold."
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
    parts = [part for outcome in _PHRASES if (part := _group(findings, compared, outcome))]
    parts[0] = f"{parts[0].removesuffix(' it')} {records.baseline}"
    parts += [_alone(findings.arm(effect.arm)) for effect in effects if effect.estimate is None]
    only = (
        ", as far as a single seed can tell"
        if all(effect.estimate and effect.estimate.seeds == 1 for effect in compared)
        else ""
    )
    return f"{before}On {name(objective)}{only}, {'; '.join(parts)}."


def _at_equal_drift(records: StudyRecords, findings: Findings) -> str:
    """Of the gold reward along training, else of what was trained on."""
    metric = next((key for key in REWARDS if any(row.metric == key for row in findings.matched)), None)
    rows = [row for row in findings.matched if row.metric == metric and row.place == "farthest"]
    if metric is None or not rows:
        return ""
    base = "the baseline" if records.baseline_values else records.baseline
    parts = []
    for outcome, words in {"better": "above", "worse": "below"}.items():
        found = [
            f"{row.arm} ({signed(row.difference, metric)} at {number(row.kl)} nats;"
            f" {counted(row.difference.seeds, 'seed')})"
            for row in rows
            if row.outcome == outcome
        ]
        if found:
            parts.append(f"{listed(found)} {'lies' if len(found) == 1 else 'lie'} {words} {base}")
    silent = [row.arm for row in rows if row.outcome not in ("better", "worse")]
    if silent:
        named = listed(silent) if len(silent) <= LISTED else f"{len(silent)} arms"
        parts.append(
            f"{named} {'is' if len(silent) == 1 else 'are'} not distinguishable from {'it' if parts else base}"
        )
    return f"At equal drift, as far as both had gone, on {name(metric)}: {'; '.join(parts)}."


def _searched(search: SearchResult) -> str:
    if not search.confirmed:
        return f"The search has tried {counted(len(search.trials), 'configuration')} and confirmed none yet. "
    chosen = {one.number: one for one in search.trials}
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
    """What is said of all arms of one outcome; it ends with ` it`, the baseline."""
    members = [effect for effect in compared if effect.outcome == outcome]
    if not members:
        return ""
    verb = "is" if len(members) == 1 else "are"
    if len(members) <= LISTED:
        return (
            f"{listed([_member(effect, findings.arm(effect.arm)) for effect in members])} {verb} {_PHRASES[outcome]} it"
        )
    ranked = sorted(members, key=lambda effect: effect.estimate.value if effect.estimate else 0.0)
    ends = [
        f"{signed(effect.estimate, effect.metric)} ({effect.arm})"
        for effect in (ranked[0], ranked[-1])
        if effect.estimate
    ]
    return f"{len(members)} arms, from {ends[0]} to {ends[1]}, {verb} {_PHRASES[outcome]} it"


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
    found = list(records.notes)
    counts = records.counts()
    planned = sum(counts.values())
    if set(counts) != {"complete"}:
        tally = listed([f"{n} {status}" for status, n in counts.items()])
        found.append(f"Of {counted(planned, 'planned trial')}: {tally}. Means are over evaluated seeds alone.")
    if counts.get("diverged"):
        arms = [result.arm for result in findings.arms if result.counts.get("diverged")]
        found.append(
            f"{listed(arms)} had diverged seeds: an average over the seeds that were left flatters such an arm."
        )
    if counts.get("budget"):
        arms = [result.arm for result in findings.arms if result.counts.get("budget")]
        found.append(
            f"{listed(arms)} had seeds that a cap ended early: evaluated where they stood (censored), after fewer steps"
            " than the others."
        )
    shared = [
        effect.estimate.seeds for effect in findings.effects_on(records.study.objective.metric) if effect.estimate
    ]
    fewest = min((*shared, *(len(result.seeds) for result in findings.arms if result.seeds)), default=0)
    if fewest == 1:
        found.append(
            "Some arm has a single evaluated seed, or shares one with the baseline: its interval knows nothing of how"
            " seeds differ."
        )
    elif fewest in _COVERAGE:
        found.append(
            f"With {fewest} seeds a 95 % interval covers as little as {_COVERAGE[fewest]} % in simulation, where seeds"
            " differ most."
        )
    metric = records.study.objective.metric
    if once(records, metric) and any(effect.estimate for effect in findings.effects_on(metric)):
        what = name(metric)[0].upper() + name(metric)[1:]
        why = "so arms are compared over seeds alone: n is seeds, and intervals are wide with few of them"
        found.append(f"{what} exists once per trial and not prompt by prompt, {why}.")
    return found + _beside_zero(records, findings) + _sensitivity(records, findings)


def _beside_zero(records: StudyRecords, findings: Findings) -> list[str]:
    """Why an effect whose interval leaves out 0 can still be no verdict."""
    effects = [effect for effect in findings.effects_on(records.study.objective.metric) if effect.estimate is not None]
    silent = [
        effect for effect in effects if effect.outcome == "no detectable difference" and effect.p_holm is not None
    ]
    odd = [
        f"{one.arm} (p {one.p_holm:.2g})"
        for one in silent
        if one.estimate and (one.estimate.low or 0) * (one.estimate.high or 0) > 0
    ]
    if not odd:
        return []
    whose = f"The interval of {listed(odd)} excludes 0, but this is no verdict"
    return [
        f"{whose}, since a verdict has to hold on new seeds as well and after Holm's correction for"
        f" {counted(len(effects), 'comparison')}."
    ]


def _sensitivity(records: StudyRecords, findings: Findings) -> list[str]:
    """Whether the seeds suffice: what could have been missed where nothing was found."""
    metric = records.study.objective.metric
    silent = {effect.arm for effect in findings.effects_on(metric) if effect.outcome == "no detectable difference"}
    missed = [one for one in findings.power if one.arm in silent]
    if not missed:
        return []
    worst = max(missed, key=lambda one: one.detectable)
    unit = "" if METRICS[metric].unit in ("fraction", "1") else f" {METRICS[metric].unit}"
    text = (
        f"No detectable difference is not equality: with {counted(worst.seeds, 'seed')}, a true difference in"
        f" {name(metric)} of {number(worst.detectable, metric)}{unit} ({worst.arm}) would have been found with 80 %"
        " power, a smaller one less often."
    )
    if worst.target is None or worst.suffices:
        return [text]
    goal = f"{number(worst.target, metric)}{unit}"
    if worst.more_prompts:
        return [f"{text} No number of seeds finds {goal} on so few prompts."]
    takes = f" To find {goal} takes about {worst.seeds_needed} seeds." if worst.seeds_needed else ""
    return [text + takes]
