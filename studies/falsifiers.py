"""Verdicts: what a claim's falsifier says about a recorded series. Pure; reads no files."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from studies.schema import Consecutive, Falsifier

Outcome = Literal["SURVIVED", "FALSIFIED", "NOT TESTED"]
EXIT_CODES: dict[Outcome, int] = {"SURVIVED": 0, "FALSIFIED": 1, "NOT TESTED": 3}
_OPERATORS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Verdict:
    """What one falsifier says about one trial."""

    name: str
    arm: str
    seed: int
    outcome: Outcome
    step: int | None
    """Gradient step at which the claim fell; none for a mean, or when it did not fall."""
    value: float | None
    """The value that decided: the one that broke the claim, the mean, or else the one nearest to breaking it."""
    n: int
    """Records that counted."""
    reason: str


def evaluate(falsifier: Falsifier, series: Iterable[tuple[int, float]], steps_taken: int, *, arm: str = "", seed: int = 0) -> Verdict:
    """Judge one trial's series of ``(gradient step, value)``.

    Order does not matter; of two values at one step the last counts; NaN counts as not recorded. FALSIFIED
    by `any` or `consecutive` (successive records, whatever their distance) holds however early the run
    ended. Everything else needs a run of at least ``before_step`` gradient steps with a record before it;
    a mean above all, since the missing rest could still have moved it.
    """
    records = {step: value for step, value in series if not math.isnan(value)}
    counted = sorted((step, value) for step, value in records.items() if step < falsifier.before_step)
    n = len(counted)

    def verdict(outcome: Outcome, step: int | None, value: float | None, reason: str) -> Verdict:
        return Verdict(falsifier.name, arm, seed, outcome, step, value, n, reason)

    if not counted:
        return verdict("NOT TESTED", None, None, f"no record of {falsifier.metric} before step {falsifier.before_step}")
    fell = _first_break(falsifier, counted)
    if fell is not None:
        step, value = fell
        return verdict("FALSIFIED", step, value, f"{value:.4g} at step {step}")
    closest = _closest(falsifier, counted)
    if steps_taken < falsifier.before_step:
        return verdict("NOT TESTED", None, closest, f"the run took {steps_taken} of {falsifier.before_step} gradient steps")
    if math.isnan(closest):
        return verdict("NOT TESTED", None, None, f"the mean of {falsifier.metric} is not a number")
    if falsifier.aggregation == "mean" and _OPERATORS[falsifier.op](closest, falsifier.threshold):
        return verdict("FALSIFIED", None, closest, f"mean of {n} records is {closest:.4g}")
    return verdict("SURVIVED", None, closest, f"{n} records, nearest to breaking it: {closest:.4g}")


def untested(falsifier: Falsifier, arm: str, seed: int, reason: str) -> Verdict:
    """The verdict on a trial that left nothing to judge."""
    return Verdict(falsifier.name, arm, seed, "NOT TESTED", None, None, 0, reason)


def overall(verdicts: Sequence[Verdict]) -> Outcome:
    """One refutation refutes; otherwise one missing test leaves the whole not tested, as does having none."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if "FALSIFIED" in outcomes:
        return "FALSIFIED"
    return "SURVIVED" if outcomes == {"SURVIVED"} else "NOT TESTED"


def _first_break(falsifier: Falsifier, counted: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
    """Where `any` or `consecutive` is decided: the record that completes the refutation."""
    if falsifier.aggregation == "mean":
        return None
    needed = falsifier.aggregation.consecutive if isinstance(falsifier.aggregation, Consecutive) else 1
    breaks = _OPERATORS[falsifier.op]
    streak = 0
    for step, value in counted:
        streak = streak + 1 if breaks(value, falsifier.threshold) else 0
        if streak == needed:
            return step, value
    return None


def _closest(falsifier: Falsifier, counted: Sequence[tuple[int, float]]) -> float:
    values = [value for _, value in counted]
    if falsifier.aggregation == "mean":
        try:
            return math.fsum(values) / len(values)
        except (OverflowError, ValueError):  # infinities of both signs, or a sum beyond floats
            return math.nan
    return max(values) if falsifier.op.startswith(">") else min(values)
