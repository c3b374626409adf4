"""Falsifiers: claims, each with the observation that would refute it in a trial.

A falsifier is about a series (records before a gradient step) or the evaluation (`eval/...`, once per trial), and
compares either the trial's own value or, with `relative_to`, its difference to the baseline's.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Distinct, Finite, Positive, Section
from pipeline.config.names import nearest
from pipeline.run.metrics import PER_PROMPT, per_prompt
from studies.definition.fields import COST, EVALUATION, MetricName, Name, Text, check_comparable

EXACT_KL = "objective/kl_exact_per_token"
"""Default series of a falsifier: the k1 estimate of a small KL is mostly noise, and a single record of it can refute a
claim that the policy keeps."""


class Consecutive(Section):
    """An aggregation: this many successive records must all break the claim."""

    consecutive: Positive


class Falsifier(Section):
    """A claim, and the observation that would refute it in a trial: ``metric op threshold``."""

    name: Name
    claim: Text
    metric: MetricName = Field(
        EXACT_KL,
        description=(
            "a series, or a metric of the evaluation (eval/...); default: the exact KL per token to the reference"
        ),
    )
    op: Literal[">", ">=", "<", "<="]
    threshold: Finite = Field(description="in the unit of the metric")
    before_step: Positive | None = Field(
        None,
        description="records before this planned gradient step count; a series needs it, an evaluation has no steps",
    )
    aggregation: Literal["any", "mean"] | Consecutive = Field(
        "any", description="of a series: any record, the mean of all, or {consecutive: N} records in a row"
    )
    bound: Literal["low", "high"] | None = Field(
        None,
        description=(
            "of an evaluation: compare this end of the trial's 95 % interval over its prompts, not the estimate"
        ),
    )
    relative_to: Literal["baseline"] | None = Field(
        None, description="subtract the value of the baseline's trial of the same seed, of a series at the same step"
    )
    arms: Distinct = Field(("*",), min_length=1, description="patterns over arm names, as in a shell")
    stop: bool = Field(
        False, description="end a trial as `pruned` as soon as it refutes the claim; it is evaluated as it then is"
    )

    @field_validator("aggregation", mode="before")
    @classmethod
    def _known_aggregation(cls, value: Any) -> Any:
        if value in ("any", "mean") or isinstance(value, Consecutive):
            return value
        count = value.get("consecutive") if isinstance(value, dict) and len(value) == 1 else None
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return value
        raise ValueError(f"{value!r} is not an aggregation; write any, mean or {{consecutive: N}} with N at least 1")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        metric, once, cost = f"'{self.metric}'", self.evaluated, self.metric.startswith(COST)
        measured = f"{metric} is measured once, after training"
        wrong = {
            "stop: a running trial does not know the baseline's values; remove stop or relative_to": (
                self.stop and self.relative_to
            ),
            f"metric: {metric} is recorded once, and not while a trial runs; name it in a hypothesis": cost,
            f"before_step: is missing; {metric} is a series, of which records before a step count": (
                not (once or cost) and self.before_step is None
            ),
            "stop: a mean is known only when all its records are; use any or {consecutive: N}, or remove stop": (
                not once and self.stop and self.aggregation == "mean"
            ),
            f"before_step: {measured}; remove before_step, or name a series": once and self.before_step is not None,
            f"aggregation: {measured}; remove aggregation, or name a series": once and self.aggregation != "any",
            f"stop: {measured}, so it cannot end the training; remove stop, or name a series": once and self.stop,
            f"bound: {metric} has no interval{nearest(self.metric, PER_PROMPT)}; these have one:"
            f" {', '.join(PER_PROMPT)}": self.bound and per_prompt(self.metric) is None,
        }
        if faults := [text for text, holds in wrong.items() if holds]:
            raise ValueError("; ".join(faults))
        if self.relative_to:
            check_comparable(self.metric)
        return self

    @property
    def evaluated(self) -> bool:
        """True where the claim is about the evaluation, not a series."""
        return self.metric.startswith(EVALUATION)

    @property
    def horizon(self) -> int:
        """Planned gradient steps that a claim on a series covers; 0 of a claim on the evaluation."""
        return self.before_step or 0

    @property
    def consecutive(self) -> int:
        """Successive records that must break the claim; 1 for `any`."""
        return self.aggregation.consecutive if isinstance(self.aggregation, Consecutive) else 1

    def applies_to(self, arm: str, baseline: str) -> bool:
        """Return whether the claim applies to this arm; one relative to the baseline does not apply to the baseline."""
        named = any(fnmatchcase(arm, pattern) for pattern in self.arms)
        return named and not (self.relative_to and arm == baseline)

    @property
    def condition(self) -> str:
        """The observation that would refute the claim, for people.

        >>> one = {"name": "n", "claim": "c", "op": "<", "threshold": 0.7}
        >>> Falsifier(**one, metric="eval/win_rate", bound="low").condition
        'low end of the 95 % interval of eval/win_rate < 0.7'
        >>> Falsifier(**one, metric="objective/kl", before_step=9, relative_to="baseline", aggregation="mean").condition
        "mean of (objective/kl minus the baseline's) < 0.7 before step 9"
        """
        what = self.metric
        if self.relative_to:
            what += " minus the baseline's"
            what = f"({what})" if self.aggregation == "mean" or self.bound else what
        if self.bound:
            what = f"{self.bound} end of the 95 % interval of {what}"
        how = "mean of " if self.aggregation == "mean" else ""
        often = f" {self.consecutive} times in a row" if isinstance(self.aggregation, Consecutive) else ""
        before = "" if self.before_step is None else f" before step {self.before_step}"
        return f"{how}{what} {self.op} {self.threshold:g}{often}{before}"
