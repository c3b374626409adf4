"""A plan's history, from the records under an output root: artifacts that there once were, and times of stages here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from pipeline.config.trial import TrialConfig
from pipeline.errors import Damaged, Fault
from pipeline.run.layout import Layout, TrialRecord, read_json
from pipeline.run.lost import own_stages
from pipeline.trial import CHARGED


def all_records(layout: Layout) -> list[TrialRecord]:
    """The sound records of every study and profile; a command that needs a damaged one names it."""
    records = []
    for path in sorted(layout.root.glob("studies/*/*/study.json")):
        folder = layout.study(path.parent.parent.name, path.parent.name)
        for file in folder.trial_files():
            with suppress(Damaged):
                records.append(folder.read(file))
    return records


@dataclass(frozen=True)
class StageSeconds:
    """Seconds that stages took in earlier trials: means."""

    trials: int
    seconds: Mapping[str, float]
    """Seconds by stage, without train."""
    seconds_per_step: float
    """Seconds of train per gradient step, with the rewards of later rounds."""

    def of(self, stage: str, config: TrialConfig) -> float:
        """Seconds that a stage of this trial would take; 0 for a stage that nobody timed, which takes little."""
        if stage.partition("-")[0] == "train":
            return self.seconds_per_step * config.gradient_steps / config.rounds
        return self.seconds.get(stage, 0.0)


def measured(
    layout: Layout, records: Sequence[TrialRecord], profile: str, environment: Mapping[str, str]
) -> StageSeconds | None:
    """Times of a profile's trials that ran on the platform and device of `environment`; None where there are none."""
    alike = [
        one
        for one in records
        if one.profile == profile
        and one.steps
        and "wall_s" in one.cost
        and all(one.environment.get(key) == environment.get(key) for key in ("platform", "device"))
    ]
    if not alike:
        return None
    times: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for record in alike:
        charged = own_stages(record.stages) - {"reference", "evaluate"}
        for stage, ref in record.stages.items():
            with suppress(Fault):  # most stages that take little keep no costs
                took = read_json(layout.root / ref.path / "log" / "cost.json").get("wall_s")
                if stage not in charged and took is not None:
                    times[stage][ref.key] = took
    # A trial is also charged for stages that only its algorithm needs.
    training = [
        one.cost["wall_s"] - math.fsum(one.cost.get(f"{stage}_wall_s", 0.0) for stage in CHARGED) for one in alike
    ]
    means = {stage: fmean(seconds.values()) for stage, seconds in times.items()}
    return StageSeconds(len(alike), means, math.fsum(training) / sum(one.steps for one in alike))
