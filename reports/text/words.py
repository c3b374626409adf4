"""Numbers and findings in words: the same rounding everywhere, and sentences that claim no more than was found."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.run.metrics import METRICS
from reports.statistics.two_level import Estimate
from studies.definition.arms import short_names

with Path(__file__).with_name("names.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = {row["metric"]: row for row in csv.DictReader(_file)}
_NAMES = {metric: row["name"] for metric, row in _ROWS.items()}
_THREE_DECIMALS = {metric for metric, row in _ROWS.items() if row["decimals"] == "3"}
_OF_MEMBER = {
    "eval/reward": "{}",
    "eval/gold": "score by {}",
    "eval/gold_reference": "score by {}, reference",
    "objective/gold": "score by {} in training",
}
"""Names of the members of a family, around the name that the user gave them."""


def name(key: str) -> str:
    """The name of a metric of the evaluation in running text."""
    family, _, member = key.rpartition("/")
    return _NAMES.get(key) or _OF_MEMBER.get(family, "{}").format(member if family in _OF_MEMBER else key)


def number(value: float | None, key: str = "") -> str:
    """Three decimals for rates, else three significant digits without an exponent where that stays readable; a dash for
    none.

    >>> number(0.7134, "eval/win_rate"), number(123.4), number(0.00012), number(-1.5)
    ('0.713', '123', '1.2e-04', '−1.50')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if key in _THREE_DECIMALS:
        return f"{value:.3f}".replace("-", "−")
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 1e6):
        mantissa = f"{value:.1e}"
    else:
        places = 2 if size == 0 else max(0, 2 - math.floor(math.log10(size)))
        mantissa = f"{value:.{places}f}"
    return ("−" + mantissa[1:]) if mantissa.startswith("-") else mantissa


def span(estimate: Estimate, key: str = "", *, plus: bool = False) -> str:
    """The interval alone, or its replacement; `plus`: with signs."""
    if estimate.low is None or estimate.high is None:
        return "no interval"
    places = _places(estimate, key)
    return f"[{_fixed(estimate.low, places, plus=plus)}, {_fixed(estimate.high, places, plus=plus)}]"


def interval(estimate: Estimate, key: str = "") -> str:
    """``value [low, high]`` with equal decimals."""
    return f"{_fixed(estimate.value, _places(estimate, key))} {span(estimate, key)}"


def signed(estimate: Estimate, key: str = "") -> str:
    """``+value [low, high]`` of a difference, all three with their sign."""
    return f"{_fixed(estimate.value, _places(estimate, key), plus=True)} {span(estimate, key, plus=True)}"


def setting(value: object) -> str:
    """The value of a knob: floats with four significant digits.

    >>> setting(0.0312345678), setting(True), setting([1, 2])
    ('0.03123', 'true', '1, 2')
    """
    if isinstance(value, bool) or value is None:
        return "none" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def percent(share: float) -> str:
    """A share in percent, without a sign; never rounded to 100 from below.

    >>> percent(0.9437), percent(0.9996), percent(1.0)
    ('94', '> 99', '100')
    """
    rounded = f"{100 * share:.0f}"
    return "> 99" if rounded == "100" and share < 1 else rounded


def p_value(p: float | None) -> str:
    """Three decimals, or ``< 0.001``.

    >>> p_value(0.0004), p_value(0.0312), p_value(None)
    ('< 0.001', '0.031', '–')
    """
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def listed(items: Iterable[str]) -> str:
    """``a, b and c``."""
    items = list(items)
    return " and ".join(items) if len(items) < 3 else f"{', '.join(items[:-1])} and {items[-1]}"


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """``1 trial``, ``3 trials``, ``2,048 steps``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def count(n: float) -> str:
    """``2,048``."""
    return f"{n:,.0f}"


def size(estimate: Estimate, planned: int | None = None) -> str:
    """``2 of 3 seeds × 512 prompts``; seeds alone for a metric that exists once per trial."""
    some = planned is not None and estimate.seeds != planned
    seeds = f"{estimate.seeds} of {counted(planned or 0, 'seed')}" if some else counted(estimate.seeds, "seed")
    return f"{seeds} × {estimate.prompts} prompts" if estimate.prompts else seeds


def unit(metric: str) -> str:
    """The unit to write after a number, with a space before it; empty for shares and plain numbers."""
    known = METRICS[metric].unit
    return "" if known in ("fraction", "1") else f" {known}"


def gap(value: float, metric: str) -> str:
    """A difference without its unit; of shares in percentage points.

    >>> gap(0.0234, "eval/win_rate"), gap(0.05, "eval/win_rate")
    ('2.3', '5')
    """
    return f"{100 * value:.1f}".removesuffix(".0") if METRICS[metric].unit == "fraction" else number(value, metric)


def gap_unit(metric: str) -> str:
    """The unit of `gap`, with a space before it."""
    return " points" if METRICS[metric].unit == "fraction" else unit(metric)


def values(items: Iterable[Any], field: str) -> str:
    """``2,048``, or ``256 to 3,000`` where items differ in a field."""
    distinct = sorted({getattr(item, field) for item in items})
    ends = [count(value) if isinstance(value, int) else number(value) for value in (distinct[0], distinct[-1])]
    return ends[0] if len(distinct) == 1 else f"{ends[0]} to {ends[1]}"


def knob(key: str) -> str:
    """A knob's short name."""
    return short_names([key])[key]


def at(key: str, value: Any) -> str:
    """``beta=0.05``."""
    return f"{knob(key)}={setting(value)}"


def upper_first(text: str) -> str:
    """The text with a capital at its start."""
    return text[:1].upper() + text[1:]


def _places(estimate: Estimate, key: str) -> int:
    """Decimals that show the interval's width with two digits; three for rates."""
    if key in _THREE_DECIMALS:
        return 3
    width = (estimate.high - estimate.low) if estimate.low is not None and estimate.high is not None else 0.0
    scale = width if width > 1e-9 * max(1.0, abs(estimate.value)) else abs(estimate.value) / 10
    return min(6, max(0, 1 - math.floor(math.log10(scale)))) if scale > 0 else 2


def _fixed(value: float, places: int, *, plus: bool = False) -> str:
    text = f"{value:+.{places}f}" if plus else f"{value:.{places}f}"
    if float(text) == 0:
        text = f"{0:.{places}f}"
    return text.replace("-", "−")
