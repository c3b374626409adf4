from __future__ import annotations

import gc
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_trial
import pytest
import ray_nodes
from fake_trial import SHORT
from helpers import wait_until
from light_study import CELLS, PYTHONPATH, SMALL, Write, alive, command, go, half_way, results
from ray_nodes import RayNodes
from rich.console import Console

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.execution import ray_tasks
from studies.execution.study import executor, run_study

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("no_mlflow"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    """A head and two nodes of one CPU each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        try:
            with ray_nodes.ray_nodes() as started:
                yield started
                ray.shutdown()
        except ray_nodes.TooBusy as error:
            pytest.skip(str(error))
        with warnings.catch_warnings(action="ignore"):  # Ray waits for no process that it has killed
            gc.collect()


def test_the_results_have_the_bytes_of_processes(
    cluster: RayNodes, write_study: Write, layout: Layout, whole: dict[str, bytes]
) -> None:
    """Stages that trials share are built once for the whole cluster."""
    result, _ = go(write_study(SHORT), layout, "ray", jobs=2)
    assert results(result, layout) == whole
    for shared in ("prompts", "reward", "reference"):
        assert len(fake_trial.calls(layout, shared)) == 1
    assert sorted(fake_trial.calls(layout)) == CELLS


def test_a_trial_whose_node_is_killed_continues_on_another_one(
    cluster: RayNodes, write_study: Write, layout: Layout, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_trial.control(layout, gated=CELLS)
    victim = cluster.add(num_cpus=2)  # the only node that has them
    monkeypatch.setattr(ray_tasks, "request_of", lambda configs: {"CPU": 2, "GPU": 0})
    ended = list[Any]()

    def run() -> None:
        hire = executor("ray", 1)
        console = Console(quiet=True)
        ended.append(run_study(write_study(SHORT), layout, None, SMALL, hire, 1, console, trials="fake_trial"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()  # Ray starts nodes in the main thread alone
    wait_until(lambda: half_way(layout, 1), 300)
    (pid,) = fake_trial.pids(layout, "train")
    cluster.lose(victim)
    wait_until(lambda: not alive(pid), 120)
    (layout.root / "gate").touch()
    node = cluster.add(num_cpus=2)
    thread.join(300)
    assert not thread.is_alive()
    assert results(ended[0], layout) == whole
    assert len(fake_trial.calls(layout)) == 3
    cluster.lose(node)


@pytest.mark.parametrize("killed", ["command", "head"])
def test_the_same_command_goes_on_after_it_or_the_head_was_killed(
    cluster: RayNodes, write_study: Write, layout: Layout, whole: dict[str, bytes], tmp_path: Path, killed: str
) -> None:
    fake_trial.control(layout, gated=CELLS)
    study = write_study(SHORT)
    driver = command("study", study.source, layout, tmp_path, 2, "ray")
    wait_until(lambda: half_way(layout), 300)
    if killed == "command":
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
        wait_until(lambda: not any(map(alive, fake_trial.pids(layout))), 120)  # tasks end with their command
    else:
        ray.shutdown()  # or this process would end with the head
        cluster.lose_head()
        driver.communicate(timeout=300)  # tasks on other nodes may go on
        cluster.start()
    (layout.root / "gate").touch()
    assert results(go(study, layout, "ray")[0], layout) == whole


def test_a_users_mistake_comes_back_in_words(
    cluster: RayNodes, write_study: Write, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_trial.control(layout, user_error=[CELLS[0]])
    with pytest.raises(UserError, match=r"optimiser\.lr is too large for this network"):
        go(write_study(SHORT), layout, "ray")
    monkeypatch.setattr(ray_tasks, "request_of", lambda configs: {"CPU": 9, "GPU": 0})
    with pytest.raises(UserError, match="no node of the Ray cluster has room for a trial, which needs 9 CPU, 0 GPU"):
        go(write_study(SHORT), layout, "ray")
