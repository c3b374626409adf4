"""What the launcher asks of SLURM and makes of its answers; the answers are recorded ones, of SLURM 22.05."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from light_jobs import finished, light_job, run_jobs, wait_for

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.execution import executors, slurm, slurm_commands
from studies.execution.file_executor import Ended
from studies.execution.job_folder import JobFolder
from studies.execution.jobs import Finished, Job
from studies.execution.slurm import Slurm
from studies.execution.slurm_commands import Away, Full, Refused
from studies.execution.slurm_options import SlurmOptions

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
LIMIT = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size"
    " and/or time limits)"
)


class Queue:
    """SLURM, as far as its commands answer: `jobs` is what squeue lists, as (state, status, reason)."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, int, str]] = {}
        self.names: dict[str, str] = {}
        self.accounts: list[str] = []
        self.asked: list[tuple[str, ...]] = []
        self.scripts: list[str] = []
        self.fault: Exception | None = None
        self.refuses: dict[str, Exception] = {}

    def ask(self, *command: str, script: str | None = None) -> str:
        self.asked.append(command)
        fault = self.fault or self.refuses.get(command[0])
        if fault is not None:
            raise fault
        return getattr(self, f"_{command[0]}")(command, script)

    def count(self, name: str) -> int:
        return sum(command[0] == name for command in self.asked)

    def _sbatch(self, command: tuple[str, ...], script: str) -> str:
        number = str(len(self.scripts) + 11)
        self.scripts.append(script)
        self.jobs[number] = ("PENDING", 0, "Priority")
        self.names[number] = next(one for one in command if one.startswith("--job-name=")).removeprefix("--job-name=")
        return f"{number};cluster\n"

    def _squeue(self, command: tuple[str, ...], script: None) -> str:
        lines = (f"{n}|{s}|{e}|{r}|{self.names.get(n, 'ablate x'):<255}" for n, (s, e, r) in self.jobs.items())
        return "\n".join(lines)

    def _sacct(self, command: tuple[str, ...], script: None) -> str:
        return "\n".join(self.accounts)

    def _scancel(self, command: tuple[str, ...], script: None) -> str:
        for number in command:
            if number in self.jobs:
                self.jobs[number] = ("CANCELLED", 0, "None")
        return ""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(slurm_commands, "ask", queue.ask)
    return queue


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def launcher(queue: Queue, clock: Clock, told: list[str]) -> Slurm:
    return Slurm(SlurmOptions(), told.append, clock)


@pytest.fixture
def job(layout: Layout) -> Job:
    return light_job(layout)


@pytest.fixture
def folder(job: Job) -> JobFolder:
    return JobFolder(job.folder)


def digest(job: Job) -> str:
    return slurm.title(job).rpartition(" ")[2]


def look(launcher: Slurm, clock: Clock, *names: str) -> None:
    """As long afterwards as it takes until the queue is asked again."""
    clock.now += slurm.LAST_LOOK + 1
    launcher.wait(names, 0.0)


def test_a_job_is_submitted_with_what_its_trial_needs(
    launcher: Slurm, queue: Queue, job: Job, folder: JobFolder
) -> None:
    assert launcher.start(job, folder) == f"11 weak seed 0 {digest(job)}"
    command = queue.asked[0]
    assert command[:2] == ("sbatch", "--parsable")
    assert {f"--job-name=ablate weak seed 0 {digest(job)}", "--requeue", "--nodes=1", "--open-mode=append"} < set(
        command
    )
    assert {f"--output={job.log}", "--signal=B:USR1@300"} < set(command)
    assert folder.read().outlives
    assert folder.read().environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert str(folder.path) in queue.scripts[0]


