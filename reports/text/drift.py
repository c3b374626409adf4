"""What was found about drift, in sentences: arms against the baseline's method where both end at the same KL."""

from __future__ import annotations

from collections.abc import Sequence

from reports.findings.matched_kl import MatchedKL
from reports.text.words import counted, listed, name, number, signed

LISTED = 5
"""Arms that are named with their numbers; of more, the sentence gives the range."""


def at_equal_drift(rows: Sequence[MatchedKL]) -> str:
    """What was found on the first metric, and which arms were not compared and why; empty without another method."""
    mine = [row for row in rows if row.metric == rows[0].metric] if rows else []
    compared, left = [row for row in mine if not row.reason], [row for row in mine if row.reason]
    return " ".join(part for part in (_compared(compared), _left_out(left)) if part)


def not_compared(row: MatchedKL) -> str:
    """Why an arm is not compared."""
    low, high = map(number, row.range)
    outside = f"ends at {number(row.kl.value)} nats per sequence, {{}} the arms of {row.method}, {low} to {high} nats"
    return {
        "below": outside.format("below"),
        "beyond": outside.format("beyond"),
        "few arms": f"no arms of {row.method} end on both sides of {number(row.kl.value)} nats per sequence",
        "no shared seed": f"shares no evaluated seed with the arms of {row.method} that end next to it",
        "": "",
    }[row.reason]


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
    return (
        f"At equal drift, where an arm and {method} both end at the same KL, on {name(rows[0].metric)}:"
        f" {'; '.join(parts)}."
    )


def _numbers(rows: Sequence[MatchedKL]) -> str:
    """The arms with difference, KL and neighbours, or of many the two that differ most."""
    if len(rows) <= LISTED:
        return listed([_row(row) for row in rows])
    ranked = sorted(rows, key=lambda row: row.difference.value if row.difference else 0.0)
    return f"{len(rows)} arms, from {_row(ranked[0])} to {_row(ranked[-1])},"


def _row(row: MatchedKL) -> str:
    assert row.difference is not None
    assert row.between is not None
    return (
        f"{row.arm} ({signed(row.difference, row.metric)} at {number(row.kl.value)} nats per sequence, interpolated"
        f" between {listed(list(row.between))}; {counted(row.difference.seeds, 'seed')})"
    )


def _left_out(rows: Sequence[MatchedKL]) -> str:
    if not rows:
        return ""
    first = rows[0]
    named = listed([row.arm for row in rows]) if len(rows) <= LISTED else f"{len(rows)} arms"
    if all(row.reason == "few arms" for row in rows):
        only = listed(list(first.arms))
        ends = "the only arm" if len(first.arms) == 1 else "the only arms"
        return (
            f"Not compared at equal drift: {named}, since {only} {'is' if len(first.arms) == 1 else 'are'} {ends} of"
            f" {'its' if len(first.arms) == 1 else 'their'} method, and a comparison needs arms of that method at a"
            " lower and at a higher KL."
        )
    why = listed([f"{row.arm} ({not_compared(row)})" for row in rows]) if len(rows) <= LISTED else named
    return f"Not compared at equal drift: {why}."
