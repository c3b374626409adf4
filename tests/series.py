"""Series as a trial wrote them, and as MLflow has them: missing, double or other records."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.run.layout import StudyFolder
from studies.tracking.runs import DENSE, STRIDE

Series = Counter[tuple[str, int, str]]
"""Counts of each (name, step, value)."""


def written(path: Path) -> Series:
    """Read from a ``metrics.jsonl`` what MLflow is to have: of series of gradient steps but `DENSE` every seventh."""
    found = Series()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        step, rare = row.pop("step"), {name for name in row if name.startswith(("policy/", "value/"))} - DENSE
        kept = row.items() if step % STRIDE == 1 else ((name, row[name]) for name in row.keys() - rare)
        found.update((name, step, shown(value)) for name, value in kept)
    return found


def shown(value: float) -> str:
    """A value as MLflow can keep it, where infinity is its largest number."""
    return "nan" if math.isnan(value) else repr(max(min(float(value), 1.7e308), -1.7e308))


def compared(name: str, written: Series, sent: Series) -> Iterator[str]:
    """Yield the differences; series that are only in MLflow are left out."""
    names = {key for key, _, _ in written}
    missing, more = written - sent, Series({row: n for row, n in (sent - written).items() if row[0] in names})
    if missing or more:
        yield f"{name}: {missing.total()} records missing and {more.total()} too many in MLflow"


def series_differ(client: Any, folder: StudyFolder) -> Iterator[str]:
    """Yield where the runs that a study's folder has sent to a server are not those of its records: each trial has one
    run, with each record of its series and of its summary once; the study has one run."""
    origin = (folder.path / "origin.txt").read_text().strip()
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.origin = '{origin}'")
    parents = [run for run in runs if run.data.tags["identity"] == "study"]
    if len(parents) != 1:
        yield f"the study has {len(parents)} runs"
    records = folder.records()
    if len(runs) != len(parents) + len(records):
        yield f"{len(runs)} runs in all, for {len(records)} trials"
    for record in records:
        name, key = f"{record.arm} seed {record.seed}", record.stages["train"].key
        own = [run for run in runs if (run.data.tags["identity"], run.info.run_name) == (key, name)]
        if len(own) != 1:
            yield f"{name} has {len(own)} runs"
            continue
        run, summary = own[0], Series((metric, record.steps, shown(value)) for metric, value in record.summary.items())
        histories = (client.get_metric_history(run.info.run_id, metric) for metric in run.data.metrics)
        sent = Series((one.key, one.step, shown(one.value)) for history in histories for one in history)
        expected = written(folder.root / record.stages["train"].path / "metrics.jsonl") + summary
        yield from compared(name, expected, sent)
        if run.info.status != "FINISHED" or run.data.tags.get("mlflow.parentRunId") not in {
            parent.info.run_id for parent in parents
        }:
            yield f"{name}: {run.info.status}, and its parent is not the study's run"
