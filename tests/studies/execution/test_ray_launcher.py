"""The launcher against a Ray that is only written down: nothing is started."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from light_jobs import finished, light_job, run_jobs

from pipeline.errors import Fault, UserError
from pipeline.run.layout import Layout
from studies.execution import ray_cluster, ray_worker
from studies.execution.file_executor import Ended
from studies.execution.job_folder import JobFolder
from studies.execution.jobs import Crashed, Finished, Interrupted, Job, Message
from studies.execution.program import code_digest
from studies.execution.ray_cluster import RayCluster
from studies.execution.ray_head import OUR_SECONDS, RAYS_PATIENCE, Head
from studies.execution.ray_request import RayOptions
from studies.execution.ray_worker import WITNESS, NotHere, do, is_wanted, look
from studies.execution.shared_store import Answer, Question


class RayError(Exception):
    preempted = False
    actor_init_failed = False


class ActorUnavailableError(RayError): ...


@dataclass
class Actor:
    """A handle; its one method gives a reference, which is the actor itself."""

    options: dict[str, Any]
    arguments: tuple[Any, ...]
    outcome: Exception | bool = False
    """True: it has done its job."""

    @property
    def __ray_ready__(self) -> Any:
        return SimpleNamespace(remote=lambda: self)


@dataclass
class FakeRay:
    resources: list[dict[str, float]] = field(default_factory=lambda: [{"CPU": 1.0, "memory": 2.0**31}])
    free: dict[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    actors: list[Actor] = field(default_factory=list)
    named: dict[str, Actor] = field(default_factory=dict)
    killed: list[Actor] = field(default_factory=list)
    inits: list[dict[str, Any]] = field(default_factory=list)
    whenever_waited: Callable[[], object] = lambda: None
    fails_to_connect: Exception | None = None
    root_on_nodes: Path | None = None
    address: str = "127.0.0.1:1"
    exceptions: Any = field(
        default_factory=lambda: SimpleNamespace(RayError=RayError, ActorUnavailableError=ActorUnavailableError)
    )
    util: Any = field(
        default_factory=lambda: SimpleNamespace(
            scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        )
    )

    def init(self, **options: Any) -> None:
        if self.fails_to_connect:
            raise self.fails_to_connect
        self.inits.append(options)

    def is_initialized(self) -> bool:
        return bool(self.inits)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=self.address)

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 99.0}, "NodeID": "dead"}
        return [
            *[{"Alive": True, "Resources": one, "NodeID": f"node{n}"} for n, one in enumerate(self.resources)],
            dead,
        ]

    def available_resources(self) -> dict[str, float]:
        return self.free

    def remote(self, *made: Any, **settings: Any) -> Any:
        if not made:
            return lambda function: self._task(function)

        def options(**options: Any) -> Any:
            def create(*arguments: Any) -> Actor:
                if options["name"] in self.named:
                    raise ValueError("the name is taken")
                actor = Actor(options, arguments)
                self.actors.append(actor)
                self.named[options["name"]] = actor
                return actor

            return SimpleNamespace(remote=create)

        return SimpleNamespace(options=options)

    def _task(self, function: Callable[..., Answer]) -> Any:
        def call(root: str, *others: Any) -> Actor:
            try:
                value: Any = function(str(self.root_on_nodes or root), *others)
            except Exception as error:
                value = RayError(f"a traceback\n{type(error).__name__}: {error}")
            return Actor({}, (value,), value if isinstance(value, Exception) else True)

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=call))

    def wait(self, refs: list[Actor], *, timeout: float, num_returns: int = 1) -> tuple[list[Actor], list[Actor]]:
        if timeout and self.actors:
            self.whenever_waited()
        return [ref for ref in refs if ref.outcome], [ref for ref in refs if not ref.outcome]

    def get(self, ref: Actor) -> Any:
        if isinstance(ref.outcome, Exception):
            raise ref.outcome
        return ref.arguments[0] if ref.arguments else None

    def get_actor(self, name: str, namespace: str) -> Actor:
        assert namespace == "ablate"
        if name not in self.named:
            raise ValueError("no such actor")
        return self.named[name]

    def kill(self, handle: Actor, *, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(handle)

    def end(self, actor: Actor, how: Exception | bool) -> None:
        actor.outcome = how
        self.named.pop(actor.options["name"], None)


CODE = code_digest()
NODE_DIED = RayError("\tip: 10.0.0.7\nThe actor died because its node has died. Node Id: 1")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_cluster, "_import_ray", lambda: fake)
    monkeypatch.setattr(ray_cluster, "LAG_SECONDS", 0.0)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv(RAYS_PATIENCE, OUR_SECONDS)
    return fake


@pytest.fixture
def job(layout: Layout) -> Job:
    return light_job(layout)


def test_a_head_that_is_gone_ends_the_study_with_a_word(
    ray: FakeRay, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "Head", lambda address, patience: Head(address, 0.0, 0.05, end=[].append))
    with pytest.raises(Fault, match=r"head of the Ray cluster, 127\.0\.0\.1:1, has not answered .* the same command"):
        run_jobs(RayCluster(), job)
    assert len(ray.actors) == 1  # its worker may still end the job


def test_a_worker_is_an_actor_that_outlives_the_driver(ray: FakeRay, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_PRECISION", "bf16")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "secret")
    folder, cluster = JobFolder(job.folder), RayCluster(RayOptions(cpus=0.5, memory_gib=1.0))
    name = cluster.start(job, folder)
    (actor,) = ray.actors
    assert cluster.outlives
    assert (actor.options["lifetime"], actor.options["max_restarts"], actor.options["name"]) == ("detached", 0, name)
    assert (actor.options["num_cpus"], actor.options["num_gpus"], actor.options["memory"]) == (0.5, 0, 2**30)
    assert folder.worker == name
    written = folder.read()
    assert written.outlives
    assert written.environment == {"ABLATE_PRECISION": "bf16", "HF_HUB_OFFLINE": "1"}
    path = actor.options["runtime_env"]["env_vars"]["PYTHONPATH"].split(os.pathsep)
    assert (Path(path[0]) / "studies/execution/ray_worker.py").exists()


def test_a_trial_on_a_card_computes_in_the_precision_that_it_is_planned_in(
    ray: FakeRay, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "gpu_visible", lambda: True)
    monkeypatch.setattr(ray_cluster, "precision", lambda config: "bf16")
    ray.resources[0]["GPU"] = 2.0
    for number, (device, gpus, environment) in enumerate(
        [("auto", 0.5, {"ABLATE_PRECISION": "bf16"}), ("cpu", 0, {})], start=1
    ):
        job = light_job(layout, number, **{"runtime.device": device})
        RayCluster(RayOptions(gpus=gpus)).start(job, JobFolder(job.folder))
        assert ray.actors[-1].options["num_gpus"] == gpus
        assert environment.items() <= JobFolder(job.folder).read().environment.items()
        assert ("ABLATE_PRECISION" in JobFolder(job.folder).read().environment) == (device == "auto")


def test_states_of_a_worker(ray: FakeRay, job: Job) -> None:
    folder, cluster = JobFolder(job.folder), RayCluster()
    name = cluster.start(job, folder)
    assert cluster.state(name) == "queued"
    folder.begin()
    assert cluster.state(name) == "running"
    ray.actors[0].outcome = ActorUnavailableError()
    assert cluster.state(name) == "running"
    ray.end(ray.actors[0], RayError("The actor is dead because its worker process has died."))
    assert cluster.state(name) == Ended("the worker's process was killed or crashed (often: out of memory)")
    assert cluster.state("a name of another engine") == "unknown"
    assert cluster.state("1f:/x") == "unknown"


def test_a_job_runs_to_its_end_and_nothing_is_left(ray: FakeRay, job: Job) -> None:
    def act() -> None:
        JobFolder(job.folder).end(finished())
        ray.end(ray.actors[0], True)

    ray.whenever_waited = act
    events = run_jobs(RayCluster(), job)
    assert isinstance(events[-1], Finished)
    assert ray.killed == ray.actors
    assert not job.folder.exists()
    assert [path.name for path in job.layout.root.iterdir()] == ["jobs"]


def test_a_dead_node_is_no_failure_of_the_trial(ray: FakeRay, job: Job) -> None:
    folder = JobFolder(job.folder)

    def act() -> None:
        if len(ray.actors) == 1:
            folder.begin()
            ray.end(ray.actors[0], NODE_DIED)
        else:
            folder.end(finished())
            ray.end(ray.actors[1], True)

    ray.whenever_waited = act
    events = run_jobs(cluster := RayCluster(), job)
    assert events[0] == Message(job, "warn", ("its node 10.0.0.7 died or was taken back; it goes on in a new worker",))
    assert isinstance(events[-1], Finished)
    assert len(events) == 2
    first, second = ray.actors
    assert first.options["name"] != second.options["name"]
    assert cluster._workers == {}


def test_an_actor_that_somebody_kills_is_an_interruption(ray: FakeRay, job: Job) -> None:
    ray.whenever_waited = lambda: ray.end(ray.actors[0], RayError("it was killed by `ray.kill`."))
    assert run_jobs(RayCluster(), job) == [Interrupted(job, "its Ray actor was killed from outside")]


def test_the_next_driver_takes_a_worker_over_by_its_name(ray: FakeRay, job: Job) -> None:
    folder = JobFolder(job.folder)
    name = RayCluster().start(job, folder)
    folder.begin()

    def act() -> None:
        folder.end(finished())
        ray.end(ray.actors[0], True)

    ray.whenever_waited = act
    events = run_jobs(cluster := RayCluster(), job)
    assert isinstance(events[-1], Finished)
    assert events[-1].adopted
    assert len(ray.actors) == 1
    assert ray.actors[0].options["name"] == name
    assert cluster._workers == {}


def test_a_worker_that_hangs_says_where_before_it_is_killed(ray: FakeRay, job: Job) -> None:
    folder, cluster = JobFolder(job.folder), RayCluster()
    name = cluster.start(job, folder)
    asked = threading.Event()

    def act() -> None:
        while not (folder.path / WITNESS).exists():
            pass
        assert ray.killed == []
        asked.set()
        (folder.path / WITNESS).unlink()

    thread = threading.Thread(target=act)
    thread.start()
    cluster.end([name, "unknown"], hung=True)
    thread.join()
    assert asked.is_set()
    assert ray.killed == ray.actors


def test_a_cluster_that_is_too_small_is_refused_with_what_it_has(ray: FakeRay, job: Job) -> None:
    ray.resources = [{"CPU": 1.0, "memory": 2.0**31}, {"CPU": 1.0, "memory": 2.0**31}]
    cluster = RayCluster(RayOptions(cpus=2))
    with pytest.raises(UserError) as said:
        cluster.start(job, JobFolder(job.folder))
    assert str(said.value) == (
        "no node of the Ray cluster has room for a trial, which asks for 2 CPU; it has 2 nodes: 2 x (1 CPU, 0 GPU, 2.0"
        " GiB). Ask for less, add a node, or set autoscaling: true where nodes come when they are needed"
    )
    assert ray.actors == []
    assert not job.folder.exists()


def test_a_cluster_whose_nodes_come_when_they_are_needed(ray: FakeRay, layout: Layout) -> None:
    told = list[str]()
    cluster = RayCluster(RayOptions(cpus=2, autoscaling=True), told.append)
    for number in range(2):
        job = light_job(layout, number)
        assert cluster.state(cluster.start(job, JobFolder(job.folder))) == "queued"
    assert told == [
        "the Ray cluster has no node that is large enough yet: a trial asks for 2 CPU, 1 CPU are free of 1 node:"
        " (1 CPU, 0 GPU, 2.0 GiB); it waits"
    ]


def test_where_the_only_large_node_is_lost_trials_wait_for_it(ray: FakeRay, layout: Layout) -> None:
    told = list[str]()
    cluster = RayCluster(RayOptions(cpus=2), told.append)
    ray.resources, ray.free = [{"CPU": 2.0, "memory": 2.0**31}], {"CPU": 2.0}
    jobs = [light_job(layout, number) for number in range(4)]
    for job in jobs[:2]:
        cluster.start(job, JobFolder(job.folder))
        ray.free = {}
    assert ["is full" in line for line in told] == [True]
    ray.resources, ray.free = [{"CPU": 1.0, "memory": 2.0**31}], {"CPU": 1.0}
    for job in jobs[2:]:
        assert cluster.state(cluster.start(job, JobFolder(job.folder))) == "queued"
    assert told[1:] == [
        "the Ray cluster has no node that is large enough any more: a trial asks for 2 CPU, 1 CPU are free of 1 node:"
        " (1 CPU, 0 GPU, 2.0 GiB); it waits"
    ]


def test_a_full_cluster_is_told_once(ray: FakeRay, layout: Layout) -> None:
    told = list[str]()
    cluster = RayCluster(None, told.append)
    for number in range(3):
        if number:
            ray.free = {}
        cluster.start(light_job(layout, number), JobFolder(light_job(layout, number).folder))
        assert len(told) == (number > 0)
    assert told == [
        "the Ray cluster is full: a trial asks for 1 CPU, 0 CPU are free of 1 node: (1 CPU, 0 GPU, 2.0 GiB); it waits"
    ]


def test_a_node_with_another_output_root(ray: FakeRay, job: Job, tmp_path: Path) -> None:
    ray.root_on_nodes = tmp_path / "elsewhere"
    with pytest.raises(UserError, match=r"cannot be shared by several machines: on node-node0, what other machines"):
        RayCluster().start(job, JobFolder(job.folder))
    assert ray.actors == []


def test_a_node_with_another_program(ray: FakeRay, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "code_digest", lambda: "another")
    words = (
        r"^a node of the Ray cluster cannot run a trial: (NotHere: )?the program in .* on .* is another version than"
    )
    with pytest.raises(UserError, match=words):
        RayCluster().start(job, JobFolder(job.folder))
    folder = JobFolder(job.folder)
    folder.create(job, outlives=True, environment={})
    folder.name_worker("mine")
    assert do(job.layout.root, job.folder, "mine", "its digest", "far") == 2  # it has changed since
    outcome = folder.outcome(job)
    assert isinstance(outcome, Crashed)
    assert outcome.user_error
    assert "is another version than the one that was started on far; have the same one" in outcome.reason


def test_a_node_without_the_program(ray: FakeRay, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Answer:
        raise ModuleNotFoundError("No module named 'pydantic'")

    monkeypatch.setattr(ray_cluster, "look", fail)
    words = "a node of the Ray cluster cannot run a trial: ModuleNotFoundError: No module named 'pydantic'"
    with pytest.raises(UserError, match=words):
        RayCluster().start(job, JobFolder(job.folder))


def test_a_store_without_locks_is_refused(ray: FakeRay, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def flock(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"cannot be shared by several machines: it has no locks \(flock: No locks"):
        RayCluster().start(job, JobFolder(job.folder))
    assert ray.actors == []


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ConnectionError("no GCS"), UserError, "no Ray cluster answers there .*no GCS.*; start one with `ray start"),
        (RuntimeError("Version mismatch: 2.9 and 2.60\nmore"), Fault, "RuntimeError: Version mismatch: 2.9 and 2.60$"),
    ],
)
def test_a_cluster_that_does_not_answer(
    ray: FakeRay, job: Job, error: Exception, kind: type[Exception], words: str
) -> None:
    ray.fails_to_connect = error
    with pytest.raises(kind, match=f"RAY_ADDRESS = 10.0.0.1:6379: {words}"):
        RayCluster().start(job, JobFolder(job.folder))


def test_a_cluster_on_this_machine_ends_with_the_driver(
    ray: FakeRay, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
        monkeypatch.delenv(name)
    at_import = dict[str, str]()  # Ray reads them then, and does not start where it has the mode without the token
    monkeypatch.setattr(ray_cluster, "_import_ray", lambda: at_import.update(os.environ) or ray)
    cluster = RayCluster()
    cluster.start(job, JobFolder(job.folder))
    assert not cluster.outlives
    assert not JobFolder(job.folder).read().outlives
    (options,) = ray.inits
    assert (options["address"], options["_node_ip_address"]) == ("local", "127.0.0.1")
    assert not options["include_dashboard"]
    assert (at_import["RAY_AUTH_MODE"], len(at_import["RAY_AUTH_TOKEN"])) == ("token", 64)


def test_a_ray_client_is_refused(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UserError, match="workers would end with a Ray client's connection; run the command on a node"):
        RayCluster()


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(
        UserError, match=r"--executor ray needs Ray, which is not installed: pip install -e '\.\[ray\]'"
    ):
        RayCluster()


# What runs on a node.


def test_a_worker_runs_the_job_that_names_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[Path]()
    monkeypatch.setattr(ray_worker, "work", lambda path: called.append(path) or 0)
    monkeypatch.setattr(ray_worker.signal, "signal", lambda *_: None)
    folder = JobFolder(job.folder)
    folder.create(job, outlives=True, environment={})
    folder.name_worker("mine")
    assert do(job.layout.root, job.folder, "another", CODE, "here") == 0
    assert called == []
    assert do(job.layout.root, job.folder, "mine", CODE, "here") == 0
    assert called == [job.folder]


def test_a_job_that_has_gone_and_a_root_that_is_not_there(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "SIGHT_SECONDS", 0.1)
    root = job.layout.root
    with pytest.raises(NotHere, match=f"{root} is not there .* is\\); mount it under the same path on every node"):
        is_wanted(root, JobFolder(job.folder), "mine")
    root.mkdir()
    assert not is_wanted(root, JobFolder(job.folder), "mine")


def test_a_worker_testifies_where_it_hangs(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "LOOK_SECONDS", 0.02)
    folder = JobFolder(job.folder)
    folder.create(job, outlives=True, environment={})
    threading.Thread(target=ray_worker._testify, args=(folder,), daemon=True).start()
    ray_cluster._have_testified(folder)
    assert not (folder.path / WITNESS).exists()
    assert "test_a_worker_testifies_where_it_hangs" in job.log.read_text()


def test_a_look_at_the_same_program(tmp_path: Path) -> None:
    with Question(tmp_path) as asked:
        assert look(str(tmp_path), asked.token, CODE, "here", "node-1") == Answer("node-1", "")
