"""Verdicts on a study's hypotheses: contrasts of arms, estimated from the records and held against what they expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reports.findings.pairs import possible, tables_of
from reports.records.load import MISSING, STALE, StudyRecords
from reports.statistics import contrast
from reports.statistics.two_level import Estimate
from reports.text.words import counted, listed
from studies.definition.hypotheses import Hypothesis, Weights
from studies.definition.testable import SEEDS

Outcome = Literal["SUPPORTED", "REFUTED", "UNDECIDED", "NOT TESTED"]
PENDING = ("failed", STALE, MISSING)
"""Statuses of trials that have yet to run: before they have, a hypothesis is not judged."""


@dataclass(frozen=True)
class Step:
    """One contrast of a hypothesis."""

    weights: Weights
    estimate: Estimate | None
    p: float | None
    outcome: Outcome


@dataclass(frozen=True)
class Judgement:
    """What the records say of one hypothesis."""

    hypothesis: Hypothesis
    steps: tuple[Step, ...]
    outcome: Outcome
    p: float | None
    """Of an order the largest of its steps: all of them have to hold (intersection-union test)."""
    reason: str
    """Why it was not tested or decided, in words; empty otherwise."""

    @property
    def deciding(self) -> Step:
        """The step on which the verdict rests: the first that refutes, else the one with the largest p."""
        refuting = [step for step in self.steps if step.outcome == "REFUTED"]
        return refuting[0] if refuting else max(self.steps, key=lambda step: -1.0 if step.p is None else step.p)


def judge(records: StudyRecords) -> tuple[Judgement, ...]:
    """A verdict on each hypothesis, in the order of the file."""
    return tuple(_judge(records, hypothesis) for hypothesis in records.study.hypotheses)


def overall(judgements: Sequence[Judgement]) -> Outcome:
    """Refuted by one refuted part, supported by all of them."""
    outcomes = {judgement.outcome for judgement in judgements}
    if "REFUTED" in outcomes:
        return "REFUTED"
    if len(outcomes) == 1:
        return next(iter(outcomes))
    return "UNDECIDED" if outcomes else "NOT TESTED"


def _judge(records: StudyRecords, hypothesis: Hypothesis) -> Judgement:
    steps = tuple(_step(records, hypothesis, weights) for weights in hypothesis.contrasts)
    if why := _untestable(records, hypothesis, steps):
        return Judgement(hypothesis, steps, "NOT TESTED", None, why)
    known = [step.p for step in steps if step.p is not None]
    p = max(known) if len(known) == len(steps) else None
    outcomes = [step.outcome for step in steps]
    decided: Outcome = "REFUTED" if "REFUTED" in outcomes else "UNDECIDED"
    outcome = "SUPPORTED" if set(outcomes) == {"SUPPORTED"} else decided
    if outcome != "UNDECIDED" and (fell := _diverged(records, hypothesis)):
        return Judgement(hypothesis, steps, "UNDECIDED", p, f"{fell}; the seeds that are left flatter such an arm")
    return Judgement(hypothesis, steps, outcome, p, "" if outcome != "UNDECIDED" else "the interval does not decide")


def _step(records: StudyRecords, hypothesis: Hypothesis, weights: Weights) -> Step:
    tables = tables_of(records, hypothesis.metric, list(weights))
    if tables is None:
        return Step(weights, None, None, "NOT TESTED")
    effect = possible(contrast.estimate(list(weights.values()), tables), hypothesis.metric, list(weights.values()))
    if effect.seeds < SEEDS:
        return Step(weights, effect, None, "NOT TESTED")
    p = contrast.p_value(effect, hypothesis.expect, hypothesis.margin)
    return Step(weights, effect, p, contrast.judge(effect, hypothesis.expect, hypothesis.margin))


def _untestable(records: StudyRecords, hypothesis: Hypothesis, steps: Sequence[Step]) -> str:
    absent = [arm for arm in hypothesis.arms if arm not in records.arms]
    if absent:
        return f"{listed(absent)} has not been chosen by the search"
    statuses = [status for arm in hypothesis.arms for status, n in records.counts(arm).items() for _ in range(n)]
    pending = sum(status in PENDING for status in statuses)
    if pending:
        return f"{pending} of its {counted(len(statuses), 'trial')} {'has' if pending == 1 else 'have'} still to run"
    fewest = min((step.estimate.seeds if step.estimate else 0 for step in steps), default=0)
    if fewest < SEEDS:
        return f"{counted(fewest, 'shared seed')} with {hypothesis.metric}; {SEEDS} are needed"
    return ""


def _diverged(records: StudyRecords, hypothesis: Hypothesis) -> str:
    """Diverged trials that could not be evaluated."""
    lost = records.trials[(records.trials["status"] == "diverged") & ~records.trials["evaluated"].astype(bool)]
    fell = [f"{arm} seed {seed}" for arm in hypothesis.arms for seed in lost.loc[lost["arm"] == arm, "seed"]]
    return f"{listed(fell)} diverged" if fell else ""
