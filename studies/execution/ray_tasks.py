"""Hands as tasks of Ray, on the cluster of ``RAY_ADDRESS``. Ray repeats a task whose node died; tasks end with the
command that started them, and the same command goes on from checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline.config.trial import TrialConfig
from pipeline.errors import Fault, UserError
from pipeline.resources.machine import PRECISION, gpu_visible
from pipeline.run.layout import Layout
from studies.execution.agenda import Agenda
from studies.execution.hand import Hands, Say
from studies.execution.started import Started, python_path

ADDRESS = "RAY_ADDRESS"
RETRIES = 20
"""Number of times that Ray repeats a task whose node or process it has lost."""
PASSED_ON = (PRECISION, "HF_HUB_OFFLINE")
"""Variables that a task gets from this process."""


class Ray(Hands):
    """Hands with at most `jobs` tasks on the cluster."""

    def __init__(self, run: Started, agenda: Agenda, jobs: int, say: Say) -> None:
        """Raises `UserError` where Ray is missing, the cluster does not answer, or no node is large enough."""
        self._run, self._agenda, self._say = run, agenda, say
        self._ray = _connected()
        request = request_of([cell.config for cell in agenda.open()])
        self._check_room(request)
        passed = {key: value for key in PASSED_ON if (value := os.environ.get(key)) is not None}
        self._task = self._ray.remote(max_calls=1)(_take).options(
            max_retries=RETRIES,
            retry_exceptions=False,
            runtime_env={"env_vars": {"PYTHONPATH": python_path(), **passed}},
            num_cpus=request["CPU"],
            num_gpus=request["GPU"],
        )
        self._tasks = [self._begin() for _ in range(min(jobs, len(agenda.open()) or jobs))]

    def step(self) -> bool:
        """Handle tasks that have ended. False when no trial is left.

        Raises `UserError` and `Fault` as the hands do, and `Fault` where Ray has given all of them up.
        """
        if self._tasks:
            ended, self._tasks = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
            for task in ended:
                try:
                    self._ray.get(task)
                except self._ray.exceptions.RayTaskError as error:
                    cause = error.cause
                    raise (cause if isinstance(cause, UserError | Fault) else Fault(_last_line(error))) from None
                except self._ray.exceptions.RayError as error:
                    self._say(f"Ray has given up a task: {_last_line(error)}", "yellow")
        left = self._agenda.is_left()
        if left and not self._tasks:
            if self._agenda.is_elsewhere():  # another command's hands have the rest
                return True
            self._tasks = [self._begin()]
        return left

    def close(self) -> None:
        """End the tasks."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)

    def _begin(self) -> Any:
        run = self._run
        return self._task.remote(str(run.layout.root), run.study.name, run.profile)

    def _check_room(self, request: dict[str, int]) -> None:
        """Raises `UserError` where no node could ever hold a hand: Ray would wait for one without end."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(key, 0) >= n for key, n in request.items()) for node in nodes):
            there = "; ".join(", ".join(f"{node.get(key, 0):g} {key}" for key in request) for node in nodes)
            raise UserError(
                "no node of the Ray cluster has room for a trial, which needs"
                f" {', '.join(f'{n} {key}' for key, n in request.items())}; its nodes have {there}; add a node, or use"
                " fewer runtime.threads and runtime.processes"
            )


def request_of(configs: list[TrialConfig]) -> dict[str, int]:
    """Return the resources of a hand, by Ray's names: enough for the largest trial."""
    processes = max((config.runtime.processes for config in configs), default=1)
    threads = max((config.runtime.threads for config in configs), default=1)
    on_card = gpu_visible() and any(config.runtime.device != "cpu" for config in configs)
    return {"CPU": processes * threads, "GPU": processes if on_card else 0}


def _take(root: str, study: str, profile: str) -> str:
    """Body of a task: a hand with one trial at a time."""
    from studies.execution.study import work

    return work(Layout(Path(root)), study, profile, 1, lambda text, style: print(text), stop=lambda: False)


def _connected() -> Any:
    """Ray, connected to the cluster of `ADDRESS`. Raises `UserError`."""
    if not (address := os.environ.get(ADDRESS)):
        raise UserError(
            f"--executor ray needs the address of a cluster in {ADDRESS}, such as 127.0.0.1:6379; start one with `ray"
            " start --head`"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--executor ray needs Ray, which is not installed: pip install -e '.[ray]'") from None
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"{ADDRESS} = {address}: no Ray cluster answers there ({_last_line(error)}); start one with `ray start"
            " --head`"
        ) from None
    return ray


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