def test_the_output_root_is_tested_once_and_before_anything_is_submitted(
    launcher: Slurm, queue: Queue, job: Job, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = []

    def test(root: Path) -> None:
        tested.append(root)
        if len(tested) == 1:
            raise UserError("it has no locks")

    monkeypatch.setattr(slurm, "check_here", test)
    with pytest.raises(UserError, match="no locks"):
        launcher.start(job, folder)
    assert (queue.asked, folder.path.exists()) == ([], False)
    assert [launcher.start(job, folder), launcher.start(job, folder)] == [f"{n} {slurm.title(job)}" for n in (11, 12)]
    assert tested == [job.layout.root] * 2


def test_a_percent_sign_in_a_path_stays_one(layout: Layout) -> None:
    job = light_job(Layout(layout.root / "50%j"))
    assert f"--output={layout.root}/50%%j/log/0.txt" in slurm.arguments(job, SlurmOptions())


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        (("PENDING", 0, "Resources"), "queued"),
        (("SUSPENDED", 0, "None"), "queued"),
        (("RUNNING", 0, "None"), "running"),
        (("COMPLETING", 0, "None"), "running"),
        (("CANCELLED", 15, "None"), Ended("job 11 was cancelled", interrupted=True)),
        (
            ("FAILED", 3 << 8, "NonZeroExitCode"),
            Ended("job 11 ended as FAILED, reason NonZeroExitCode, exit code 3, and left no result"),
        ),
        (
            ("FAILED", 137 << 8, "NonZeroExitCode"),
            Ended(
                "job 11 ended as FAILED, reason NonZeroExitCode, exit code 137 (often: out of memory), and left no"
                " result"
            ),
        ),
        (
            ("FAILED", 11, "JobLaunchFailure"),
            Ended("job 11 ended as FAILED, reason JobLaunchFailure, signal 11, and left no result"),
        ),
        (
            ("OUT_OF_MEMORY", 9, "OutOfMemory"),
            Ended(
                "job 11 was killed: out of memory; ask for more with caps.memory_gib, or with mem (--cluster)",
            ),
        ),
        (
            ("FAILED", 76 << 8, "NonZeroExitCode"),
            Ended(
                "the time limit of job 11 is too short: no stage and no update of the training came to an end within"
                " it; ask for more with time (--cluster)"
            ),
        ),
    ],
)
def test_states(
    launcher: Slurm,
    queue: Queue,
    clock: Clock,
    job: Job,
    folder: JobFolder,
    state: tuple[str, int, str],
    seen: object,
) -> None:
    name = launcher.start(job, folder)
    queue.jobs["11"] = state
    look(launcher, clock, name)
    assert launcher.state(name) == seen


@pytest.mark.parametrize(("code", "kind"), [(130, "interrupted"), (74, "disk_full")])
def test_exit_codes_of_the_worker_are_known(
    launcher: Slurm, queue: Queue, clock: Clock, job: Job, folder: JobFolder, code: int, kind: str
) -> None:
    name = launcher.start(job, folder)
    queue.jobs["11"] = ("FAILED", code << 8, "NonZeroExitCode")
    look(launcher, clock, name)
    state = launcher.state(name)
    assert isinstance(state, Ended)
    assert [field for field in ("interrupted", "disk_full") if getattr(state, field)] == [kind]


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        ("TIMEOUT", 9, "job 11 ran into its time limit"),
        ("PREEMPTED", 15, "job 11 was preempted"),
        ("NODE_FAIL", 0, "job 11 lost its node"),
        ("BOOT_FAIL", 0, "job 11 got a node that did not start"),
        ("FAILED", slurm.LEFT << 8, "job 11 had to leave"),
    ],
)
def test_what_is_no_fault_of_the_trial_goes_on_in_a_new_job(
    launcher: Slurm, queue: Queue, clock: Clock, job: Job, folder: JobFolder, state: str, status: int, said: str
) -> None:
    name = launcher.start(job, folder)
    queue.jobs["11"] = (state, status, "None")
    look(launcher, clock, name)
    assert launcher.state(name) == Ended(said, lost=True)


def test_a_job_that_a_node_could_not_start_is_taken_out_of_the_queue_and_goes_on(
    launcher: Slurm, queue: Queue, clock: Clock, job: Job, folder: JobFolder
) -> None:
    name = launcher.start(job, folder)
    queue.jobs["11"] = ("PENDING", 0, "launch failed requeued held")
    for _ in range(2):
        look(launcher, clock, name)
        assert launcher.state(name) == Ended("a node could not start job 11", lost=True)
    assert queue.jobs["11"][0] == "CANCELLED"
    assert queue.count("scancel") == 1


def test_the_queue_is_asked_once_for_all_and_ever_less_often(
    launcher: Slurm, queue: Queue, clock: Clock, layout: Layout
) -> None:
    names = []
    job = light_job(layout)
    for number in range(300):
        names.append(launcher.start(job, JobFolder(layout.root / f"jobs/{number}")))
    began, times = clock.now, []
    while clock.now < began + 3600:
        before = queue.count("squeue")
        launcher.wait(names, 0.0)
        assert [launcher.state(name) for name in names[:3]] == ["queued"] * 3
        if queue.count("squeue") > before:
            times.append(clock.now)
        clock.now += 1.0
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[-1] == slurm.LAST_LOOK
    assert gaps[0] < 10
    assert len(times) < 75
    assert queue.count("sacct") == 0
    queue.jobs["11"] = ("RUNNING", 0, "None")
    look(launcher, clock, *names)
    before = queue.count("squeue")
    clock.now += slurm.FIRST_LOOK
    launcher.wait(names, 0.0)
    assert queue.count("squeue") == before + 1


