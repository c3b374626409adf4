"""Rules that end a trial early: which records break a condition, and the watcher that a trial carries. Pure.

A falsifier that judges a recorded series and the watcher that ends a running trial decide by the same function,
so a trial that was stopped for breaking a claim is found to have broken it when its records are read again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pipeline.config.train import StopRule

Record = tuple[int, float]
"""Gradient step and value."""
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def first_break(op: str, threshold: float, consecutive: int, records: Iterable[Record]) -> tuple[Record, ...]:
    """The first `consecutive` successive records that all break a bound; empty when there are none.

    Records come in order of steps, each step once; successive means next in that order, whatever the distance.

    >>> first_break(">", 0.5, 2, [(0, 0.9), (16, 0.1), (32, 0.6), (64, 0.7), (80, 0.8)])
    ((32, 0.6), (64, 0.7))
    """
    breaks, streak = OPERATORS[op], list[Record]()
    for step, value in records:
        streak = [*streak, (step, value)] if breaks(value, threshold) else []
        if len(streak) == consecutive:
            return tuple(streak)
    return ()


def counted(series: Iterable[Record], before_step: int | None) -> list[Record]:
    """Records in order of steps: of two at one step the last counts, NaN is no record, none at or after
    `before_step`."""
    last = {step: value for step, value in series if not math.isnan(value)}
    return sorted((step, value) for step, value in last.items() if before_step is None or step < before_step)


@dataclass
class Watcher:
    """Follows the metrics of a running trial, and reports when a rule is broken. All state is in `series`."""

    rules: tuple[StopRule, ...]
    series: dict[str, dict[int, float]] = field(default_factory=dict)

    def observe(self, step: int, values: Mapping[str, float]) -> None:
        for rule in self.rules:
            if rule.metric in values:
                self.series.setdefault(rule.metric, {})[step] = float(values[rule.metric])

    def broken(self) -> str | None:
        """The first rule that the records so far break, in words, or None."""
        for rule in self.rules:
            records = counted(self.series.get(rule.metric, {}).items(), rule.before_step)
            if evidence := first_break(rule.op, rule.threshold, rule.consecutive, records):
                step, value = evidence[-1]
                often = f", record {rule.consecutive} in a row" if rule.consecutive > 1 else ""
                return (
                    f"stopped by rule: {rule.metric} = {value:.4g} {rule.op} {rule.threshold:g} at step {step}{often}"
                )
        return None
