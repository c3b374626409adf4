"""MLflow's client on a store in memory, which can die after any call; and what a store holds."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Killed(BaseException):
    """The process ends here."""


class FakeMlflow:
    """As MLflow does, it keeps one of several equal points, and refuses what is sent to a deleted run."""

    def __init__(self) -> None:
        self.experiments: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        self.calls, self.dies_after = 0, 0
        self._clock = itertools.count(1_700_000_000_000)

    def __getattribute__(self, name: str) -> Any:
        """Count the calls of the client's methods."""
        found = object.__getattribute__(self, name)
        return self._counted(found) if callable(found) and not name.startswith("_") else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            result = call(*args, **named)
            self.calls += 1
            if self.calls == self.dies_after:
                raise Killed
            return result

        return counted

    def get_experiment_by_name(self, name: str) -> Any:
        return next((one for one in self.experiments.values() if one.name == name), None)

    def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
        number = str(len(self.experiments))
        self.experiments[number] = SimpleNamespace(experiment_id=number, name=name, tags={}, lifecycle_stage="active")
        return number

    def set_experiment_tag(self, experiment: str, key: str, value: str) -> None:
        self.experiments[experiment].tags[key] = value

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        number = f"run{len(self.runs)}"
        info = SimpleNamespace(
            run_id=number, run_name=run_name, status="RUNNING", start_time=next(self._clock), experiment=experiment
        )
        data = SimpleNamespace(tags=dict(tags), params={}, metrics={})
        self.runs[number] = SimpleNamespace(info=info, data=data, points=set(), artifacts=set())
        return self.runs[number]

    def search_runs(self, experiments: list[str], query: str, *_: Any, **__: Any) -> list[Any]:
        wanted = re.findall(r"(attributes|tags)\.(\w+) = '([^']*)'", query)
        return [
            run
            for run in self.runs.values()
            if run.info.experiment in experiments
            and all(str((vars(run.info) if where != "tags" else run.data.tags).get(k)) == v for where, k, v in wanted)
        ]

    def get_run(self, run: str) -> Any:
        return self.runs[run]

    def delete_run(self, run: str) -> None:
        del self.runs[run]

    def log_batch(self, run: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        one = self.runs[run]
        assert len(metrics) <= 1000
        assert len(params) <= 100
        one.points |= {(point.key, point.step, point.timestamp, point.value) for point in metrics}
        for key, _, _, value in sorted(one.points):
            one.data.metrics[key] = value
        for param in params:
            assert one.data.params.setdefault(param.key, param.value) == param.value
        one.data.tags |= {tag.key: tag.value for tag in tags}

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.runs[run].data.tags[key] = value

    def update_run(self, run: str, status: str) -> None:
        self.runs[run].info.status = status

    set_terminated = update_run

    def log_artifact(self, run: str, file: str, folder: str | None) -> None:
        self.runs[run].artifacts.add(f"{folder or ''}/{file.rpartition('/')[2]}")

    def log_text(self, run: str, text: str, file: str) -> None:
        self.runs[run].artifacts.add(file)

    def get_metric_history(self, run: str, key: str) -> list[Any]:
        return [
            SimpleNamespace(step=step, value=value) for name, step, _, value in self.runs[run].points if name == key
        ]


def content(client: Any, name: str = "small") -> dict[str, Any]:
    """What an experiment holds of each run, without ids and times: every point as often as it is there."""
    client.dies_after = 0
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id], "")
    names = {run.info.run_id: run.info.run_name for run in runs}
    found: dict[str, Any] = {}
    for run in runs:
        tags = {key: value for key, value in run.data.tags.items() if key not in ("origin", "mlflow.user")}
        tags["mlflow.parentRunId"] = names.get(tags.get("mlflow.parentRunId", ""), "none")
        points = Counter(
            (key, point.step, point.value)
            for key in run.data.metrics
            for point in client.get_metric_history(run.info.run_id, key)
        )
        key = f"{run.info.run_name} {tags['identity']}"
        assert key not in found, f"{key} is double"
        found[key] = (run.info.status, tags, dict(run.data.params), points)
    return found
