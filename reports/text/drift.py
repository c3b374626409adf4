"""Sentences on equal drift: arms against the baseline's method where both end at the same KL."""

from __future__ import annotations

from collections.abc import Sequence

from reports.findings.matched_kl import MatchedKL
from reports.text.say import say


def at_equal_drift(rows: Sequence[MatchedKL]) -> str:
    """The findings on the first metric, and the arms that were not compared; empty without another method."""
    mine = [row for row in rows if row.metric == rows[0].metric]
    compared = [row for row in mine if not row.reason]
    apart = [row for row in compared if row.outcome in ("better", "worse") and row.difference]
    # Of a metric that is minimised, better is below.
    above, below = (
        [row for row in apart if row.difference and (row.difference.value > 0) is up] for up in (True, False)
    )
    open_ = [row for row in compared if row.outcome not in ("better", "worse")]
    return say("drift", "at_equal_drift", above, below, open_, [row for row in mine if row.reason])


def not_compared(row: MatchedKL) -> str:
    """The reason why an arm is not compared."""
    return say("drift", "not_compared", row)


def left_out(row: MatchedKL) -> str:
    """How many planned seeds of an arm are not compared, and why; empty where all are."""
    return say("drift", "left_out", row)
