"""What was found about drift, in sentences: arms against the baseline's method where both end at the same KL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reports.findings.matched_kl import Left, MatchedKL
from reports.statistics.matched_kl import WIDEST
from reports.text.words import listed, name, number, signed

LISTED = 5
"""Arms that are named with their numbers; of more, the sentence gives the range."""


def at_equal_drift(rows: Sequence[MatchedKL]) -> str:
    """What was found on the first metric, and which arms were not compared and why; empty without another method."""
    mine = [row for row in rows if row.metric == rows[0].metric] if rows else []
    compared, left = [row for row in mine if not row.reason], [row for row in mine if row.reason]
    return " ".join(part for part in (_compared(compared), _left_out(left)) if part)


def not_compared(row: MatchedKL) -> str:
    """Why an arm is not compared."""
    if row.reason == "few arms":
        gone = f" left (collapsed: {listed(list(row.collapsed))})" if row.collapsed else ""
        return f"{row.method} has fewer than two arms{gone}"
    return left_out(row)


def left_out(row: MatchedKL) -> str:
    """How many planned seeds of an arm are not compared, and why; empty where all are."""
    return _reasons(row, f" of {row.seeds} seeds")


def _reasons(row: MatchedKL, seeds: str) -> str:
    words: dict[Left, tuple[str, str]] = {
        "not evaluated": ("", " not evaluated"),
        "below": ("", f" ended below the arms of {row.method}"),
        "beyond": ("", f" ended beyond the arms of {row.method}"),
        "far apart": ("", f" ended between arms whose KLs differ by more than a factor of {WIDEST:g}"),
        "few arms": ("for ", f", {row.method} has too few arms"),
    }
    counts = Counter(row.left.values())
    return listed([f"{head}{counts[why]}{seeds}{tail}" for why, (head, tail) in words.items() if counts[why]])


def _compared(rows: Sequence[MatchedKL]) -> str:
    if not rows:
        return ""
    method, parts = rows[0].method, list[str]()
    told = [row for row in rows if row.outcome in ("better", "worse") and row.difference]
    for sign, words in {1: "above", -1: "below"}.items():  # of a metric that is minimised, better is below
        arms = [row for row in told if row.difference and row.difference.value * sign > 0]
        if arms:
            verb = "lies" if len(arms) == 1 else "lie"
            parts.append(f"{_numbers(arms)} {verb} {words} {'it' if parts else method}")
    silent = [row for row in rows if row.outcome not in ("better", "worse")]
    if silent:
        verb = "is" if len(silent) == 1 else "are"
        parts.append(f"{_numbers(silent)} {verb} not distinguishable from {'it' if parts else method}")
    return f"On {name(rows[0].metric)}, compared with {method} seed by seed at the same KL: {'; '.join(parts)}."


def _numbers(rows: Sequence[MatchedKL]) -> str:
    """The arms with difference, KL and neighbours, or of many the two that differ most."""
    if len(rows) <= LISTED:
        return listed([_row(row) for row in rows])
    ranked = sorted(rows, key=lambda row: row.difference.value if row.difference else 0.0)
    return f"{len(rows)} arms, from {_row(ranked[0])} to {_row(ranked[-1])},"


def _row(row: MatchedKL) -> str:
    assert row.difference is not None
    left = f" of {row.seeds} seeds; {_reasons(row, '')}" if row.left else " seeds"
    return (
        f"{row.arm} ({signed(row.difference, row.metric)} at {number(row.kl.value)} nats per sequence, interpolated"
        f" between {listed(list(row.between))}; {row.difference.seeds}{left})"
    )


def _left_out(rows: Sequence[MatchedKL]) -> str:
    if not rows:
        return ""
    first = rows[0]
    named = listed([row.arm for row in rows]) if len(rows) <= LISTED else f"{len(rows)} arms"
    if all(row.reason == "few arms" for row in rows):
        return f"Not compared at equal drift: {named}, since {not_compared(first)}."
    why = listed([f"{row.arm} ({not_compared(row)})" for row in rows]) if len(rows) <= LISTED else named
    return f"Not compared at equal drift: {why}."
