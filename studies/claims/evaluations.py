"""Claims on the evaluation: a metric of one trial, or an end of its interval over prompts, against a threshold. Pure.

The 95 % interval covers the held-out prompts of one trial: what this policy would score on other prompts of the same
kind. It does not cover other seeds; each seed has a verdict of its own. Win rates have the interval that the record
states; other rates (ties, ended by EOS, preference accuracy) have that of `pipeline.intervals.grouped`. All others have
Student's t over prompts, ratios of two sums (nats per token) in linear form (delta method). A difference to the
baseline has Student's t of the differences, prompt by prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.intervals import Interval, grouped, student
from pipeline.stopping import OPERATORS
from studies.claims.falsifiers import Verdict, against, untested
from studies.definition.falsifier import Falsifier

Array = NDArray[np.float64]
ACCURACY = "eval/preference_accuracy"
"""A rate that is undefined on a prompt where the judge decides none of its pairs."""
RATES = ("eval/win_rate", "eval/win_rate_proxy", ACCURACY, "eval/tie_rate", "eval/eos_rate", "eval/fault_rate")
FEWEST = 2
"""Fewest prompts for an interval; prompts without a value of the metric do not count."""


@dataclass(frozen=True)
class Outcomes:
    """A metric of one trial, prompt by prompt. Shapes (P,)."""

    prompts: NDArray[np.int64]
    """Numbers of the prompts, each once."""
    top: Array
    bottom: Array
    """The metric is the sum of `top` over the sum of `bottom`, which is 1 where it is a mean, and 0 on a prompt without
    a value."""

    @property
    def observed(self) -> int:
        return int((self.bottom > 0).sum())

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Outcomes:
        """Return the outcomes of these rows alone, in their order."""
        return Outcomes(self.prompts[rows], self.top[rows], self.bottom[rows])

    @property
    def linear(self) -> Array:
        """Values whose mean is the metric and whose spread is its own to first order (the delta method). Shape (P,)."""
        ratio = self.top.sum() / self.bottom.sum()
        result: Array = ratio + (self.top - ratio * self.bottom) / self.bottom.mean()
        return result


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one trial, as far as a claim needs it."""

    value: float
    """The metric, from the record."""
    outcomes: Outcomes | None = None
    """Outcomes by prompt, where the claim has a `bound`."""
    stated: tuple[float, float] | None = None
    """The interval that the record itself states: of win rates, whose draws of the reference it counts."""
    ended: str = ""
    """Reason why the trial ended before its time, in words; empty for a complete one."""


def interval(metric: str, outcomes: Outcomes) -> Interval:
    """The metric with its 95 % interval over the prompts of one trial; of a rate with `bottom` observations a prompt,
    without the prompts that have none."""
    if metric in RATES:
        observed = outcomes.bottom > 0
        return grouped(outcomes.top[observed], outcomes.bottom[observed].astype(np.int64))
    return student(outcomes.linear)


def difference(own: Outcomes, base: Outcomes) -> tuple[Interval, int]:
    """``own - base`` with its 95 % interval, paired on the prompts that both have, and how many of these have a value
    of the metric, on the side that has fewer; infinite ends with fewer than `FEWEST`."""
    _, own_rows, base_rows = np.intersect1d(own.prompts, base.prompts, return_indices=True)
    own, base = own.at(own_rows), base.at(base_rows)
    observed = min(own.observed, base.observed)
    if observed < FEWEST:
        return (math.nan, -math.inf, math.inf), observed
    decided = (own.bottom > 0) | (base.bottom > 0)  # others would only add degrees of freedom
    return student(own.at(decided).linear - base.at(decided).linear), observed


def judge(falsifier: Falsifier, own: Evaluation, base: Evaluation | None = None) -> Verdict:
    """Judge the evaluation of one trial; `base`: that of the baseline with the same seed, where the claim is relative
    to it. NOT TESTED without an interval where the claim has a `bound`."""
    none = untested(falsifier, "")
    if base is not None:
        none = replace(none, arm_value=own.value, baseline_value=base.value)
    value, ends, prompts = _compared(falsifier, own, base)
    if falsifier.bound and prompts < FEWEST:
        which = "evaluated prompts" + " shared with the baseline" * (base is not None)
        which += " with a decided pair" * (falsifier.metric == ACCURACY)
        return replace(none, reason=f"no interval: {prompts} {which}, and {FEWEST} are needed")
    both = [against(own.value, base.value)] if base is not None else []
    if value is None or not math.isfinite(value):
        noun = "difference" if falsifier.relative_to else "value"
        return replace(none, reason=": ".join([f"no {noun} of {falsifier.metric} is defined", *both]))
    decides = value if ends is None else ends[falsifier.bound == "high"]
    refuted = OPERATORS[falsifier.op](decides, falsifier.threshold)
    text = f"{'difference ' * (base is not None)}{value:.4g}"
    if ends is not None:
        text += f", 95 % interval {ends[0]:.4g} to {ends[1]:.4g} over {prompts} prompts"
    early = [own.ended, f"baseline: {base.ended}" if base is not None and base.ended else ""]
    return replace(
        none,
        outcome="FALSIFIED" if refuted else "SURVIVED",
        value=decides,
        n=1,
        broken=int(refuted),
        interval=ends,
        reason="; ".join([text, *both, *filter(None, early)]),
    )


def _compared(
    falsifier: Falsifier, own: Evaluation, base: Evaluation | None
) -> tuple[float | None, tuple[float, float] | None, int]:
    """The estimate, its interval where the claim has a `bound`, and the number of prompts of the interval with a value
    of the metric."""
    if not falsifier.bound:
        return own.value - (base.value if base is not None else 0.0), None, 0
    if own.outcomes is None or (base is not None and base.outcomes is None):
        return None, None, 0
    if base is not None and base.outcomes is not None:
        (value, low, high), prompts = difference(own.outcomes, base.outcomes)
        return value, (low, high), prompts
    prompts = own.outcomes.observed
    if prompts < FEWEST:
        return own.value, None, prompts
    return own.value, own.stated or interval(falsifier.metric, own.outcomes)[1:], prompts
