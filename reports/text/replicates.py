"""What a seed of this study changed, in words: intervals speak of new draws of that and of nothing else."""

from __future__ import annotations

from pipeline.config.trial import TrialConfig
from reports.records.load import StudyRecords
from reports.text.words import counted, listed
from studies.definition.design import Cell
from studies.definition.replicates import WORDS, acting


def what_varies(records: StudyRecords) -> str:
    """One or two sentences; empty for trials that other programs ran, of which this is not known."""
    config = _config(records)
    if config is None:
        return ""
    links = acting(config, records.study.vary)
    drawn = listed([f"the {WORDS[link]}" for link in links] + ["the training"])
    sentence = f"Each seed draws {drawn} anew."
    if records.study.trainings is not None:
        inner = records.study.trainings
        sentence = (
            f"Each seed draws {listed([f'the {WORDS[link]}' for link in links])} anew, and has"
            f" {counted(len(inner.seeds), 'training')} ({inner.design}), of which the mean is taken."
        )
    missing = [WORDS[link] for link in WORDS if link not in links and link in acting(config, tuple(WORDS))]
    return f"{sentence} {_shared(missing)}" if missing else sentence


def varies_nothing_else(records: StudyRecords) -> bool:
    """Whether seeds vary the training alone, although a reward model or a reference was trained."""
    config = _config(records)
    return config is not None and not acting(config, records.study.vary) and bool(acting(config, tuple(WORDS)))


def _shared(missing: list[str]) -> str:
    named = listed([f"one {word}" if word != WORDS["labels"] else f"one set of {word}" for word in missing])
    return f"All trials share {named}; intervals do not cover others."


def _config(records: StudyRecords) -> TrialConfig | None:
    return next((cell.config for cell in records.plan if isinstance(cell, Cell)), None)