def test_the_controller_may_be_away_for_long(
    launcher: Slurm, queue: Queue, clock: Clock, told: list[str], layout: Layout
) -> None:
    job, later = light_job(layout, 0), light_job(layout, 1)
    name = launcher.start(job, JobFolder(job.folder))
    queue.jobs["11"] = ("RUNNING", 0, "None")
    look(launcher, clock, name)
    assert launcher.state(name) == "running"
    queue.fault = Away(AWAY)
    look(launcher, clock, name)
    assert launcher.state(name) == "running"
    unsent = launcher.start(later, JobFolder(later.folder))
    JobFolder(later.folder).name_worker(unsent)
    more = launcher.start(light_job(layout, 2), JobFolder(layout.root / "jobs/2"))
    assert queue.count("sbatch") == 2  # one that waits is enough to know
    launcher.forget(more)
    for _ in range(20):
        look(launcher, clock, name)
        assert launcher.state(unsent) == "queued"
    assert launcher.state(name) == "queued"  # nothing is known of it: its silence counts for nothing
    assert len(told) == 1
    queue.fault = None
    look(launcher, clock, name, unsent)
    assert launcher.state(name) == "running"
    assert launcher.state(unsent) == "queued"
    assert JobFolder(later.folder).worker == f"12 {slurm.title(later)}"
    queue.jobs["12"] = ("RUNNING", 0, "None")
    look(launcher, clock, name, unsent)
    assert launcher.state(unsent) == "running"
    assert told[1:] == ["SLURM answers, and all jobs are submitted"]


def test_a_full_queue_is_waited_for_and_a_limit_that_never_fits_is_an_error(
    launcher: Slurm, queue: Queue, told: list[str], layout: Layout
) -> None:
    job = light_job(layout)
    queue.refuses["sbatch"] = Full(LIMIT)
    with pytest.raises(UserError, match=r"sbatch refuses weak seed 0: .*time limits\); .*--cluster"):
        launcher.start(job, JobFolder(job.folder))
    queue.jobs["7"] = ("RUNNING", 0, "None")
    assert launcher.state(launcher.start(job, JobFolder(job.folder))) == "queued"
    assert told == [f"weak seed 0 is not submitted yet: {LIMIT}"]


def test_a_refusal_is_an_error_of_the_user(launcher: Slurm, queue: Queue, job: Job, folder: JobFolder) -> None:
    queue.refuses["sbatch"] = Refused("Invalid account or account/partition combination specified")
    with pytest.raises(UserError, match=r"sbatch refuses weak seed 0: Invalid account .* \(--cluster\)"):
        launcher.start(job, folder)


def test_another_drivers_job_is_looked_up_at_once_and_a_stranger_is_not_taken_for_it(
    launcher: Slurm, queue: Queue, clock: Clock, told: list[str]
) -> None:
    queue.jobs = {"5": ("RUNNING", 0, "None"), "6": ("RUNNING", 0, "None")}
    queue.names = {"5": "ablate strong seed 3 3fa2c1", "6": "interactive"}
    assert launcher.state("5 strong seed 3 3fa2c1") == launcher.state("5") == "running"
    strange = ("6 weak seed 0 3fa2c1", "6", "9", "", f"{slurm.UNSENT}: /somewhere")
    assert [launcher.state(name) for name in strange] == ["unknown"] * len(strange)
    assert queue.count("squeue") == 1
    other = Ended("SLURM has lost job 5, and given its number to another one", lost=True)
    for name in ("5 weak seed 3 3fa2c1", "5 strong seed 30 3fa2c1", "5 strong seed 3 000000"):
        assert launcher.state(name) == other
    queue.jobs["5"] = ("PENDING", 0, "BeginTime")
    look(launcher, clock, "5")
    launcher.state("5")
    assert told == ["strong seed 3: job 5 waits in the queue again and goes on from its checkpoint"]


def test_what_the_queue_has_forgotten_is_in_the_accounting(launcher: Slurm, queue: Queue, clock: Clock) -> None:
    queue.accounts = ["5|CANCELLED by 0|0:15|ablate weak seed 0", "6|FAILED|3:0|ablate weak seed 1"]
    assert launcher.state("5") == Ended("job 5 was cancelled", interrupted=True)
    clock.now += 100
    assert launcher.state("6") == Ended("job 6 ended as FAILED, reason none, exit code 3, and left no result")


