"""The sections of a search: its space, objectives, constraints, and the confirmation of its winners."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from pipeline.config.base import Finite, Positive, Section, Seed, StrictlyPositive
from pipeline.config.train import StopRule
from pipeline.run.metrics import METRICS, known
from studies.definition.fields import Knob, MetricName, Seeds, in_full
from studies.definition.trainer import Window


class Objective(Section):
    """The aim of a study: a metric of the final evaluation."""

    metric: MetricName = Field("eval/win_rate", description="a metric of the evaluation, eval/...")
    direction: Literal["maximize", "minimize"] = "maximize"
    smallest: StrictlyPositive | None = Field(
        None,
        description=(
            "the smallest difference to the baseline that matters, in the metric's unit, above 0; an arm is called"
            " equivalent only where its difference is shown to be smaller (default: 0.05 of a win rate, else 0.2"
            " standard deviations over prompts)"
        ),
    )

    window: Window = Field(
        "last_tenth", description="of a trainer's series: what stands for an evaluation, their mean there or last value"
    )
    worst: Finite | None = Field(
        None,
        description="of a trainer: the value of a run that diverged; without it, such a run is left out and counted",
    )

    @model_validator(mode="before")
    @classmethod
    def _better_side(cls, content: Any) -> Any:
        """Fill in the metric's own direction where the file names none."""
        key = content.get("metric") if isinstance(content, dict) else None
        own = METRICS[key].direction if isinstance(key, str) and known(key) else None
        return {"direction": own, **content} if own else content


class Dimension(Section):
    """One knob of a search: a range, or a list of values."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    low: Finite | None = Field(None, description="smallest value of a range")
    high: Finite | None = Field(None, description="largest value of a range")
    log: bool = Field(False, description="search the range on a logarithmic scale")
    integer: bool = Field(False, alias="int", description="whole numbers only")
    values: tuple[Any, ...] | None = Field(None, description="these values and no others, without an order")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.values is not None:
            if self.low is not None or self.high is not None or self.log or self.integer:
                raise ValueError("give values, or low and high (with log, int), not both")
            if len(set(map(repr, self.values))) < max(2, len(self.values)):
                raise ValueError("values: give at least two, each once")
            bad = [value for value in self.values if not isinstance(value, str | int | float | bool | None)]
            if bad:
                raise ValueError(f"values: {bad[0]!r} is no single value")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or values")
        if self.low >= self.high:
            raise ValueError(f"the range [{self.low:g}, {self.high:g}] is empty; low must lie below high")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low:g}: a logarithmic range begins above 0")
        if self.integer and (self.low % 1 or self.high % 1):
            raise ValueError(f"int: the ends {self.low:g} and {self.high:g} must be whole numbers")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values by which a dimension can be checked before anything runs."""
        if self.values is not None:
            return self.values
        return tuple(int(end) if self.integer else end for end in (self.low, self.high) if end is not None)


class Constraint(Section):
    """A bound on a metric of the evaluation; a trial beyond it is infeasible."""

    metric: MetricName
    max: Finite | None = Field(None, description="largest allowed value")
    min: Finite | None = Field(None, description="smallest allowed value")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.max is None) == (self.min is None):
            raise ValueError("give max or min, one of them")
        return self

    def violation(self, value: float) -> float:
        """Return how far a value is beyond the bound; 0 or less is allowed."""
        return value - self.max if self.max is not None else (self.min or 0.0) - value

    @property
    def condition(self) -> str:
        return f"{self.metric} <= {self.max:g}" if self.max is not None else f"{self.metric} >= {self.min:g}"


class Prune(Section):
    """A hard ceiling on the KL: a trial of the search that goes beyond it ends at once.

    Nothing else may prune: a reward curve is noisy and shows little before its end, whereas a policy beyond the
    ceiling has already broken what the search may not break.
    """

    metric: Literal[
        "objective/kl_per_token", "objective/kl", "objective/kl_exact_per_token", "objective/kl_k3_per_token"
    ]
    above: StrictlyPositive

    @property
    def rule(self) -> StopRule:
        return StopRule(metric=self.metric, op=">", threshold=self.above)


class Confirm(Section):
    """The best of a search again, beside the baseline, on seeds, held-out prompts and random numbers that the search
    never used."""

    top: Positive = Field(2, description="configurations to confirm")
    seeds: Seeds = Field(description="seeds of the confirmation, other than that of the search")


class Search(Section):
    """TPE over a space, and the confirmation of its results."""

    space: Annotated[dict[Knob, Dimension], BeforeValidator(in_full)] = Field(
        min_length=1, description="dotted key: {low, high, log, int} or {values: [...]}"
    )
    trials: Annotated[Positive, Field(le=10_000)] = Field(
        description="trials of the search; raise it later and the search goes on"
    )
    seed: Annotated[Seed, Field(lt=2**32)] = Field(0, description="of the sampler")
    parallel: Annotated[Positive, Field(le=1_000)] = Field(
        2,
        description=(
            "trials proposed before the results of the one before them are known; part of the design, whatever"
            " --jobs is"
        ),
    )
    objectives: tuple[Objective, ...] = Field(
        (), description="default: the study's objective alone; two or more: a Pareto front"
    )
    constraints: tuple[Constraint, ...] = ()
    prune: Prune | None = None
    confirm: Confirm

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        names = [objective.metric for objective in self.objectives]
        if len(set(names)) < len(names):
            raise ValueError("objectives: a metric is named twice")
        if any(objective.smallest is not None for objective in self.objectives):
            raise ValueError("objectives: smallest belongs to the study's own objective, not to those of a search")
        return self
