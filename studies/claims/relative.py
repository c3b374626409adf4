"""Claims relative to the baseline: a series minus the baseline's, or divided by it, at the same step and seed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.stopping import Record, counted
from studies.claims.falsifiers import Verdict, evaluate, untested
from studies.definition.falsifier import Falsifier


@dataclass(frozen=True)
class Trajectory:
    """A recorded series of one trial."""

    records: Sequence[Record]
    steps: int
    """Gradient steps of the plan that the run came to: those that it took, and those that its target-KL stop left
    out."""
    gap: int | None = None
    """The first step that the target-KL stop left out, of a series with a record at each step."""


def compare(falsifier: Falsifier, own: Trajectory, base: Trajectory) -> Verdict:
    """Judge a trial's series against the baseline's of the same seed.

    Only steps that both recorded count. A ratio exists where the baseline's value is above 0; other steps are left out
    (a KL is 0 at step 0). Whatever is left is judged as any series (`studies.claims.falsifiers.evaluate`), and both
    runs must have taken ``before_step`` gradient steps for a claim to survive, with a value at half of the trial's
    records or more. A mean also falls only with values at half of the records of each trial: to overturn the
    verdict, the missing records would have to lie further from the threshold on average than the measured ones, on the
    other side. NOT TESTED where nothing is left.
    """
    mine, theirs = (dict(counted(one.records, falsifier.horizon)) for one in (own, base))
    related = ((step, relation(falsifier, mine[step], theirs[step])) for step in mine if step in theirs)
    compared = {step: value for step, value in related if value is not None}
    if not compared:
        had = f"{len(mine)} records of this trial before step {falsifier.horizon}, {len(theirs)} of the baseline"
        return untested(falsifier, f"no {falsifier.relative} of {falsifier.metric} at any step: {had}")
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
    said = [verdict.reason, f"{against(value, other)} {where}" if decided is None else against(value, other)]
    # Before the step that decided: a verdict on a running trial says what the one in the end says.
    out = sum(step not in compared and (decided is None or step < decided) for step in mine)
    said += [f"left out: {out} record{'s' * (out > 1)} without a {falsifier.relative} to the baseline"] if out else []
    return replace(verdict, reason="; ".join(said), arm_value=value, baseline_value=other)


def relation(falsifier: Falsifier, own: float, base: float) -> float | None:
    """``own - base`` or ``own / base``; None where that is not a number, and for a ratio to a value that is not above
    0."""
    if falsifier.relative == "ratio" and not base > 0.0:
        return None
    value = own / base if falsifier.relative == "ratio" else own - base
    return None if math.isnan(value) else value


def against(own: float, base: float) -> str:
    """Both values in words."""
    return f"{own:.4g} against the baseline's {base:.4g}"
