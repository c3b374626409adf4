"""Sentences that tables, the answer and the methods share: equal drift, health, and what a seed draws anew."""

from __future__ import annotations

from collections.abc import Sequence

from reports.findings.matched_kl import MatchedKL
from reports.records.load import StudyRecords
from reports.text.say import say
from studies.claims.symptoms import ArmHealth
from studies.definition.design import acting
from studies.definition.fields import WORDS


def at_equal_drift(rows: Sequence[MatchedKL]) -> str:
    """The findings on the first metric, and the arms that were not compared; empty where the study has no arms to
    interpolate between."""
    mine = [row for row in rows if row.metric == rows[0].metric]
    if all(row.reason == "few arms" and not row.collapsed for row in mine):
        return ""
    compared = [row for row in mine if not row.reason]
    apart = [row for row in compared if row.outcome in ("better", "worse") and row.difference]
    # Of a metric that is minimised, better is below.
    above, below = (
        [row for row in apart if row.difference and (row.difference.value > 0) is up] for up in (True, False)
    )
    open_ = [row for row in compared if row.outcome not in ("better", "worse")]
    return say("drift", "at_equal_drift", above, below, open_, [row for row in mine if row.reason])


def health_sentence(arms: Sequence[ArmHealth]) -> str:
    """State how many trials left a healthy band or diverged, and of which arms; empty where none was judged."""
    unhealthy = [(one, len(one.unhealthy)) for one in arms if one.unhealthy]
    diverged = [(one, len(one.diverged)) for one in arms if one.diverged]
    return say("health", "health", sum(one.judged for one in arms), unhealthy, diverged)


def what_varies(records: StudyRecords) -> str:
    """List what each seed draws anew and what all share; empty for other programs' trials, where this is not known."""
    config = next(iter(records.configs.values()), None)
    if config is None:
        return ""
    links = acting(config, records.study.vary)
    missing = [WORDS[link] for link in acting(config, tuple(WORDS)) if link not in links]
    return say(
        "replicates",
        "what_varies",
        drawn=[WORDS[link] for link in links],
        shared=[f"one set of {word}" if word == WORDS["labels"] else f"one {word}" for word in missing],
    )


def varies_training_alone(records: StudyRecords) -> bool:
    """Return whether seeds vary the training alone, although a reward model or a reference was trained."""
    config = next(iter(records.configs.values()), None)
    return config is not None and not acting(config, records.study.vary) and bool(acting(config, tuple(WORDS)))
