"""What a seed of this study draws anew, in words: intervals cover new draws of this and of nothing else."""

from __future__ import annotations

from pipeline.config.trial import TrialConfig
from reports.records.load import StudyRecords
from reports.text.say import say
from studies.definition.design import Cell
from studies.definition.replicates import WORDS, acting


def what_varies(records: StudyRecords) -> str:
    """What each seed draws anew and what all share; empty for trials that other programs ran, of which this is not
    known."""
    config = _config(records)
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
    """Whether seeds vary the training alone, although a reward model or a reference was trained."""
    config = _config(records)
    return config is not None and not acting(config, records.study.vary) and bool(acting(config, tuple(WORDS)))


def _config(records: StudyRecords) -> TrialConfig | None:
    return next((cell.config for cell in records.plan if isinstance(cell, Cell)), None)
