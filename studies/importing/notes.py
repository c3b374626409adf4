"""What a reader of imported trials has to know, and what stands in the place of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.run.layout import TrialRecord
from studies.importing.problems import Problem, grouped

LAST = 0.1
REWARDS = ("objective/scores", "objective/rlhf_reward", "objective/non_score_reward")


def ends(series: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Metric -> mean of the last tenth of its finite records (at least one): where a trial's training arrived."""
    finite = {key: values[np.isfinite(values)] for key, values in series.items()}
    return {
        key: float(values[-max(1, int(LAST * len(values))) :].mean()) for key, values in finite.items() if len(values)
    }


def caveats(records: Sequence[TrialRecord], problems: Iterable[Problem]) -> list[str]:
    """What stands at the head of the page."""
    recorded = {key for record in records for key in (*record.ends, *record.summary)}
    by_prompt = any("evaluate" in record.stages for record in records)
    notes = [
        "These trials were run by another program and imported: how they were configured and sampled is not known here."
    ]
    if by_prompt:
        notes.append(
            "Outcomes by prompt are as the other program published them: by which judge, and how their KL was"
            " estimated, is not known here. A number that it did not publish is absent."
        )
    elif "eval/win_rate" not in recorded:
        judge = "" if recorded & {"eval/gold", "objective/gold"} else " no judge but the reward that was trained on,"
        notes.append(
            f"The import holds no win rate against the reference,{judge} and no exact KL. Where a metric was not"
            " evaluated, the mean of the last tenth of each trial's training records stands in its place."
        )
    if recorded.intersection(REWARDS) and not all(_calibrated(record) for record in records):
        notes.append(
            "Rewards are in the units of the reward that was trained on, as logged, whatever unit an axis or a table"
            " names."
        )
    return notes + [f"The import found: {line}." for line in grouped(problems)]


def _calibrated(record: TrialRecord) -> bool:
    """Whether the mapping said how to bring the score to mean 0 and standard deviation 1 of reference samples."""
    stated = record.config.get("mapping", {}).get("metrics", {}).get("objective/scores") or {}
    return "factor" in stated or "subtract" in stated
