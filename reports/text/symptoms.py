"""The health of trials, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from reports.text.words import counted, listed
from studies.claims.symptoms import ArmHealth


def health_sentence(arms: Sequence[ArmHealth]) -> str:
    """How many trials left a healthy band or diverged, and of which arms; empty where none was judged."""
    judged = sum(one.judged for one in arms)
    if not judged:
        return ""
    bands = [(one, len(one.unhealthy)) for one in arms if one.unhealthy]
    ended = [(one, len(one.diverged)) for one in arms if one.diverged]
    first = (
        f"Series left their healthy band in {_of(bands, judged)}."
        if bands
        else "No trial had a series outside its healthy band for longer than the band allows"
        f" ({counted(judged, 'trial')} judged)."
    )
    return f"{first} Training diverged in {_of(ended, judged)}." if ended else first


def _of(found: Sequence[tuple[ArmHealth, int]], judged: int) -> str:
    named = listed([f"{arm.arm} ({count} of {arm.judged})" for arm, count in found])
    return f"{sum(count for _, count in found)} of {counted(judged, 'trial')}: {named}"
