"""The health of trials, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from reports.text.say import say
from studies.claims.symptoms import ArmHealth


def health_sentence(arms: Sequence[ArmHealth]) -> str:
    """How many trials left a healthy band or diverged, and of which arms; empty where none was judged."""
    unhealthy = [(one, len(one.unhealthy)) for one in arms if one.unhealthy]
    diverged = [(one, len(one.diverged)) for one in arms if one.diverged]
    return say("health", "health", sum(one.judged for one in arms), unhealthy, diverged)
