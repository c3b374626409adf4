"""The health of trials, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from reports.text.words import counted, listed
from studies.claims.symptoms import ArmHealth


def health_sentence(arms: Sequence[ArmHealth]) -> str:
    """How many trials left a healthy band, and of which arms; empty where none was judged."""
    judged = sum(one.judged for one in arms)
    ill = [one for one in arms if one.unhealthy]
    if not judged:
        return ""
    if not ill:
        return f"All series of {counted(judged, 'trial')} stayed in their healthy bands."
    named = listed([f"{one.arm} ({len(one.unhealthy)} of {one.judged})" for one in ill])
    unhealthy = sum(len(one.unhealthy) for one in ill)
    return f"Series left their healthy band in {unhealthy} of {counted(judged, 'trial')}: {named}."
