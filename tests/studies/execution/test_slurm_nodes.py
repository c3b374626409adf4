"""Studies on a real SLURM of two nodes: nothing that happens to jobs, nodes or daemons is lost or done twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_trial
import pytest
import slurm_nodes
from helpers import mind_interrupts
from light_jobs import PYTHONPATH
from light_study import SMALL, go, job_folders, results
from rich.console import Console
from slurm_nodes import SlurmNodes, wait_for

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.definition.schema import Study
from studies.execution import executors, slurm
from studies.execution.driver import StudyResult, run_study
from studies.execution.job_folder import JobFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_mlflow"),
    pytest.mark.skipif(slurm_nodes.missing() is not None, reason=f"{slurm_nodes.missing()}"),
]
STUDY = fake_trial.STUDY.replace("seeds: [0, 1]", "seeds: [0]")
CELLS = ["0.01/0", "0.2/0"]
HALF_WAY = 300.0
"""Seconds until both trials stand half-way, at most: a busy machine starts two interpreters in this time."""
SCRIPT = """
import sys
from pathlib import Path
from rich.console import Console
from pipeline.run.layout import Layout
from studies.execution import executors, slurm
from studies.execution.driver import run_study
from studies.definition.schema import load_study
from studies.tracking import study_runs
study_runs.StudySinks._ready = lambda self: False
study_runs.StudySinks.open = lambda self: None
slurm.FIRST_LOOK, slurm.LAST_LOOK = 0.5, 2.0
study, layout = load_study(sys.argv[1]), Layout(Path(sys.argv[2]))
engine = executors.executor("slurm", None, print)
run_study(study, layout, None, {small!r}, engine, 2, Console(), trials="fake_trial")
"""


@pytest.fixture
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    """A SLURM of the test's own: what a test does to daemons and jobs must not reach the next one."""
    with slurm_nodes.slurm_nodes(tmp_path_factory.mktemp("slurm") / "run") as started:
        yield started


@pytest.fixture(autouse=True)
def _watchful(nodes: SlurmNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(nodes.configuration))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setattr(slurm, "FIRST_LOOK", 0.5)
    monkeypatch.setattr(slurm, "LAST_LOOK", 2.0)
    monkeypatch.setattr(slurm.Slurm, "lag_seconds", 2.0)


@pytest.fixture(autouse=True)
def _hasty(nodes: SlurmNodes) -> Iterator[None]:
    """SLURM has jobs that are requeued wait for two minutes."""
    with nodes.hastening():
        yield


def half_way(layout: Layout) -> bool:
    files = [folder.events_file for folder in job_folders(layout)]
    return all(file.exists() and b'"progress"' in file.read_bytes() for file in files)


@pytest.fixture
def whole(write_study: Callable[..., Study], tmp_path: Path) -> dict[str, bytes]:
    """The results of processes on this machine."""
    layout = Layout(tmp_path / "whole")
    return results(go(write_study(STUDY), layout, "processes")[0], layout)


@pytest.fixture
def meanwhile(layout: Layout, nodes: SlurmNodes) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Does something as soon as both trials stand half-way, then lets them go on."""
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, gated=CELLS)
    faults, threads = list[BaseException](), list[threading.Thread]()

    def act(what: Callable[[], object]) -> None:
        try:
            wait_for(lambda: half_way(layout), HALF_WAY)
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


def run(study: Study, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> tuple[StudyResult, str, list[str]]:
    """The study, what was printed, and what SLURM's launcher told."""
    told: list[str] = []
    monkeypatch.setitem(executors.EXECUTORS, "told", lambda: executors.executor("slurm", None, told.append))
    return *go(study, layout, "told"), told


def numbers(layout: Layout) -> list[str]:
    return [folder.worker.partition(" ")[0] for folder in job_folders(layout)]


