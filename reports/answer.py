"""What was found, in sentences: the answer, the claims, and what stands in the way of believing them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.metrics import METRICS
from reports.estimates import Claim, Effect, Findings
from reports.load import StudyRecords
from reports.words import counted, interval, listed, name, number, signed

FEW_SEEDS = 3


@dataclass(frozen=True)
class Answer:
    """The head of the page."""

    sentence: str
    """The answer to the question on the study's objective: effects, intervals, n."""
    claims: tuple[str, ...]
    """One sentence per falsifier."""
    caveats: tuple[str, ...]
    """Censoring, few seeds, mixed configurations: what a reader has to know first."""


def answer(records: StudyRecords, findings: Findings) -> Answer:
    """Sentences made from effects and verdicts alone; nothing is said that they do not say."""
    return Answer(
        _sentence(records, findings), tuple(claim_sentence(claim) for claim in findings.claims), tuple(_caveats(records, findings))
    )


def claim_sentence(claim: Claim) -> str:
    """What became of one claim, with the first trial that refuted it."""
    falsifier, unit = claim.falsifier, METRICS[claim.falsifier.metric].unit
    tally = {outcome: sum(v.outcome == outcome for v in claim.verdicts) for outcome in ("FALSIFIED", "SURVIVED", "NOT TESTED")}
    head = f"The claim that {falsifier.claim} ({falsifier.name})"
    n = counted(len(claim.verdicts), "trial")
    if claim.outcome == "SURVIVED":
        return f"{head} survived in all {n} it speaks of."
    if claim.outcome == "NOT TESTED":
        return f"{head} is not tested: it survived in {tally['SURVIVED']} of {n}, and {tally['NOT TESTED']} could not test it."
    arms = [arm for arm, verdicts in claim.by_arm().items() if any(v.outcome == "FALSIFIED" for v in verdicts)]
    worst = min((v for v in claim.verdicts if v.outcome == "FALSIFIED"), key=lambda v: (v.step is None, v.step or 0))
    when = f"at step {worst.step:,}" if worst.step is not None else "on average"
    return (
        f"{head} is falsified: it fell in {tally['FALSIFIED']} of {n} ({listed(arms)}), first in {worst.arm} seed {worst.seed} {when} "
        f"with {number(worst.value)} {unit if unit != '1' else ''}".rstrip()
        + f"; it survived in {tally['SURVIVED']} and was not tested in {tally['NOT TESTED']}."
    )


def _sentence(records: StudyRecords, findings: Findings) -> str:
    objective, baseline = records.study.objective.metric, records.study.baseline
    effects = findings.effects_on(objective)
    base = findings.arm(baseline).estimates.get(objective)
    compared = [effect for effect in effects if effect.estimate is not None]
    if not any(result.estimates for result in findings.arms):
        ended = ", ".join(f"{n} {status}" for status, n in records.counts().items())
        return f"No trial has been evaluated, so there is no answer yet ({ended})."
    if base is None:
        return f"The baseline {baseline} has not been evaluated, so no arm can be compared with it on {name(objective)}."
    if not compared:
        size = f"{counted(base.seeds, 'seed')} × {counted(base.prompts, 'prompt')}" if base.prompts else counted(base.seeds, "seed")
        reached = f"{baseline} reaches a {name(objective)} of {interval(base, objective)} ({size})"
        return f"{reached}; there is no other evaluated arm to compare it with."
    parts: list[str] = []
    for outcome, phrase in (
        ("better", "better than"),
        ("worse", "worse than"),
        ("no detectable difference", "not detectably different from"),
    ):
        members = [effect for effect in compared if effect.outcome == outcome]
        if members:
            verb = "is" if len(members) == 1 else "are"
            parts.append(
                f"{listed([_member(effect) for effect in members])} {verb} {phrase} {'it' if parts else f'the baseline {baseline}'}"
            )
    open_arms = [effect.arm for effect in effects if effect.estimate is None]
    if open_arms:
        parts.append(f"{listed(open_arms)} could not be compared")
    return f"On {name(objective)}, {'; '.join(parts)}."


def _member(effect: Effect) -> str:
    estimate = effect.estimate
    assert estimate is not None
    size = f"{counted(estimate.seeds, 'seed')} × {estimate.prompts} prompts" if estimate.prompts else counted(estimate.seeds, "seed")
    return f"{effect.arm} ({signed(estimate, effect.metric)}; {size})"


def _caveats(records: StudyRecords, findings: Findings) -> list[str]:
    found = list(records.notes)
    counts = records.counts()
    planned = sum(counts.values())
    if set(counts) != {"complete"}:
        tally = listed([f"{n} {status}" for status, n in counts.items()])
        found.append(f"Of {counted(planned, 'planned trial')}: {tally}. Means are over evaluated seeds alone.")
    if counts.get("diverged"):
        arms = [result.arm for result in findings.arms if result.counts.get("diverged")]
        found.append(f"{listed(arms)} had diverged seeds: an average over the seeds that were left flatters such an arm.")
    if counts.get("budget"):
        arms = [result.arm for result in findings.arms if result.counts.get("budget")]
        found.append(
            f"{listed(arms)} had seeds that a cap ended early: evaluated where they stood (censored), after fewer steps than the others."
        )
    fewest = min((len(result.seeds) for result in findings.arms if result.seeds), default=0)
    if fewest == 1:
        found.append("Some arm has a single evaluated seed: its interval knows nothing of how seeds differ.")
    elif 0 < fewest <= FEW_SEEDS:
        found.append(
            f"With as few as {fewest} seeds an interval covers less than 95 % when seeds differ much (about 85 % in simulation with three)."
        )
    return found
