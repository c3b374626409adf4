"""Verdicts: a claim's falsifier applied to a recorded series, alone or against the baseline's at the same step and
seed. Pure; reads no files. Claims on the evaluation are judged in `studies.claims.evaluations`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.stopping import OPERATORS, Record, counted, first_break
from studies.definition.falsifier import Falsifier

Outcome = Literal["SURVIVED", "FALSIFIED", "NOT TESTED"]
OUTCOMES: tuple[Outcome, ...] = ("FALSIFIED", "SURVIVED", "NOT TESTED")
EXIT_CODES = {"SURVIVED": 0, "SUPPORTED": 0, "FALSIFIED": 1, "REFUTED": 1, "NOT TESTED": 3, "UNDECIDED": 3}
"""Exit codes of falsifiers and hypotheses; of several outcomes the first of 1, 3 and 0 counts."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of one falsifier on one trial, and its evidence."""

    name: str
    arm: str
    seed: int
    """Seed of the trial; `studies.claims.verdicts` fills both in."""
    outcome: Outcome
    step: int | None
    """Gradient step at which the claim fell; none for a mean or an evaluation, or when it did not fall."""
    value: float | None
    """The value that decided when compared with the threshold, in the unit of the metric: the value that
    broke the claim, the mean, the evaluation, or else the threshold at which the claim would just have fallen."""
    n: int
    """Records that counted; of an evaluation 1."""
    reason: str
    evidence: tuple[Record, ...] = ()
    """The records that refute the claim, as (gradient step, value): one, or as many in a row as it takes; none for a
    mean."""
    broken: int = 0
    """Records of `n` that lie beyond the threshold, whether or not that refutes the claim."""
    last_step: int | None = None
    """Last step of the records that counted."""
    run: str | None = None
    """Key of the artifact that the series or the evaluation is read from."""
    arm_value: float | None = None
    """The metric of this trial where `value` was found, or its mean; for a claim relative to the baseline."""
    baseline_value: float | None = None
    """The same of the baseline's trial, at the same step and seed."""
    interval: tuple[float, float] | None = None
    """Ends of the 95 % interval over the prompts of this trial; for a claim with a `bound`."""


@dataclass(frozen=True)
class Series:
    """A recorded series of one trial."""

    records: Sequence[Record]
    steps: int
    """Gradient steps of the plan that the run came to: those that it took, and those that its target-KL stop left
    out."""
    gap: int | None = None
    """The first step that the target-KL stop left out, of a series with a record at each step."""


def evaluate(
    falsifier: Falsifier, series: Iterable[Record], steps: int, *, whose: str = "the run", gap: int | None = None
) -> Verdict:
    """Judge one trial's series of ``(gradient step, value)``, the values as they are compared with the threshold.

    Order does not matter; of two values at one step the last counts; NaN counts as not recorded. FALSIFIED
    by `any` or `consecutive` (successive records, whatever their distance) holds however early the run
    ended. Everything else needs a run of at least ``before_step`` gradient steps with a record before it;
    a mean above all, since the missing rest could still have moved it. `whose` names the run that came to `steps`;
    `gap` is the first planned step without a record because the target KL had ended its update.
    """
    records, before, mean = counted(series, falsifier.horizon), falsifier.horizon, falsifier.aggregation == "mean"
    noun, breaks = "difference " * bool(falsifier.relative_to), OPERATORS[falsifier.op]
    if not records:
        return untested(falsifier, f"no record of {falsifier.metric} before step {before}")
    evidence = () if mean else first_break(falsifier.op, falsifier.threshold, falsifier.consecutive, records)
    closest = _closest(falsifier, records)
    verdict = replace(
        untested(falsifier, ""),
        value=closest,
        n=len(records),
        broken=sum(breaks(value, falsifier.threshold) for _, value in records),
        last_step=records[-1][0],
    )
    if evidence:
        step, value = evidence[-1]
        reason = f"{noun}{value:.4g} at step {step}"
        return replace(verdict, outcome="FALSIFIED", step=step, value=value, reason=reason, evidence=evidence)
    if steps < before:
        return replace(verdict, reason=f"{whose} came to {steps} of {before} gradient steps")
    if gap is not None and gap < before:
        why = f"algorithm.target_kl left out step {gap}, so {falsifier.metric} has no record of it"
        return replace(verdict, reason=why)
    if closest is None:
        few = f"{len(records)} records before step {before}, fewer than the {falsifier.consecutive} in a row"
        none = f"the mean of {falsifier.metric} is not a number"
        return replace(verdict, reason=none if mean else f"{few} that would refute the claim")
    if mean and breaks(closest, falsifier.threshold):
        reason = f"mean {noun}of {len(records)} records is {closest:.4g}"
        return replace(verdict, outcome="FALSIFIED", reason=reason)
    word = "mean" if mean else "largest" if falsifier.op.startswith(">") else "smallest"
    row = f" in {falsifier.consecutive} records in a row" if falsifier.consecutive > 1 else ""
    reason = f"{len(records)} records to step {records[-1][0]}; {word} {noun or 'value '}{closest:.4g}{row}"
    return replace(verdict, outcome="SURVIVED", reason=reason)


