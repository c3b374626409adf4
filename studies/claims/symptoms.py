"""Health of a trial by its recorded series: read from its files alone, without training and torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.config.trial import flatten
from pipeline.errors import Damaged, Gone
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.metrics import BANDS
from pipeline.run.store import file_of
from pipeline.run.symptoms import Health, Series, Symptom, examine


@dataclass(frozen=True)
class ArmHealth:
    """The health of an arm's trials."""

    arm: str
    judged: int
    """Trials with a series that was held against a band, and those that diverged."""
    unhealthy: Mapping[int, tuple[Symptom, ...]]
    """Seed -> symptoms, of the trials that have any."""
    diverged: tuple[int, ...] = ()
    """Seeds of the trials that diverged, with symptoms or without."""

    @property
    def ill(self) -> int:
        """Trials with symptoms or divergence."""
        return len({*self.unhealthy, *self.diverged})

    @property
    def worst(self) -> tuple[int, Symptom] | None:
        """The symptom with the largest share of records, and the seed of its trial; the first of equal ones."""
        every = [(seed, symptom) for seed, found in self.unhealthy.items() for symptom in found]
        return max(every, key=lambda one: one[1].share, default=None)

    @property
    def others(self) -> tuple[str, ...]:
        """The other series that left their band in some trial."""
        worst = self.worst
        keys = {one.key for found in self.unhealthy.values() for one in found}
        return tuple(sorted(keys - {worst[1].key})) if worst else ()


def by_arm(trials: Mapping[tuple[str, int], Health]) -> tuple[ArmHealth, ...]:
    """Arm by arm in the order in which they come; `trials`: (arm, seed) -> health."""
    arms = dict.fromkeys(arm for arm, _ in trials)
    own = {arm: {seed: health for (name, seed), health in trials.items() if name == arm} for arm in arms}
    return tuple(
        ArmHealth(
            arm,
            sum(bool(health.judged or health.diverged) for health in of_arm.values()),
            {seed: health.symptoms for seed, health in of_arm.items() if health.symptoms},
            tuple(seed for seed, health in of_arm.items() if health.diverged),
        )
        for arm, of_arm in own.items()
    )


def health_of(folder: StudyFolder, record: TrialRecord) -> Health:
    """The health of a trial that has ended; a trial whose series are lost or damaged is not judged."""
    diverged = record.status == "diverged"
    try:
        return examine(_read(folder, record), dict(flatten(record.config)), diverged)
    except (Damaged, Gone):  # readers of the series report it; a warning adds nothing
        return Health((), (), diverged)


def _read(folder: StudyFolder, record: TrialRecord) -> dict[str, Series]:
    """The series that have bands."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if "train" not in record.stages:
        return {}
    path = file_of(folder, record, "train", "metrics.parquet")
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in BANDS or name == "step"]
            table = file.read(names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(path, str(error).splitlines()[0]) from None
    # As lists: pyarrow imports pandas to make an array.
    columns = {name: np.array(table[name].to_pylist(), dtype=np.float64) for name in table.column_names}
    steps = columns.pop("step", np.zeros(0))
    return {key: (steps, values) for key, values in columns.items()}
