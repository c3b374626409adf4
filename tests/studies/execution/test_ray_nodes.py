"""A real Ray cluster of three nodes on this machine, whose nodes and drivers are killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_trial
import pytest
import ray_nodes
from fake_trial import STUDY
from light_jobs import PYTHONPATH, light_job, run_jobs, wait_for
from light_study import go, results
from ray_nodes import RayNodes

from pipeline.run.layout import Layout
from studies.execution.job_folder import JobFolder
from studies.execution.jobs import Crashed, Finished, Message
from studies.execution.ray_cluster import RayCluster
from studies.execution.ray_request import RayOptions

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    """A head and two nodes of one CPU each."""
    path = os.pathsep.join([PYTHONPATH, str(Path(__file__).parents[1])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with busy_is_no_fault(), ray_nodes.ray_nodes() as started:
            patch.setenv("RAY_ADDRESS", started.address)
            yield started
            ray.shutdown()
        with warnings.catch_warnings(action="ignore"):  # Ray waits for no process that it has killed
            del started
            gc.collect()


@contextmanager
def busy_is_no_fault() -> Iterator[None]:
    try:
        yield
    except ray_nodes.TooBusy as error:
        pytest.skip(str(error))


def add(cluster: RayNodes, **more: Any) -> Any:
    with busy_is_no_fault():
        return cluster.add(**more)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    root = tmp_path / "out"
    root.mkdir()
    return Layout(root)


def ends(events: list[Any]) -> list[Any]:
    return [event for event in events if not isinstance(event, Message)]


def test_the_results_have_the_bytes_of_processes(cluster: RayNodes, write_study: Any, tmp_path: Path) -> None:
    """And what trials share is built once for the whole cluster."""
    here, there = Layout(tmp_path / "here"), Layout(tmp_path / "there")
    alone, _ = go(write_study(STUDY), here, "processes")
    result, _ = go(write_study(STUDY), there, "ray", jobs=4)
    assert len(result.records) == 4
    assert results(result, there) == results(alone, here)
    for shared in ("prompts", "reward", "reference"):
        assert len(fake_trial.calls(there, shared)) == len(fake_trial.calls(here, shared)) == 1
    assert len(set(fake_trial.pids(there))) > 3
    assert not (there.study("small", "tiny").jobs).exists()


def test_a_trial_whose_node_is_killed_continues_on_another_one(cluster: RayNodes, layout: Layout) -> None:
    job = light_job(layout)
    fake_trial.control(layout, gated=[f"{job.config.kl.beta}/0"])
    victim = add(cluster, resources={"place": 1})
    launcher = RayCluster(RayOptions(resources={"place": 1.0}))
    events = list[Any]()
    driver = threading.Thread(target=lambda: events.extend(run_jobs(launcher, job)), daemon=True)
    driver.start()  # Ray starts nodes in the main thread alone
    wait_for(lambda: len(list(layout.root.glob("store/train/.partial/*/metrics.jsonl"))) == 1, 300)
    (pid,) = fake_trial.pids(layout)
    cluster.lose(victim)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), 120)
    (layout.root / "gate").touch()
    add(cluster, resources={"place": 1})
    driver.join(300)
    assert not driver.is_alive()
    (lost,) = [event.args[0] for event in events if isinstance(event, Message) and event.kind == "warn"]
    assert lost.endswith("died or was taken back; it goes on in a new worker")
    assert [type(event) for event in ends(events)] == [Finished]
    assert len(fake_trial.calls(layout)) == 2
    assert len(fake_trial.pids(layout)) == 2


DRIVER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from light_jobs import light_job, run_jobs
from pipeline.run.layout import Layout
from studies.execution.ray_cluster import RayCluster
run_jobs(RayCluster(), *[light_job(Layout(Path({root!r})), number) for number in range(2)])
"""


def test_trials_outlive_their_driver_and_the_next_one_takes_them_over(cluster: RayNodes, layout: Layout) -> None:
    jobs = [light_job(layout, number) for number in range(2)]
    fake_trial.control(layout, gated=[f"{job.config.kl.beta}/{job.config.train.seed}" for job in jobs])
    source = DRIVER.format(path=os.environ["PYTHONPATH"].split(os.pathsep), root=str(layout.root))
    driver = subprocess.Popen([sys.executable, "-c", source], start_new_session=True)
    wait_for(lambda: len(fake_trial.calls(layout)) == 2, 180)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    time.sleep(3)
    before = fake_trial.pids(layout)
    assert all(Path(f"/proc/{pid}").exists() for pid in before)
    (layout.root / "gate").touch()
    events = run_jobs(RayCluster(), *jobs)
    assert all(isinstance(event, Finished) and event.adopted for event in ends(events))
    assert len(ends(events)) == 2
    assert fake_trial.pids(layout) == before


def test_processes_that_are_killed_and_trials_that_crash(cluster: RayNodes, layout: Layout) -> None:
    jobs = [light_job(layout, number) for number in range(3)]
    cells = [f"{job.config.kl.beta}/{job.config.train.seed}" for job in jobs]
    fake_trial.control(layout, kill={cells[0]: 1}, crash={cells[1]: 1}, user_error=[cells[2]])
    found = {event.job.number: event for event in ends(run_jobs(RayCluster(), *jobs))}
    assert isinstance(found[0], Crashed)
    assert "was killed or crashed (often: out of memory)" in found[0].reason
    assert found[1].reason == f"RuntimeError: boom in {cells[1]}"
    assert (found[2].reason, found[2].user_error) == ("optimiser.lr is too large for this network", True)


def test_a_full_cluster_lets_trials_wait_and_a_hung_one_says_where(cluster: RayNodes, layout: Layout) -> None:
    told = list[str]()
    first, second = light_job(layout, 0), light_job(layout, 1, **{"runtime.hang_minutes": 0.1})
    fake_trial.control(layout, hang=[f"{second.config.kl.beta}/1"])
    launcher = RayCluster(RayOptions(resources={"narrow": 1.0}), told.append)
    node = add(cluster, resources={"narrow": 1})
    events = ends(run_jobs(launcher, first, second))
    assert isinstance(events[0], Finished)
    assert events[1] == Crashed(second, "no progress for 0.1 min (runtime.hang_minutes): ended")
    assert "_misbehave" in second.log.read_text()
    assert len(told) == 1
    assert "the Ray cluster is full: a trial asks for 1 CPU, 1 narrow, " in told[0]
    cluster.lose(node)


def test_a_node_that_comes_later(cluster: RayNodes, layout: Layout) -> None:
    """As with an autoscaler: waiting for it is no silence of the trial."""
    job = light_job(layout, 0, **{"runtime.hang_minutes": 0.05})
    launcher = RayCluster(RayOptions(resources={"late": 1.0}, autoscaling=True))
    folder = JobFolder(job.folder)
    name = launcher.start(job, folder)
    time.sleep(4)
    assert launcher.state(name) == "queued"
    node = add(cluster, resources={"late": 1})
    events = run_jobs(launcher, job)
    assert isinstance(ends(events)[-1], Finished)
    cluster.lose(node)