def compare(falsifier: Falsifier, own: Series, base: Series) -> Verdict:
    """Judge a trial's series against the baseline's of the same seed.

    Only steps that both recorded count. Whatever is left is judged as any series (`evaluate`), and both
    runs must have taken ``before_step`` gradient steps for a claim to survive, with a value at half of the trial's
    records or more. A mean also falls only with values at half of the records of each trial: to overturn the
    verdict, the missing records would have to lie further from the threshold on average than the measured ones, on the
    other side. NOT TESTED where nothing is left.
    """
    mine, theirs = (dict(counted(one.records, falsifier.horizon)) for one in (own, base))
    related = ((step, mine[step] - theirs[step]) for step in mine if step in theirs)
    compared = {step: value for step, value in related if not math.isnan(value)}  # of two infinities there is none
    if not compared:
        had = f"{len(mine)} records of this trial before step {falsifier.horizon}, {len(theirs)} of the baseline"
        return untested(falsifier, f"no difference of {falsifier.metric} at any step: {had}")
    shorter = "the baseline's run" if base.steps < own.steps else "the run"
    gap = min((one.gap for one in (own, base) if one.gap is not None), default=None)
    verdict = evaluate(falsifier, compared.items(), min(own.steps, base.steps), whose=shorter, gap=gap)
    mean = falsifier.aggregation == "mean"
    needed = max(len(mine), len(theirs)) if mean else len(mine)
    if (verdict.outcome == "SURVIVED" or (mean and verdict.outcome == "FALSIFIED")) and 2 * verdict.n < needed:
        few = f"only {verdict.n} of {needed} records before step {falsifier.horizon} could be compared; half are needed"
        verdict = replace(verdict, outcome="NOT TESTED", reason=few)
    if verdict.value is None:
        return verdict
    decided = verdict.step
    steps = (
        [decided] if decided is not None else [step for step, value in compared.items() if value == verdict.value][:1]
    )
    steps, where = (list(compared), "on average") if mean else (steps, f"at step {steps[0]}")
    value, other = (sum(one[step] for step in steps) / len(steps) for one in (mine, theirs))
    parts = [verdict.reason, f"{against(value, other)} {where}" if decided is None else against(value, other)]
    # Before the step that decided: a verdict on a running trial equals the one in the end.
    out = sum(step not in compared and (decided is None or step < decided) for step in mine)
    parts += [f"left out: {out} record{'s' * (out > 1)} without a difference to the baseline"] if out else []
    return replace(verdict, reason="; ".join(parts), arm_value=value, baseline_value=other)


def against(own: float, base: float) -> str:
    """Both values in words."""
    return f"{own:.4g} against the baseline's {base:.4g}"


def untested(falsifier: Falsifier, reason: str) -> Verdict:
    """The verdict on a trial that left nothing to judge."""
    return Verdict(falsifier.name, "", 0, "NOT TESTED", None, None, 0, reason)


def overall(verdicts: Sequence[Verdict]) -> Outcome:
    """One refutation refutes; otherwise one missing test leaves the whole not tested, as does having none."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if "FALSIFIED" in outcomes:
        return "FALSIFIED"
    return "SURVIVED" if outcomes == {"SURVIVED"} else "NOT TESTED"


def exit_code(outcomes: Iterable[str]) -> int:
    """One refutation decides, then one open question.

    >>> exit_code(["SURVIVED", "SUPPORTED"]), exit_code(["SURVIVED", "UNDECIDED"]), exit_code(["UNDECIDED", "REFUTED"])
    (0, 3, 1)
    """
    codes = {EXIT_CODES[outcome] for outcome in outcomes}
    return next(code for code in (1, 3, 0) if code in codes)


def tally(verdicts: Sequence[Verdict]) -> dict[Outcome, int]:
    """Verdicts by outcome, without those that did not occur."""
    return {outcome: n for outcome in OUTCOMES if (n := sum(verdict.outcome == outcome for verdict in verdicts))}


def _closest(falsifier: Falsifier, records: Sequence[Record]) -> float | None:
    """The mean; else the most extreme value that N records in a row all reached. None where there is no such number."""
    values = [value for _, value in records]
    if falsifier.aggregation == "mean":
        try:
            return math.fsum(values) / len(values)
        except (OverflowError, ValueError):  # infinities of both signs, or a sum beyond floats
            return None
    n = falsifier.consecutive
    rows = [values[start : start + n] for start in range(len(values) - n + 1)]
    if falsifier.op.startswith(">"):
        return max(map(min, rows), default=None)
    return min(map(max, rows), default=None)
