"""Hypotheses that a program can judge: a metric, a contrast of arms or an order of them, and the expected result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Finite, Section
from studies.definition.fields import Comparable, Name, Text

Expected = Literal["higher", "lower", "equal"]
Weights = dict[str, float]
ROUNDING = 1e-9
"""Tolerance for the weights of a contrast, whose sum is 0: 1/3 has no exact decimal."""


class Hypothesis(Section):
    """A claim about differences between arms, judged by an interval over seeds and prompts."""

    name: Name
    claim: Text
    metric: Comparable = Field(description="of the evaluation, or a series, whose last tenth is averaged")
    contrast: dict[str, Finite] | None = Field(
        None, description="ARM - OTHER, or {arm: weight} with weights that sum to 0"
    )
    order: tuple[str, ...] | None = Field(
        None, description="arms in a row: each is expected to be higher (or lower) than the one before"
    )
    at_equal_kl: bool = Field(
        False,
        description=(
            "of a contrast ARM - BASELINE: on each seed, ARM is compared with the baseline's method (`methods`) at the"
            " KL where ARM ends; the method's score there is interpolated between the ends of its arms"
        ),
    )
    expect: Expected = Field(description="the contrast, or each step of the order, is higher, lower or equal")
    margin: Annotated[Finite, Field(ge=0)] = Field(
        0.0, description="by more than this much it is higher or lower; within this much it is equal"
    )

    @field_validator("contrast", mode="before", json_schema_input_type=str | dict[str, Finite] | None)
    @classmethod
    def _read(cls, value: Any) -> Any:
        return weights_of(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.contrast is None) == (self.order is None):
            raise ValueError("give contrast or order, one of them")
        if self.contrast is not None:
            total, hint = math.fsum(self.contrast.values()), "; write ARM - OTHER, with spaces around the sign"
            if not any(self.contrast.values()) or abs(total) > ROUNDING:
                wrong = f"contrast: the weights of {', '.join(self.contrast)} sum to {total:g}, and must sum to 0"
                raise ValueError(wrong + hint * (len(self.contrast) == 1))
        if self.at_equal_kl and (sorted((self.contrast or {}).values()) != [-1, 1] or "/kl" in self.metric):
            raise ValueError("at_equal_kl: needs a contrast ARM - BASELINE, and a metric that is no KL")
        if self.order is not None and (len(self.order) < 2 or len(set(self.order)) < len(self.order)):
            raise ValueError("order: name at least two arms, each once")
        if self.expect == "equal" and (self.order is not None or self.margin == 0):
            raise ValueError("expect: equal needs a contrast and a margin above 0, within which arms count as equal")
        return self

    @property
    def contrasts(self) -> tuple[Weights, ...]:
        """The contrasts that have to hold: the given one, or each arm of the order minus the one before it."""
        if self.order is None:
            return (self.contrast or {},)
        return tuple({second: 1.0, first: -1.0} for first, second in pairwise(self.order))

    @property
    def arms(self) -> tuple[str, ...]:
        return self.order or tuple(self.contrast or {})

    @property
    def condition(self) -> str:
        """The expected result, for people.

        >>> one = {"name": "n", "claim": "c", "metric": "eval/gold", "expect": "lower", "margin": 0.5}
        >>> Hypothesis(**one, contrast="a - b").condition
        'eval/gold: a - b < -0.5'
        """
        metric = f"{self.metric} at equal KL" if self.at_equal_kl else self.metric
        if self.order is not None:
            by = f", each by more than {self.margin:g}" if self.margin else ""
            return f"{metric}: {(' < ' if self.expect == 'higher' else ' > ').join(self.order)}{by}"
        difference = expression(self.contrast or {})
        if self.expect == "equal":
            return f"{metric}: |{difference}| < {self.margin:g}"
        bound = f"> {self.margin:g}" if self.expect == "higher" else f"< {-self.margin or 0.0:g}"
        return f"{metric}: {difference} {bound}"


def weights_of(text: str) -> Weights:
    """The weights of a contrast written out, such as ``both - one - other + neither``.

    >>> weights_of("both - one - other + neither")
    {'both': 1.0, 'one': -1.0, 'other': -1.0, 'neither': 1.0}

    Raises `ValueError` where arms and signs do not alternate.
    """
    words = text.split()
    words = words if words[:1] in (["+"], ["-"]) else ["+", *words]
    signs, arms = words[::2], words[1::2]
    if len(signs) != len(arms) or not arms or any(sign not in ("+", "-") for sign in signs):
        raise ValueError(f"'{text}' is no contrast; write ARM - OTHER, with spaces around the sign")
    if len(set(arms)) < len(arms):
        raise ValueError(f"'{text}' names an arm twice")
    return {arm: 1.0 if sign == "+" else -1.0 for sign, arm in zip(signs, arms, strict=True)}


def expression(weights: Mapping[str, float]) -> str:
    """A contrast for people.

    >>> expression({"a": 1.0, "b": -0.5, "c": -0.5})
    'a - 0.5 b - 0.5 c'
    """
    terms = [
        f"{'-' if weight < 0 else '+'} {f'{abs(weight):g} ' if abs(weight) != 1 else ''}{arm}"
        for arm, weight in weights.items()
    ]
    return " ".join(terms).removeprefix("+ ")
