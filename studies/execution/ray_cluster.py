"""Workers on a Ray cluster: that of ``RAY_ADDRESS``, or one on this machine that ends with the driver.

On a cluster workers outlive their driver. A worker whose node dies is lost, which is no failure of its trial. Ray
itself repeats nothing.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pipeline.config.runtime import RuntimeConfig
from pipeline.errors import Fault, UserError
from pipeline.models.cpu import HUGE_PAGES
from pipeline.resources.device import PRECISION, gpu_visible
from pipeline.stages.sources import precision
from studies.execution.file_executor import GRACE_SECONDS, Ended, WorkerState
from studies.execution.job_folder import JobFolder
from studies.execution.jobs import Job
from studies.execution.program import HOME, code_digest
from studies.execution.ray_head import Head, patience
from studies.execution.ray_request import RayOptions, Request, amounts_in_words, in_all, read_options, request_of, times
from studies.execution.ray_words import died_with_node, first_line, in_words, last_line
from studies.execution.ray_worker import WITNESS, Worker, look
from studies.execution.shared_store import Question, check_here

ADDRESS = "RAY_ADDRESS"
LOCAL = "local"
NAMESPACE = "ablate"
LAG_SECONDS = 5.0
"""How long what a worker wrote may take to be read here (`Launcher.lag_seconds`)."""
LOOK_SECONDS = 120.0
"""How long a node may take to answer whether it shares the output root."""
OBJECT_STORE = 80 * 2**20
"""Bytes, of a cluster on this machine: nothing travels through it."""
PASSED_ON = (PRECISION, "HF_HUB_OFFLINE")
"""Variables that a worker gets from the driver."""
INSTALL = "pip install -e '.[ray]'"


@dataclass
class _Worker:
    folder: JobFolder
    handle: Any
    ready: Any
    """Fulfilled, or failed, when the actor has done its job."""


class RayCluster:
    """The launcher of a Ray cluster."""

    def __init__(self, options: RayOptions | None = None, tell: Callable[[str], None] = lambda line: None) -> None:
        """`tell` takes a line for the user. Raises `UserError` where Ray is not installed."""
        self._options, self._tell = options or RayOptions(), tell
        self._address = os.environ.get(ADDRESS) or LOCAL
        self._patience = patience() if self._address != LOCAL else 0.0
        if self._address == LOCAL:  # Ray reads both when it is imported
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # others on this machine can reach its ports
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        self._ray = _import_ray()
        if self._address.startswith("ray://"):
            raise UserError(
                f"{ADDRESS} = {self._address}: workers would end with a Ray client's connection; run the command on a"
                " node of the cluster, with the address of its head, such as 10.0.0.1:6379"
            )
        self.outlives = self._address != LOCAL
        self.lag_seconds = LAG_SECONDS if self.outlives else 0.0
        self._workers: dict[str, _Worker] = {}
        self._connected = self._checked = False
        self._head: Head | None = None
        self._told: set[str] = set()
        self._had_room: list[Request] = []
        """What a node has had room for: where that node is lost, trials wait until it comes back."""

    @classmethod
    def of(cls, options: Path | None, tell: Callable[[str], None]) -> Self:
        """With the options in a file. Raises `UserError`."""
        return cls(read_options(options) if options else None, tell)

    def start(self, job: Job, folder: JobFolder) -> str:
        """Ask Ray for a worker. Raises `UserError` where no node is large enough, or the output root is not shared."""
        self._connect()
        request = self._request(job.config.runtime)
        with self._asked():
            self._check_room(request)
            self._check_nodes(job.layout.root)
        name = f"{secrets.token_hex(4)}:{folder.path}"
        passed_on = {key: value for key in PASSED_ON if (value := os.environ.get(key)) is not None}
        if request.gpus:  # cards of other nodes may be of another kind than the one that stages are planned for
            passed_on[PRECISION] = precision(job.config)
        folder.create(job, outlives=self.outlives, environment=passed_on)
        folder.name_worker(name)  # before there is one: a driver that dies between the two leaves none unknown
        with self._asked():
            self._workers[name] = self._submit(name, job)
        return name

    def state(self, name: str) -> WorkerState:
        """Queued until the worker has begun; then running, or in words how it ended."""
        worker = self._find(name)
        if worker is None:
            return "unknown"
        if not self._ray.wait([worker.ready], timeout=0)[0]:
            return "running" if worker.folder.alive_file.exists() else "queued"
        try:
            self._ray.get(worker.ready)
        except self._ray.exceptions.ActorUnavailableError:  # for the moment
            worker.ready = worker.handle.__ray_ready__.remote()
            return "running"
        except self._ray.exceptions.RayError as error:
            return in_words(error, worker.folder.path)
        return Ended("the worker ended without a result")

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Until a worker has ended. Raises `Fault` where the cluster has lost its head."""
        if self._head is not None:
            self._head.check()
        waited = [self._workers[name].ready for name in names if name in self._workers]
        if waited:
            self._ray.wait(waited, num_returns=1, timeout=seconds)
        else:
            time.sleep(seconds)

    def end(self, names: Sequence[str], *, hung: bool = False) -> None:
        """Kill workers, and wait until they are gone."""
        workers = [worker for name in names if (worker := self._find(name)) is not None]
        for worker in workers if hung else ():
            _have_testified(worker.folder)
        for worker in workers:
            self._kill(worker)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(worker.folder.is_held() for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.05)

    def forget(self, name: str) -> None:
        """Its process ends by itself; one that does not is killed."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            self._kill(worker)

    def _submit(self, name: str, job: Job) -> _Worker:
        request = self._request(job.config.runtime)
        actor = self._ray.remote(Worker).options(
            name=name,
            lifetime="detached",
            max_restarts=0,
            num_cpus=request.cpus,
            num_gpus=request.gpus,
            memory=request.memory or None,
            resources=dict(request.resources),
            runtime_env=_environment(on_cpu=request.gpus == 0),
        )
        handle = actor.remote(str(job.layout.root), str(job.folder), name, code_digest(), socket.gethostname())
        return _Worker(JobFolder(job.folder), handle, handle.__ray_ready__.remote())

    def _find(self, name: str) -> _Worker | None:
        """A worker of this driver, or one that an earlier driver has left on the cluster."""
        if name not in self._workers and ":" in name:
            self._connect()
            with suppress(ValueError), self._asked():
                handle = self._ray.get_actor(name, namespace=NAMESPACE)
                folder = JobFolder(Path(name.partition(":")[2]))
                self._workers[name] = _Worker(folder, handle, handle.__ray_ready__.remote())
        return self._workers.get(name)

    def _kill(self, worker: _Worker) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError), self._asked():
            self._ray.kill(worker.handle, no_restart=True)

    def _request(self, runtime: RuntimeConfig) -> Request:
        return request_of(runtime, self._options, runtime.device != "cpu" and gpu_visible())

    def _nodes(self) -> list[Mapping[str, float]]:
        """What each node has in all."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _check_room(self, request: Request) -> None:
        """Say when a trial has to wait. Raises `UserError` where no wait would help."""
        nodes, free = self._nodes(), self._ray.available_resources()
        fits = any(times(request, node) for node in nodes)
        if fits and request not in self._had_room:
            self._had_room.append(request)
        if not fits and not self._options.autoscaling and request not in self._had_room:
            raise UserError(
                f"no node of the Ray cluster has room for a trial, which asks for {request}; it has {in_all(nodes)}."
                " Ask for less, add a node, or set autoscaling: true where nodes come when they are needed"
            )
        full = len(self._workers) >= sum(times(request, node) for node in nodes)  # what is free is known late
        if fits and times(request, free) and not full:
            return
        left = amounts_in_words({name: free.get(name, 0.0) for name, value in request.amounts.items() if value})
        lost = request in self._had_room
        why = "is full" if fits else f"has no node that is large enough {'any more' if lost else 'yet'}"
        if why in self._told:
            return
        self._told.add(why)
        self._tell(f"the Ray cluster {why}: a trial asks for {request}, {left} are free of {in_all(nodes)}; it waits")

    def _check_nodes(self, root: Path) -> None:
        """See that every node shares the output root and has this program. Raises `UserError`."""
        if self._checked or not self.outlives:
            return
        check_here(root)
        near = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        with Question(root) as question:
            asked = [
                self._ray.remote(num_cpus=0, max_retries=0)(look)
                .options(scheduling_strategy=near(node["NodeID"], soft=False), runtime_env=_environment())
                .remote(str(root), question.token, code_digest(), socket.gethostname(), f"node-{node['NodeID'][:8]}")
                for node in self._ray.nodes()
                if node["Alive"]
            ]
            for reply in self._ray.wait(asked, num_returns=len(asked), timeout=LOOK_SECONDS)[0]:
                try:
                    question.check(self._ray.get(reply))
                except self._ray.exceptions.RayError as error:
                    if not died_with_node(error):
                        raise UserError(f"a node of the Ray cluster cannot run a trial: {last_line(error)}") from None
        self._checked = True

    def _asked(self) -> AbstractContextManager[None]:
        """Around what Ray asks its head, which may be gone."""
        return self._head.asked() if self._head is not None else nullcontext()

    def _connect(self) -> None:
        if self._connected:
            return
        quiet = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
        with _signals_kept(), _connection_errors(self._address):
            if self._ray.is_initialized():  # by an earlier study of this process
                pass
            elif self.outlives:
                self._ray.init(address=self._address, **quiet)
            else:
                own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
                self._ray.init(address=LOCAL, _node_ip_address="127.0.0.1", **own, **quiet)
        _silence()
        if self.outlives:
            self._head = Head(self._ray.get_runtime_context().gcs_address, self._patience)
        self._connected = True


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise UserError(f"--executor ray needs Ray, which is not installed: {INSTALL}") from None
    return ray


def _environment(on_cpu: bool = True) -> dict[str, Any]:
    """Variables with which a process on a node begins: where this program lies, if the node has none of its own."""
    path = [str(HOME), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **(HUGE_PAGES if on_cpu else {})}
    return {"env_vars": variables}


def _silence() -> None:
    """Ray prints what it thinks of dead workers and nodes, with pages of its logs; the driver says it in a line."""
    worker: Any = sys.modules.get("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *_, **__: None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)


@contextmanager
def _connection_errors(address: str) -> Iterator[None]:
    """Why there is no connection, in one line."""
    place = "Ray does not start on this machine" if address == LOCAL else f"{ADDRESS} = {address}"
    try:
        yield
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"{place}: no Ray cluster answers there ({first_line(error)}); start one with `ray start"
            f" --head`, or unset {ADDRESS} for one on this machine"
        ) from None
    except Exception as error:  # versions that differ, a token that is missing
        raise Fault(f"{place}: {first_line(error)}") from None


def _have_testified(folder: JobFolder) -> None:
    """Have a worker that hangs write into its log where it stands."""
    ask = folder.path / WITNESS
    with suppress(OSError):
        ask.touch()
    deadline = time.monotonic() + GRACE_SECONDS
    while ask.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
