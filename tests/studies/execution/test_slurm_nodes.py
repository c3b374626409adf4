from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_trial
import pytest
import slurm_nodes
from fake_trial import SHORT
from helpers import copy_upstream, repeated, wait_until
from light_study import CELLS, PYTHONPATH, Write, command, go, half_way, results
from rich.console import Console
from slurm_nodes import SlurmNodes

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.execution import slurm
from studies.execution.study import StudyResult, executor, run_study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_mlflow"),
    pytest.mark.skipif(slurm_nodes.missing() is not None, reason=f"{slurm_nodes.missing()}"),
]
Meanwhile = Callable[[Callable[[], object]], None]
HALF_WAY = 300.0
"""Seconds until both trials stand half-way, at most: a busy machine starts two interpreters in this time."""


@pytest.fixture
def nodes() -> Iterator[SlurmNodes]:
    """A SLURM of the test's own, so that a test's daemons and jobs do not affect the next one."""
    with slurm_nodes.slurm_nodes() as started:
        yield started


@pytest.fixture(autouse=True)
def _watchful(nodes: SlurmNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", str(nodes.configuration))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setattr(slurm, "LOOK_SECONDS", 1.0)
    with repeated(nodes.hasten):  # SLURM has jobs that are requeued wait for two minutes
        yield


@pytest.fixture
def meanwhile(layout: Layout, nodes: SlurmNodes) -> Iterator[Meanwhile]:
    """Act as soon as both trials stand half-way, then let them go on."""
    fake_trial.control(layout, gated=CELLS)
    faults, threads = list[BaseException](), list[threading.Thread]()

    def act(what: Callable[[], object]) -> None:
        try:
            wait_until(lambda: half_way(layout), HALF_WAY)
            what()
        except BaseException as error:
            faults.append(error)
        finally:
            (layout.root / "gate").touch()

    def begin(what: Callable[[], object]) -> None:
        threads.append(threading.Thread(target=act, args=(what,)))
        threads[-1].start()

    yield begin
    for thread in threads:
        thread.join()
    assert not faults


def running(nodes: SlurmNodes) -> list[str]:
    return [number for number, state in nodes.jobs().items() if state == "RUNNING"]


def test_scancel_interrupts_and_the_same_command_goes_on(
    write_study: Write, layout: Layout, nodes: SlurmNodes, whole: dict[str, bytes], meanwhile: Meanwhile
) -> None:
    def cancel() -> None:
        for number in running(nodes):
            nodes.ask("scancel", number)
        wait_until(lambda: set(nodes.jobs().values()) == {"CANCELLED"}, 60)

    meanwhile(cancel)
    with pytest.raises(KeyboardInterrupt):
        go(write_study(SHORT), layout, "slurm")
    assert results(go(write_study(SHORT), layout, "slurm")[0], layout) == whole


def test_jobs_that_slurm_holds_are_reported_once(
    write_study: Write, layout: Layout, nodes: SlurmNodes, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def release() -> None:
        wait_until(nodes.jobs, 60)
        time.sleep(5)  # several looks
        nodes.ask("scontrol", "release", *nodes.jobs())

    wanted = slurm.wanted
    monkeypatch.setattr(slurm, "wanted", lambda configs: {**wanted(configs), "hold": ""})
    released = threading.Thread(target=release)
    released.start()
    result, text = go(write_study(SHORT), layout, "slurm")
    released.join()
    assert results(result, layout) == whole
    assert len(re.findall("SLURM holds all jobs of the study .JobHeldUser.", text)) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_jobs_go_on_without_the_command_and_the_next_one_watches_them(
    write_study: Write, layout: Layout, nodes: SlurmNodes, whole: dict[str, bytes], tmp_path: Path, how: signal.Signals
) -> None:
    fake_trial.control(layout, gated=CELLS)
    study = write_study(SHORT)
    driver = command("study", study.source, layout, tmp_path, 2, "slurm")
    wait_until(lambda: half_way(layout), HALF_WAY)
    jobs = running(nodes)
    os.killpg(driver.pid, how)
    driver.communicate(timeout=60)
    assert [nodes.jobs()[number] for number in jobs] == ["RUNNING", "RUNNING"]
    (layout.root / "gate").touch()
    assert results(go(study, layout, "slurm")[0], layout) == whole
    assert sorted(fake_trial.calls(layout)) == CELLS


def controller_away(nodes: SlurmNodes, layout: Layout) -> None:
    time.sleep(8)  # it writes its state down every few seconds
    nodes.kill("slurmctld")
    time.sleep(15)
    (layout.root / "gate").touch()
    time.sleep(5)
    nodes.begin("slurmctld")


def preemption(nodes: SlurmNodes, layout: Layout) -> None:
    jobs = running(nodes)
    wrap = ["--wrap=sleep 8", "--output=/dev/null", "--nodes=2", "--exclusive", "--partition=urgent"]
    nodes.ask("sbatch", *wrap)
    wait_until(lambda: {nodes.jobs()[number] for number in jobs} == {"PENDING"}, 180)


def lost_node(nodes: SlurmNodes, layout: Layout) -> None:
    nodes.lose("n1")
    wait_until(lambda: len(fake_trial.calls(layout)) > len(CELLS), 180)


@pytest.mark.parametrize("disturb", [controller_away, preemption, lost_node])
def test_trials_go_on_whatever_happens_to_the_cluster(
    write_study: Write,
    layout: Layout,
    nodes: SlurmNodes,
    whole: dict[str, bytes],
    meanwhile: Meanwhile,
    disturb: Callable[[SlurmNodes, Layout], None],
) -> None:
    meanwhile(lambda: disturb(nodes, layout))
    try:
        result, text = go(write_study(SHORT), layout, "slurm")
    finally:
        if disturb is lost_node:
            nodes.begin("n1")
    assert results(result, layout) == whole
    assert "tried again" not in text


def test_a_job_leaves_a_checkpoint_before_its_time_limit_and_is_requeued(
    write_study: Write, layout: Layout, tmp_path: Path
) -> None:
    study = write_study(SHORT.replace("arms:", "profile: smoke\narms:").replace("  strong: {kl.beta: 0.2}\n", ""))
    long = {"train.steps": 400, "runtime.checkpoint_updates": 10_000, "evaluate.prompts": 16}
    limit = tmp_path / "cluster.yaml"
    limit.write_text("time: 1\n")  # the warning comes within 30 s, in which 30 of 100 updates are possible

    def go_on(where: Layout, name: str, options: Path | None = None, trials: str | None = None) -> StudyResult:
        return run_study(study, where, None, long, executor(name, 1, options), 1, Console(quiet=True), trials=trials)

    elsewhere = Layout(tmp_path / "whole")
    elsewhere.root.mkdir()
    whole = results(go_on(elsewhere, "processes"), elsewhere)
    copy_upstream(elsewhere.store, layout.store, "reference")
    assert results(go_on(layout, "slurm", limit, "patient_trial"), layout) == whole
    (log,) = (layout.study("small", "smoke").path / "log").glob("hand-*.txt")
    assert "DUE TO JOB REQUEUE" in log.read_text()  # written there by SLURM's daemon


def test_what_sbatch_refuses_is_an_error_of_the_user(write_study: Write, layout: Layout, tmp_path: Path) -> None:
    options = tmp_path / "cluster.yaml"
    options.write_text("partition: mian\n")
    layout.root.mkdir(parents=True)
    hire, small = executor("slurm", 1, options), {"train.steps": 64}
    with pytest.raises(UserError, match=r"sbatch refuses.*[iI]nvalid partition .*\(--cluster\)"):
        run_study(write_study(SHORT), layout, None, small, hire, 1, Console(quiet=True), trials="fake_trial")