def test_a_job_that_a_killed_controller_lost_goes_on_if_it_had_not_begun(
    launcher: Slurm, queue: Queue, clock: Clock, job: Job, folder: JobFolder
) -> None:
    """A controller that is killed forgets the last seconds; of a job that began, its worker's files tell."""
    begun = launcher.start(job, folder)
    folder.begin()
    queue.jobs.clear()
    look(launcher, clock, begun)
    assert launcher.state(begun) == "unknown"
    folder.alive_file.unlink()
    lost = launcher.start(job, folder)
    queue.jobs.clear()
    look(launcher, clock, lost)
    assert launcher.state(lost) == Ended("SLURM has lost job 12, which had not begun", lost=True)


def test_a_number_that_a_killed_controller_gives_out_again_is_two_jobs(
    launcher: Slurm, queue: Queue, clock: Clock, layout: Layout
) -> None:
    """The two may differ in a last digit, or in their folders alone; and the lost one may have begun."""
    jobs = [replace(light_job(layout, number), label=f"weak seed {1 + 9 * number}") for number in range(2)]
    lost = launcher.start(jobs[0], JobFolder(jobs[0].folder))
    queue.jobs.clear()
    queue.scripts.clear()
    again = launcher.start(jobs[1], JobFolder(jobs[1].folder))
    assert again.split(" ")[0] == lost.split(" ")[0] == "11"
    queue.jobs["11"] = ("RUNNING", 0, "None")
    look(launcher, clock, lost, again)
    JobFolder(jobs[0].folder).begin()
    assert launcher.state(lost) == Ended("SLURM has lost job 11, and given its number to another one", lost=True)
    launcher.forget(lost)
    launcher.end([lost])  # the other one's job is left alone
    assert queue.count("scancel") == 0
    assert launcher.state(again) == "running"
    launcher.end([again])
    assert queue.jobs["11"][0] == "CANCELLED"


def test_who_waits_for_ever_is_told_why(
    launcher: Slurm, queue: Queue, clock: Clock, told: list[str], job: Job, folder: JobFolder
) -> None:
    name = launcher.start(job, folder)
    for reason in ("Priority", "PartitionTimeLimit", "PartitionTimeLimit"):
        queue.jobs["11"] = ("PENDING", 0, reason)
        look(launcher, clock, name)
        launcher.state(name)
    assert told == ["weak seed 0: job 11 waits in the queue for PartitionTimeLimit"]


def test_a_job_that_hangs_says_where_before_it_is_ended(
    launcher: Slurm, queue: Queue, monkeypatch: pytest.MonkeyPatch, job: Job, folder: JobFolder
) -> None:
    monkeypatch.setattr(slurm, "TRACEBACK_SECONDS", 0.0)
    name = launcher.start(job, folder)
    launcher.end([name], hung=True)
    assert [command for command in queue.asked if command[0] == "scancel"] == [
        ("scancel", "--quiet", "--full", "--signal=ABRT", "11"),
        ("scancel", "--quiet", "11"),
    ]


def test_no_more_jobs_than_slots_are_in_the_queue(
    queue: Queue, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def squeue(self: Queue, command: tuple[str, ...], script: None) -> str:
        nonlocal most
        most = max(most, len(self.jobs))
        for number in list(self.jobs):
            JobFolder(layout.root / f"jobs/{int(number) - 11}").end(finished())
            del self.jobs[number]
        return ""

    monkeypatch.setattr(Queue, "_squeue", squeue)
    monkeypatch.setattr(slurm, "FIRST_LOOK", 0.0)
    ends = run_jobs(Slurm(SlurmOptions(), print), *(light_job(layout, number) for number in range(6)))
    assert [type(end) for end in ends] == [Finished] * 6
    assert most == 2


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (AWAY, Away),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Away),
        ("scancel: error: Kill job error on job id 3: Unable to contact slurm controller (connect failure)", Away),
        ("Unexpected message received for job 3", Away),
        ("sbatch: error: Batch job submission failed: Slurm backup controller in standby mode", Away),
        ("error: If munged is up, restart with --num-threads=10\nProtocol authentication error", Away),
        (LIMIT, Full),
        ("sbatch: error: invalid partition specified: nope\nsbatch: error: Invalid partition name specified", Refused),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid", Refused),
        ("Invalid job id specified for job 99", Refused),
    ],
)
def test_answers_of_the_commands(said: str, kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind) as raised:
        slurm_commands.ask(sys.executable, "-c", f"import sys; print({said!r}, file=sys.stderr); sys.exit(1)")
    assert str(raised.value) == said.splitlines()[-1]


