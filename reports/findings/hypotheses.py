"""Verdicts on a study's hypotheses: contrasts of arms, estimated from the records and tested against what they expect,
with Holm's correction over the hypotheses of the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from reports.findings.matched_kl import at_equal_kl, base_method, kl_key
from reports.findings.pairs import contrast_of
from reports.records.load import MISSING, STALE, StudyRecords
from reports.statistics import contrast
from reports.statistics.two_level import ALPHA, Estimate
from reports.text.words import counted, listed, p_value
from studies.definition.hypotheses import Hypothesis, Weights
from studies.definition.testable import SEEDS

Outcome = Literal["SUPPORTED", "REFUTED", "UNDECIDED", "NOT TESTED"]
PENDING = ("failed", STALE, MISSING)
"""Statuses of trials that have yet to run: before they have, a hypothesis is not judged."""


@dataclass(frozen=True)
class HypothesisStep:
    """One contrast of a hypothesis."""

    weights: Weights
    estimate: Estimate | None
    holds: bool
    """True where the estimate is as expected."""
    p: float | None
    """p-value of the opposite (`contrast.against`)."""
    left: str = ""
    """Seeds without a comparison at equal KL, by reason."""


@dataclass(frozen=True)
class Judgement:
    """The judgement of one hypothesis by the records."""

    hypothesis: Hypothesis
    steps: tuple[HypothesisStep, ...]
    outcome: Outcome
    p: float | None
    """p-value of the opposite of what the estimates show (`contrast.conjunction`)."""
    reason: str
    """Reason why it was not tested or decided, in words; empty otherwise."""
    p_holm: float | None = None
    """`p`, corrected over all hypotheses of the study."""

    @property
    def deciding(self) -> HypothesisStep:
        """The step on which the verdict rests: of those that are not as expected the one with the smallest p, else the
        one with the largest."""
        failing = [step for step in self.steps if not step.holds]
        if failing:
            return min(failing, key=lambda step: 2.0 if step.p is None else step.p)
        return max(self.steps, key=lambda step: -1.0 if step.p is None else step.p)


def judge(records: StudyRecords) -> tuple[Judgement, ...]:
    """A verdict on each hypothesis, in the order of the file."""
    alone = [_alone(records, hypothesis) for hypothesis in records.study.hypotheses]
    tests = [(all(step.holds for step in one.steps), None if one.reason else one.p) for one in alone]
    return tuple(
        one if one.reason else _decided(one, outcome, p_holm)
        for one, (outcome, p_holm) in zip(alone, contrast.decide(tests), strict=True)
    )


def overall(judgements: Sequence[Judgement]) -> Outcome:
    """Combine the parts: refuted by one refuted part, supported by all of them."""
    outcomes = {judgement.outcome for judgement in judgements}
    if "REFUTED" in outcomes:
        return "REFUTED"
    if len(outcomes) == 1:
        return next(iter(outcomes))
    return "UNDECIDED" if outcomes else "NOT TESTED"


def _decided(one: Judgement, outcome: Outcome, p_holm: float | None) -> Judgement:
    """The verdict after correction, and why there is none."""
    reason = "" if outcome != "UNDECIDED" else "the interval does not decide"
    if reason and one.deciding.p is not None and one.deciding.p < ALPHA:
        reason = f"the interval alone would decide, but the corrected p-value is {p_value(p_holm)}"
    return replace(one, outcome=outcome, p_holm=p_holm, reason=reason)


def _alone(records: StudyRecords, hypothesis: Hypothesis) -> Judgement:
    """The test of one hypothesis before the correction; with a reason where it allows no verdict."""
    steps = tuple(_step(records, hypothesis, weights) for weights in hypothesis.contrasts)
    if why := _untestable(records, hypothesis, steps):
        return Judgement(hypothesis, steps, "NOT TESTED", None, why)
    _, p = contrast.conjunction([(step.holds, step.p) for step in steps])
    fell = _diverged(records, hypothesis)
    return Judgement(
        hypothesis, steps, "UNDECIDED", p, f"{fell}; the seeds that are left flatter such an arm" if fell else ""
    )


def _step(records: StudyRecords, hypothesis: Hypothesis, weights: Weights) -> HypothesisStep:
    effect, left = None, ""
    if not hypothesis.at_equal_kl:
        effect = contrast_of(records, hypothesis.metric, weights)
    elif row := at_equal_kl(records, hypothesis.metric, max(weights, key=lambda arm: weights[arm])):
        effect, left = row.difference, ", ".join(f"{n} {why}" for why, n in row.left_by_reason.items())
    if effect is None or effect.seeds < SEEDS:
        return HypothesisStep(weights, effect, False, None, left)
    return HypothesisStep(weights, effect, *contrast.against(effect, hypothesis.expect, hypothesis.margin), left)


def _arms(records: StudyRecords, hypothesis: Hypothesis) -> tuple[str, ...]:
    """The arms whose trials an estimate needs."""
    curve = base_method(records)[1] if hypothesis.at_equal_kl else ()
    return tuple(dict.fromkeys((*hypothesis.arms, *curve)))


def _untestable(records: StudyRecords, hypothesis: Hypothesis, steps: Sequence[HypothesisStep]) -> str:
    absent = [arm for arm in hypothesis.arms if arm not in records.arms]
    if absent:
        return f"{listed(absent)} has not been chosen by the search"
    arms = _arms(records, hypothesis)
    statuses = [status for arm in arms for status, n in records.counts(arm).items() for _ in range(n)]
    pending = sum(status in PENDING for status in statuses)
    if pending:
        return f"{pending} of its {counted(len(statuses), 'trial')} {'has' if pending == 1 else 'have'} still to run"
    fewest = min((step.estimate.seeds if step.estimate else 0 for step in steps), default=0)
    if fewest < SEEDS:
        if left := next((step.left for step in steps if step.left), ""):
            return f"too few seeds can be compared at equal KL: {left}"
        return f"{counted(fewest, 'shared seed')} with {hypothesis.metric}; {SEEDS} are needed"
    return ""


def _diverged(records: StudyRecords, hypothesis: Hypothesis) -> str:
    """Diverged trials that could not be evaluated, or have no KL where it is needed."""
    trials = records.trials
    evaluated = trials["evaluated"].astype(bool)
    if hypothesis.at_equal_kl:
        evaluated &= trials[kl_key(records)].notna()
    lost = trials[(trials["status"] == "diverged") & ~evaluated]
    fell = [f"{arm} seed {seed}" for arm in _arms(records, hypothesis) for seed in lost.loc[lost["arm"] == arm, "seed"]]
    return f"{listed(fell)} diverged" if fell else ""
