"""The health of every trial, from the series that are loaded."""

from __future__ import annotations

from pipeline.config.trial import flatten
from pipeline.run.bands import BANDS
from pipeline.run.symptoms import Health, examine
from reports.records.load import StudyRecords
from studies.claims.symptoms import ArmHealth, by_arm


def healths(records: StudyRecords) -> tuple[ArmHealth, ...]:
    """Arms with a trial that could be judged; a failed trial is going to run again and says nothing."""
    series = {(key, arm): records.series(arm, key) for key in BANDS for arm in records.arms}
    trials: dict[tuple[str, int], Health] = {}
    for (arm, seed), record in sorted(
        records.records.items(), key=lambda item: (records.arms.index(item[0][0]), item[0][1])
    ):
        own = {key: series[key, arm][seed] for key in BANDS if seed in series[key, arm]}
        if record.status != "failed":
            trials[arm, seed] = examine(own, dict(flatten(record.config)), record.status == "diverged")
    return tuple(one for one in by_arm(trials) if one.judged)
