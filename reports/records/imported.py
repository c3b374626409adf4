"""Imported trials: what stands in the place of an evaluation, and what a reader has to know of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from pipeline.config.trial import flatten
from pipeline.errors import Gone
from pipeline.run.layout import StudyFolder, TrialRecord, read_json
from pipeline.run.store import file_of
from reports.records.trial_tables import Series
from studies.definition.schema import Study
from studies.importing.problems import DETAILS, Problem, grouped

LAST = 0.1
REWARDS = ("objective/scores", "objective/rlhf_reward", "objective/non_score_reward")


def ends(curves: Series) -> dict[str, float]:
    """Metric -> mean of the last tenth of its records (at least one): where a trial's training arrived."""
    found = {}
    for key, recorded in curves.items():
        values = recorded[np.isfinite(recorded)]
        if len(values) and key != "step":
            found[key] = float(values[-max(1, int(LAST * len(values))) :].mean())
    return found


def read_problems(folder: StudyFolder, record: TrialRecord) -> list[Problem]:
    """What the import found wrong with a trial; none where its artifact is gone. Raises `Damaged`."""
    try:
        return [Problem(**problem) for problem in read_json(file_of(folder, record, "ppo", DETAILS))["problems"]]
    except Gone:
        return []


def caveats(
    records: Mapping[tuple[str, int], TrialRecord], trials: pd.DataFrame, problems: Iterable[Problem]
) -> list[str]:
    """What stands at the head of the page of an imported study."""
    notes = [
        "These trials were run by another program and imported: how they were configured and sampled is not known here."
    ]
    if "eval/win_rate" not in trials.columns:
        notes.append(
            "No held-out evaluation was imported, so there is no win rate against the reference, no judge but the"
            " reward that was trained on, and no exact KL. In its place stands the mean of the last tenth of each"
            " trial's training records."
        )
    if any(key in trials.columns for key in REWARDS) and not all(_calibrated(record) for record in records.values()):
        notes.append(
            "Rewards are in the units of the reward that was trained on, as logged, whatever unit an axis or a table"
            " names."
        )
    return notes + [f"The import found: {line}." for line in grouped(problems)]


def settings(study: Study, records: Mapping[tuple[str, int], TrialRecord]) -> list[tuple[str, str, str]]:
    """Key, value in the baseline, and the other arms' values: what the study's file says of the arms, and how logs were
    mapped."""
    arms = study.arm_overrides()
    rows = []
    for key in dict.fromkeys(key for said in arms.values() for key in said):
        others = [f"{arm}: {said[key]}" for arm, said in arms.items() if key in said and arm != study.baseline]
        rows.append((key, str(arms[study.baseline].get(key, "–")), ", ".join(others)))
    read = dict(pair for record in records.values() for pair in flatten(record.config.get("mapping", {})))
    return rows + [(f"mapping.{key}", str(value), "how the logs were read") for key, value in read.items()]


def _calibrated(record: TrialRecord) -> bool:
    """Whether the mapping said how to bring the score to mean 0 and standard deviation 1 of reference samples."""
    stated = record.config.get("mapping", {}).get("metrics", {}).get("objective/scores") or {}
    return "factor" in stated or "subtract" in stated