def test_a_whole_study_has_the_bytes_of_processes(
    write_study: Callable[..., Study], layout: Layout, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, text, told = run(write_study(STUDY), layout, monkeypatch)
    assert results(result, layout) == whole
    assert (told, fake_trial.calls(layout)) == ([], CELLS) or fake_trial.calls(layout) == CELLS[::-1]
    assert not layout.study("small", "tiny").jobs.exists()
    assert not list((layout.study("small", "tiny").path / "log").glob("*"))
    assert "2 of 2 trials" in text


def test_scancel_interrupts_and_the_same_command_goes_on(
    write_study: Callable[..., Study],
    layout: Layout,
    nodes: SlurmNodes,
    whole: dict[str, bytes],
    meanwhile: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cancel() -> None:
        number = numbers(layout)[0]
        nodes.ask("scancel", number)
        wait_for(lambda: nodes.jobs()[number] == "CANCELLED", 60)
        time.sleep(1)

    meanwhile(cancel)
    with pytest.raises(KeyboardInterrupt):
        run(write_study(STUDY), layout, monkeypatch)
    study = layout.study("small", "tiny")
    assert [study.trial_file(arm, 0).exists() for arm in ("weak", "strong")] == [False, True]
    result, text, _ = run(write_study(STUDY), layout, monkeypatch)
    assert results(result, layout) == whole
    assert "tried again" not in text
    assert fake_trial.calls(layout).count(CELLS[0]) == 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_same_command_takes_jobs_over(
    write_study: Callable[..., Study],
    layout: Layout,
    nodes: SlurmNodes,
    whole: dict[str, bytes],
    how: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout.root.mkdir(parents=True)
    fake_trial.control(layout, gated=CELLS)
    study = write_study(STUDY)
    driver = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(small=SMALL), study.source, str(layout.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=mind_interrupts,
    )
    wait_for(lambda: half_way(layout), HALF_WAY)
    jobs = numbers(layout)
    os.killpg(driver.pid, how)
    driver.communicate(timeout=60)
    assert [nodes.jobs()[number] for number in jobs] == ["RUNNING", "RUNNING"]
    (layout.root / "gate").touch()
    result, _, _ = run(study, layout, monkeypatch)
    assert results(result, layout) == whole
    assert sorted(fake_trial.calls(layout)) == CELLS


def test_a_slurmd_that_is_killed_and_comes_back_loses_nothing(
    write_study: Callable[..., Study],
    layout: Layout,
    nodes: SlurmNodes,
    whole: dict[str, bytes],
    meanwhile: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def restart() -> None:
        for node in slurm_nodes.NODES:
            nodes.kill(node)
        time.sleep(3)
        for node in slurm_nodes.NODES:
            nodes.begin(node)

    meanwhile(restart)
    result, text, _ = run(write_study(STUDY), layout, monkeypatch)
    assert results(result, layout) == whole
    assert "tried again" not in text  # the jobs have gone on, or SLURM has requeued them


def test_trials_go_on_while_the_controller_is_away(
    write_study: Callable[..., Study],
    layout: Layout,
    nodes: SlurmNodes,
    whole: dict[str, bytes],
    meanwhile: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def be_away() -> None:
        time.sleep(8)  # it writes down every few seconds what it knows
        nodes.kill("slurmctld")
        time.sleep(25)
        (layout.root / "gate").touch()
        time.sleep(5)
        nodes.begin("slurmctld")

    monkeypatch.setattr(slurm, "STALE_SECONDS", 5.0)
    meanwhile(be_away)
    study = STUDY.replace("falsifiers:", "  later: {kl.beta: 0.1}\nfalsifiers:")
    result, text, told = run(write_study(study), layout, monkeypatch)
    assert {record.arm for record in result.records} == {"weak", "strong", "later"}
    assert "tried again" not in text
    assert sum("does not answer" in line or "not submitted yet" in line for line in told) == 1
    assert "SLURM answers, and all jobs are submitted" in told
    assert whole.items() <= results(result, layout).items()


def test_preempted_jobs_go_on(
    write_study: Callable[..., Study],
    layout: Layout,
    nodes: SlurmNodes,
    whole: dict[str, bytes],
    meanwhile: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def preempt() -> None:
        jobs = numbers(layout)
        wrap = ["--wrap=sleep 8", "--output=/dev/null", "--nodes=2", "--exclusive", "--partition=urgent"]
        nodes.ask("sbatch", *wrap)
        wait_for(lambda: {nodes.jobs()[number] for number in jobs} == {"PENDING"}, 180)

    meanwhile(preempt)
    result, text, told = run(write_study(STUDY), layout, monkeypatch)
    assert results(result, layout) == whole
    assert "tried again" not in text
    assert sum("waits in the queue again" in line for line in told) == 2


def test_jobs_of_a_node_that_dies_go_on_elsewhere(
    write_study: Callable[..., Study],
    layout: Layout,
    nodes: SlurmNodes,
    whole: dict[str, bytes],
    meanwhile: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose_one() -> None:
        nodes.lose("n1")
        wait_for(lambda: len(fake_trial.calls(layout)) > len(CELLS), 180)

    meanwhile(lose_one)
    try:
        result, text, _ = run(write_study(STUDY), layout, monkeypatch)
    finally:
        nodes.begin("n1")
    assert results(result, layout) == whole
    assert "tried again" not in text


def test_a_trial_leaves_a_checkpoint_before_its_time_limit_and_is_requeued(
    write_study: Callable[..., Study], layout: Layout, nodes: SlurmNodes, tmp_path: Path
) -> None:
    study = write_study(STUDY.replace("arms:", "profile: smoke\narms:").replace("  strong: {kl.beta: 0.2}\n", ""))
    long = {"train.steps": 6_000, "runtime.checkpoint_updates": 10_000, "evaluate.prompts": 16}
    limit = tmp_path / "cluster.yaml"
    limit.write_text("time: 1\n")  # the warning comes within 30 s
    told: list[str] = []

    def go_on(where: Layout, engine: Any) -> StudyResult:
        return run_study(study, where, None, long, engine, 1, Console(quiet=True))

    elsewhere = Layout(tmp_path / "whole")
    elsewhere.root.mkdir()
    whole = results(go_on(elsewhere, executors.executor("processes")), elsewhere)
    for stage in ("prompts", "sft", "reward", "reference"):
        shutil.copytree(elsewhere.store / stage, layout.store / stage)
    result = go_on(layout, executors.executor("slurm", limit, told.append))
    assert results(result, layout) == whole
    assert all("waits in the queue again and goes on from its checkpoint" in line for line in told)
    log = layout.study("small", "smoke").path / "log" / "weak__seed0.txt"
    assert "DUE TO JOB REQUEUE" in log.read_text()  # as SLURM's daemon says there


def test_what_sbatch_refuses_is_an_error_of_the_user(
    write_study: Callable[..., Study], layout: Layout, tmp_path: Path
) -> None:
    asked = tmp_path / "cluster.yaml"
    asked.write_text("partition: mian\n")
    with pytest.raises(UserError, match=r"sbatch refuses .*[iI]nvalid partition .*\(--cluster\)"):
        run_study(
            write_study(STUDY),
            layout,
            None,
            SMALL,
            executors.executor("slurm", asked),
            1,
            Console(quiet=True),
            trials="fake_trial",
        )


def test_a_job_that_no_driver_waits_for_does_nothing(layout: Layout, nodes: SlurmNodes, tmp_path: Path) -> None:
    """A submission whose answer was lost: the driver has submitted the trial again by then."""
    from light_jobs import light_job

    from studies.execution.slurm_options import SlurmOptions

    job = light_job(layout)
    folder = JobFolder(job.folder)
    folder.create(job, outlives=True, environment={})
    folder.name_worker("another")
    text = slurm.script(job, folder, SlurmOptions()).replace(f"-ge {slurm.NAMED_SECONDS}", "-ge 2")
    done = subprocess.run(["sh"], input=text, text=True, env={**os.environ, "SLURM_JOB_ID": "17"}, timeout=60)
    assert done.returncode == 0
    assert not folder.outcome_file.exists()
    assert not folder.alive_file.exists()
