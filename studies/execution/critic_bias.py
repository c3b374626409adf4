"""Diagnose the critics of a study that has run: their values against replayed states, trial by trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.run.layout import StudyFolder, TrialRecord, replacing
from pipeline.run.store import Artifact, artifact_of, checked
from pipeline.stages.critic_bias import Replaying, critic_bias, unfit
from studies.definition.schema import IMPORTED

NEEDED = ("prompts", "sft", "reward", "train")


def diagnose(folder: StudyFolder, how: Replaying, say: Callable[[str], None]) -> list[Path]:
    """Diagnose every trial that has a critic and was trained to an end; what is there already for the same training and
    the same settings is kept. Returns the files. Raises `UserError` where no trial has a critic, `Damaged`, `Gone`."""
    if folder.path.name == IMPORTED:
        raise UserError(f"{folder.path}: its trials were trained by another program, so their critics are not here")
    trials = []
    for record, config in _ended(folder):
        if why := unfit(config):
            say(f"{record.arm} seed {record.seed}: left out: {why}")
        else:
            trials.append((record, config))
    if not trials:
        raise UserError(
            f"{folder.path}: no finished trial has a critic whose values could be compared; run the study first"
        )
    began, built, files = time.monotonic(), 0, []
    for done, (record, config) in enumerate(trials):
        path = folder.critic_bias_file(record.arm, record.seed)
        files.append(path)
        state = "kept"
        if not _stands(path, record, how):
            _write(folder, record, config, how, path)
            built, state = built + 1, "diagnosed"
        left = (time.monotonic() - began) / built * (len(trials) - done - 1) if built else 0.0
        say(f"{record.arm} seed {record.seed}: {state} ({done + 1} of {len(trials)} trials, about {left:.0f} s left)")
    return files


def _ended(folder: StudyFolder) -> Iterator[tuple[TrialRecord, TrialConfig]]:
    """Evaluated trials; arms that are no longer planned as well."""
    for record in folder.records():
        if "evaluate" in record.stages:
            yield record, TrialConfig.model_validate(record.config)


def _write(folder: StudyFolder, record: TrialRecord, config: TrialConfig, how: Replaying, path: Path) -> None:
    table = critic_bias(config, how, **{stage: _artifact(folder, record, stage) for stage in NEEDED})
    table = table.assign(**asdict(how), train=record.stages["train"].key)
    with replacing(path) as beside:
        table.to_parquet(beside, index=False)


def _artifact(folder: StudyFolder, record: TrialRecord, stage: str) -> Artifact:
    """An artifact of the trial, every file of it as its manifest states it. Raises `Damaged`, `Gone`."""
    ref = record.stages[stage]
    path, manifest = artifact_of(folder, ref.path, ref.digest)
    with folder.naming_remedy():
        for name in manifest.files:
            checked(path, name, manifest)
    return Artifact(stage, ref.key, path, manifest.digest, manifest.meta, manifest.finished)


def _stands(path: Path, record: TrialRecord, how: Replaying) -> bool:
    """Whether the file is there, of the same training and the same settings."""
    if not path.is_file():
        return False
    wanted = {**asdict(how), "train": record.stages["train"].key}
    table = pd.read_parquet(path, columns=list(wanted))
    return len(table) > 0 and bool((table == pd.Series(wanted)).all(axis=None))
