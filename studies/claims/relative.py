"""Claims relative to the baseline: a series minus the baseline's, or divided by it, at the same step and seed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.run.stopping import Record, counted
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


@dataclass(frozen=True)
class _Pairs:
    """Records of two trials at the steps that both have."""

    values: dict[int, tuple[float, float]]
    """Gradient step -> the arm's value and the baseline's."""
    compared: tuple[Record, ...]
    """Gradient step and difference or ratio, at each of these steps where there is one."""
    lone: tuple[int, ...]
    """Steps at which the arm has a record and the baseline has none."""
    base: int
    """Records of the baseline."""

    @property
    def own(self) -> int:
        """Records of the arm."""
        return len(self.values) + len(self.lone)

    @property
    def undefined(self) -> list[int]:
        """Shared steps without a difference or ratio."""
        return sorted(self.values.keys() - dict(self.compared).keys())


def compare(
    falsifier: Falsifier,
    own: Trajectory,
    base: Trajectory,
    *,
    arm: str = "",
    seed: int = 0,
    run: str | None = None,
) -> Verdict:
    """Judge a trial's series against the baseline's of the same seed.

    Only steps that both recorded count. A ratio exists where the baseline's value is above 0; other steps are left out
    (a KL is 0 at step 0). Whatever is left is judged as any series (`studies.claims.falsifiers.evaluate`), and both
    runs must have taken ``before_step`` gradient steps for a claim to survive, with a value at half of the trial's
    records or more. A mean also falls only with values at half of the records of each trial: to overturn the
    verdict, the missing records would have to lie further from the threshold on average than the measured ones, on the
    other side. NOT TESTED where nothing is left.
    """
    pairs = _pairs(falsifier, own.records, base.records)
    if not pairs.compared:
        return replace(untested(falsifier, arm, seed, _why_none(falsifier, own, base, pairs)), run=run)
    shorter = "the baseline's run" if base.steps < own.steps else "the run"
    steps = min(own.steps, base.steps)
    gap = min((one.gap for one in (own, base) if one.gap is not None), default=None)
    verdict = evaluate(falsifier, pairs.compared, steps, arm=arm, seed=seed, run=run, whose=shorter, gap=gap)
    mean = falsifier.aggregation == "mean"
    needed = max(pairs.own, pairs.base) if mean else pairs.own
    if (verdict.outcome == "SURVIVED" or (mean and verdict.outcome == "FALSIFIED")) and 2 * verdict.n < needed:
        few = f"only {verdict.n} of {needed} records before step {falsifier.horizon} could be compared; half are needed"
        verdict = replace(verdict, outcome="NOT TESTED", reason=few)
    return _with_both(falsifier, verdict, pairs)


def relation(falsifier: Falsifier, own: float, base: float) -> float | None:
    """``own - base`` or ``own / base``; None where that is not a number, and for a ratio to a value that is not above
    0."""
    if falsifier.relative == "ratio" and not base > 0.0:
        return None
    value = own / base if falsifier.relative == "ratio" else own - base
    return None if math.isnan(value) else value


def _pairs(falsifier: Falsifier, own: Iterable[Record], base: Iterable[Record]) -> _Pairs:
    mine, theirs = (dict(counted(records, falsifier.horizon)) for records in (own, base))
    shared = {step: (value, theirs[step]) for step, value in mine.items() if step in theirs}
    related = [(step, relation(falsifier, *both)) for step, both in shared.items()]
    compared = tuple((step, value) for step, value in related if value is not None)
    return _Pairs(shared, compared, tuple(step for step in mine if step not in theirs), len(theirs))


def _why_none(falsifier: Falsifier, own: Trajectory, base: Trajectory, pairs: _Pairs) -> str:
    before = f"{falsifier.metric} before step {falsifier.horizon}"
    if not counted(own.records, falsifier.horizon):
        return f"no record of {before}"
    if not counted(base.records, falsifier.horizon):
        return f"the baseline has no record of {before}"
    if not pairs.values:
        return f"no step at which both this trial and the baseline have a record of {before}"
    if falsifier.relative == "ratio":
        return f"no ratio: the baseline's {falsifier.metric} is not above 0 at any of {len(pairs.values)} shared steps"
    return f"no difference of {before} is a number"


def _with_both(falsifier: Falsifier, verdict: Verdict, pairs: _Pairs) -> Verdict:
    """The verdict with the values of both trials: at the step that decided, or their means."""
    if verdict.value is None or math.isnan(verdict.value):
        return verdict
    if falsifier.aggregation == "mean":
        both = [pairs.values[step] for step, _ in pairs.compared]
        own, base = (sum(pair[index] for pair in both) / len(both) for index in (0, 1))
        where = "on average"
    else:
        at = verdict.step
        step = at if at is not None else next(step for step, value in pairs.compared if value == verdict.value)
        own, base = pairs.values[step]
        where = "" if at is not None else f"at step {step}"
    said = f"{against(own, base)} {where}".rstrip()
    reason = "; ".join([verdict.reason, said, *_left_out(falsifier, pairs, verdict.step)])
    return replace(verdict, reason=reason, arm_value=own, baseline_value=base)


def against(own: float, base: float) -> str:
    """Both values in words."""
    return f"{own:.4g} against the baseline's {base:.4g}"


def _left_out(falsifier: Falsifier, pairs: _Pairs, until: int | None) -> list[str]:
    """Records that could not be compared, in words; `until`: before the step that decided, so that a verdict on a
    running trial says what the one in the end says."""
    why = "the baseline's value is not above 0" if falsifier.relative == "ratio" else "there is no difference"
    found = []
    for steps, where in ((pairs.lone, "at steps that the baseline lacks"), (pairs.undefined, f"where {why}")):
        if n := sum(until is None or step < until for step in steps):
            found.append(f"left out: {n} record{'s' * (n > 1)} {where}")
    return found
