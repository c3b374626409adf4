"""Verdicts: what a claim's falsifier says about a recorded series. Pure; reads no files.

Claims on differences to the baseline are judged in `studies.claims.relative`, claims on the evaluation in
`studies.claims.evaluations`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pipeline.run.stopping import OPERATORS, Record, counted, first_break
from studies.definition.falsifier import Falsifier

Outcome = Literal["SURVIVED", "FALSIFIED", "NOT TESTED"]
OUTCOMES: tuple[Outcome, ...] = ("FALSIFIED", "SURVIVED", "NOT TESTED")
EXIT_CODES = {"SURVIVED": 0, "SUPPORTED": 0, "FALSIFIED": 1, "REFUTED": 1, "NOT TESTED": 3, "UNDECIDED": 3}
"""Of falsifiers and hypotheses; of several outcomes the first of 1, 3 and 0 counts."""


@dataclass(frozen=True)
class Verdict:
    """What one falsifier says about one trial, and on what evidence."""

    name: str
    arm: str
    seed: int
    outcome: Outcome
    step: int | None
    """Gradient step at which the claim fell; none for a mean or an evaluation, or when it did not fall."""
    value: float | None
    """What was compared with the threshold and decided, in the claim's unit (`Falsifier.unit`): the value that broke
    the claim, the mean, the evaluation, or else the threshold at which the claim would just have fallen."""
    n: int
    """Records that counted; of an evaluation 1."""
    reason: str
    evidence: tuple[Record, ...] = ()
    """The records that refute the claim, as (gradient step, value): one, or as many in a row as it takes; none for a
    mean."""
    broken: int = 0
    """Records of `n` that lie beyond the threshold, whether or not that refutes the claim."""
    last_step: int | None = None
    """Of the records that counted."""
    run: str | None = None
    """Key of the artifact that the series or the evaluation is read from."""
    arm_value: float | None = None
    """Of a claim relative to the baseline: the metric of this trial where `value` was found, or its mean."""
    baseline_value: float | None = None
    """The same of the baseline's trial, at the same step and seed."""
    interval: tuple[float, float] | None = None
    """Of a claim with a `bound`: both ends of the 95 % interval over the prompts of this trial."""


def evaluate(
    falsifier: Falsifier,
    series: Iterable[Record],
    steps: int,
    *,
    arm: str = "",
    seed: int = 0,
    run: str | None = None,
    whose: str = "the run",
    gap: int | None = None,
) -> Verdict:
    """Judge one trial's series of ``(gradient step, value)``, the values as they are compared with the threshold.

    Order does not matter; of two values at one step the last counts; NaN counts as not recorded. FALSIFIED
    by `any` or `consecutive` (successive records, whatever their distance) holds however early the run
    ended. Everything else needs a run of at least ``before_step`` gradient steps with a record before it;
    a mean above all, since the missing rest could still have moved it. `whose` names the run that came to `steps`;
    `gap` is the first planned step without a record because the target KL had ended its update.
    """
    records = counted(series, falsifier.horizon)
    beyond = sum(OPERATORS[falsifier.op](value, falsifier.threshold) for _, value in records)
    last = records[-1][0] if records else None

    def verdict(outcome: Outcome, value: float | None, reason: str, evidence: tuple[Record, ...] = ()) -> Verdict:
        step = evidence[-1][0] if evidence else None
        return Verdict(
            falsifier.name, arm, seed, outcome, step, value, len(records), reason, evidence, beyond, last, run
        )

    if not records:
        return verdict("NOT TESTED", None, f"no record of {falsifier.metric} before step {falsifier.horizon}")
    if evidence := _refutation(falsifier, records):
        step, value = evidence[-1]
        return verdict("FALSIFIED", value, f"{_of_noun(falsifier)}{value:.4g} at step {step}", evidence)
    closest = _closest(falsifier, records)
    if steps < falsifier.horizon:
        return verdict("NOT TESTED", closest, f"{whose} came to {steps} of {falsifier.horizon} gradient steps")
    if gap is not None and gap < falsifier.horizon:
        why = f"algorithm.target_kl left out step {gap}, so {falsifier.metric} has no record of it"
        return verdict("NOT TESTED", closest, why)
    if len(records) < falsifier.consecutive:
        few = f"{len(records)} records before step {falsifier.horizon}, fewer than the {falsifier.consecutive} in a row"
        return verdict("NOT TESTED", None, f"{few} that would refute the claim")
    if closest is not None and math.isnan(closest):
        return verdict("NOT TESTED", None, f"the mean of {falsifier.metric} is not a number")
    if (
        falsifier.aggregation == "mean"
        and closest is not None
        and OPERATORS[falsifier.op](closest, falsifier.threshold)
    ):
        return verdict("FALSIFIED", closest, f"mean {_of_noun(falsifier)}of {len(records)} records is {closest:.4g}")
    return verdict(
        "SURVIVED", closest, f"{len(records)} records to step {last}; {_margin(falsifier, records, closest)}"
    )


def untested(falsifier: Falsifier, arm: str, seed: int, reason: str) -> Verdict:
    """The verdict on a trial that left nothing to judge."""
    return Verdict(falsifier.name, arm, seed, "NOT TESTED", None, None, 0, reason)


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


def _refutation(falsifier: Falsifier, records: Sequence[Record]) -> tuple[Record, ...]:
    """Where `any` or `consecutive` is decided. A mean is not decided by records, but by all of them."""
    if falsifier.aggregation == "mean":
        return ()
    return first_break(falsifier.op, falsifier.threshold, falsifier.consecutive, records)


def _closest(falsifier: Falsifier, records: Sequence[Record]) -> float | None:
    """The mean; else the most extreme value that N records in a row all reached, or None where there are not N."""
    values = [value for _, value in records]
    if falsifier.aggregation == "mean":
        try:
            return math.fsum(values) / len(values)
        except (OverflowError, ValueError):  # infinities of both signs, or a sum beyond floats
            return math.nan
    n = falsifier.consecutive
    runs = [values[start : start + n] for start in range(len(values) - n + 1)]
    if falsifier.op.startswith(">"):
        return max(map(min, runs), default=None)
    return min(map(max, runs), default=None)


def _of_noun(falsifier: Falsifier) -> str:
    """``difference`` or ``ratio`` before a number, where it is no plain value."""
    return f"{falsifier.relative} " if falsifier.relative else ""


def _margin(falsifier: Falsifier, records: Sequence[Record], closest: float | None) -> str:
    """How far a claim that survived was from falling."""
    if falsifier.consecutive > 1:
        beyond = [OPERATORS[falsifier.op](value, falsifier.threshold) for _, value in records]
        longest = max(sum(1 for _ in run) if broken else 0 for broken, run in groupby(beyond))
        return f"longest run beyond {falsifier.threshold:g}: {longest} of {falsifier.consecutive} records"
    if falsifier.aggregation == "mean":
        return f"mean{f' {falsifier.relative}' if falsifier.relative else ''}: {closest:.4g}"
    return f"{'largest' if falsifier.op.startswith('>') else 'smallest'} {falsifier.noun}: {closest:.4g}"