def test_a_command_that_is_missing_or_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no 'sbatch-of-nobody' on this machine: --executor slurm has to be started"):
        slurm_commands.ask("sbatch-of-nobody")
    monkeypatch.setattr(slurm_commands, "ANSWER_SECONDS", 0.1)
    with pytest.raises(Away, match=r"sleep has not answered within 0\.1 s"):
        slurm_commands.ask("sleep", "30")


def test_options_of_a_cluster_need_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the executor 'processes' has no options; those of slurm, ray do"):
        executors.executor("processes", tmp_path / "cluster.yaml")
    with pytest.raises(UserError, match="no executor 'slrum'; did you mean 'slurm'"):
        executors.executor("slrum")


# The script of a job, with a stand-in for the worker.

WORKER = """
import os, signal, sys, time
from pathlib import Path
asked = []
leave = Path(os.environ["ABLATE_LEAVE"])
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
code, terms = int(os.environ["CODE"]), int(os.environ["TERMS"])
assert sys.argv[1:3] == ["-m", "studies.execution.worker"], sys.argv
assert not leave.exists()
Path(sys.argv[3], "up").touch()
while len(asked) + leave.exists() < terms:
    time.sleep(0.02)
sys.exit(code)
"""


@pytest.fixture
def begin(job: Job, folder: JobFolder, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the script of a job, whose worker ends with a code after so many SIGTERM."""
    begun: list[subprocess.Popen[bytes]] = []
    folder.create(job, outlives=True, environment={})
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "worker.py").write_text(WORKER)
    for name, text in {
        "worker": f'exec {sys.executable} {tmp_path}/worker.py "$@"',
        "scontrol": f'echo "$@" >> {tmp_path}/asked; [ -e {tmp_path}/back ]',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def start(code: int, terms: int = 0) -> subprocess.Popen[bytes]:
        text = slurm.script(job, folder, SlurmOptions()).replace(sys.executable, str(programs / "worker"))
        text = (
            text.replace("sleep 10;", "sleep 0.1;")
            .replace("sleep 60 ", "sleep 0.1 ")
            .replace("(sleep 285;", "(sleep 0.5;")
        )
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "11"}
        environment |= {"CODE": str(code), "TERMS": str(terms)}
        process = subprocess.Popen(["sh"], stdin=subprocess.PIPE, env=environment, start_new_session=True)
        assert process.stdin is not None
        process.stdin.write(text.encode())
        process.stdin.close()
        begun.append(process)
        return process

    yield start
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("code", [0, 2, 75, 130])
def test_the_script_runs_its_worker_when_it_is_named_and_passes_its_exit_code_on(
    begin: Callable[..., subprocess.Popen[bytes]], folder: JobFolder, code: int, tmp_path: Path
) -> None:
    script = begin(code)
    time.sleep(0.3)
    assert not (folder.path / "up").exists()
    folder.name_worker("11 weak seed 0")
    assert script.wait(120) == code
    assert (folder.path / "up").exists()
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("code", "terms", "ends_as", "requeued"),
    [(75, 1, 75, True), (75, 2, 75, True), (130, 2, 76, False), (0, 1, 0, False)],
)
def test_before_the_time_limit_the_worker_leaves_and_the_script_requeues_the_job(
    begin: Callable[..., subprocess.Popen[bytes]],
    folder: JobFolder,
    tmp_path: Path,
    code: int,
    terms: int,
    ends_as: int,
    requeued: bool,
) -> None:
    folder.name_worker("11 weak seed 0")
    (folder.path / "leave").touch()  # of an earlier start
    script = begin(code, terms)
    wait_for((folder.path / "up").exists)
    script.send_signal(signal.SIGUSR1)
    if requeued:  # until the controller answers
        wait_for(lambda: (tmp_path / "asked").exists() and (tmp_path / "asked").read_text().count("\n") > 1)
        (tmp_path / "back").touch()
    assert script.wait(120) == ends_as
    asked = (tmp_path / "asked").read_text().splitlines() if requeued else []
    assert set(asked) == ({"requeue 11"} if requeued else set())


def test_at_preemption_the_script_waits_for_its_worker_and_asks_for_nothing(
    begin: Callable[..., subprocess.Popen[bytes]], folder: JobFolder, tmp_path: Path
) -> None:
    folder.name_worker("11 weak seed 0")
    script = begin(75, 1)
    wait_for((folder.path / "up").exists)
    os.killpg(script.pid, signal.SIGTERM)  # SLURM signals every process of a job
    assert script.wait(120) == 75
    assert not (tmp_path / "asked").exists()
