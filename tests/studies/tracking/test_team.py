"""A server for a team: MLflow's own on PostgreSQL, disturbed while studies run. Nothing is lost, nothing is double, and
no trial waits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_trial
import pytest
from fake_trial import STUDY
from helpers import mind_interrupts
from mlflow_servers import Postgres, Proxy, Server, missing_postgres, proxy_to, wait_until
from series import Series, compared, series_differ, shown, written

from pipeline.run.layout import Layout, StudyFolder
from pipeline.run.metrics_log import MetricsLog
from studies.tracking.trial_run import MlflowSink
from studies.tracking.ui import elsewhere

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "studies")))
SCRIPT = """
import sys
from pathlib import Path
from rich.console import Console
from pipeline.run.layout import Layout
from studies.definition.schema import load_study
from studies.execution import executors, processes
from studies.execution.driver import run_study
processes.PRELOAD = ["studies.execution.processes", "pipeline.run.metrics_log"]
study, layout, steps = load_study(sys.argv[1]), Layout(Path(sys.argv[2])), int(sys.argv[3])
def drawn(folder):
    print("report drawn", flush=True)
executor = executors.executor("processes")
settings = {"train.steps": steps}
run_study(study, layout, None, settings, executor, 2, Console(width=300), trials="fake_trial", after=drawn)
"""
STARTED: list[subprocess.Popen[str]] = []
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(missing_postgres()), reason=missing_postgres()),
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    postgres = Postgres()
    yield postgres
    postgres.end()


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    server = Server(postgres.database("team"), folder / "artifacts", folder / "log.txt")
    yield server
    server.kill()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxy_to(server.uri) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    """Of the study, and so of its experiment: the server is the same for all tests."""
    return f"small-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
            process.communicate()
    STARTED.clear()


def client(server: Server) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(server.uri)


@dataclass
class Driver:
    """A study with two workers, run by a command of its own."""

    folder: Path
    name: str
    uri: str
    steps: int = 160
    sleep: float = 0.5
    environment: dict[str, str] = field(default_factory=dict)
    text: str = STUDY

    def __post_init__(self) -> None:
        self.layout.root.mkdir(parents=True)
        self.file.write_text(self.text)
        fake_trial.control(self.layout, sleep=self.sleep)

    @property
    def layout(self) -> Layout:
        return Layout(self.folder / "out")

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def study(self) -> StudyFolder:
        return self.layout.study(self.name, "tiny")

    def start(self) -> subprocess.Popen[str]:
        return self._popen("-c", SCRIPT, str(self.file), str(self.layout.root), str(self.steps))

    def sync(self) -> str:
        process = self._popen(str(ROOT / "ablate.py"), "sync", str(self.file), "--out", str(self.layout.root))
        said = process.communicate(timeout=600)[0]
        assert process.returncode == 0, said
        return said

    def _popen(self, *command: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": PATHS, "MLFLOW_TRACKING_URI": self.uri, **self.environment}
        process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=mind_interrupts,
        )  # fmt: skip
        STARTED.append(process)
        return process

    def run(self) -> str:
        """To its end."""
        return ended(self.start())

    def wait_for_runs(self, at: Any) -> None:
        """Until some records have arrived."""

        def arrived() -> bool:
            experiment = at.get_experiment_by_name(self.name)
            runs = at.search_runs([experiment.experiment_id], "tags.arm != ''") if experiment else []
            return any("objective/scores" in run.data.metrics for run in runs)

        wait_until(arrived, "no record arrives", 300)


def ended(process: subprocess.Popen[str]) -> str:
    said = process.communicate(timeout=900)[0]
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "report drawn" in said
    return said


def check(driver: Driver, at: Any) -> None:
    assert list(series_differ(at, driver.study)) == []
    assert driver.study.records()


def test_two_drivers_with_four_workers(server: Server, tmp_path: Path, name: str) -> None:
    """On the same study, in folders of their own: the runs have the same names and identities."""
    drivers = [Driver(tmp_path / one, name, server.uri) for one in ("ann", "bob")]
    said = [ended(process) for process in [driver.start() for driver in drivers]]
    assert not [text for text in said if "MLflow did" in text or "MLflow has" in text]
    for driver in drivers:
        check(driver, client(server))
    assert "; 0 metrics were sent now" in drivers[0].sync()
    experiment = client(server).get_experiment_by_name(name)
    runs = client(server).search_runs([experiment.experiment_id])
    assert len(runs) == 2 * (1 + 4)
    artifacts = {one.path for one in client(server).list_artifacts(runs[0].info.run_id)}
    assert artifacts or runs[0].data.tags["identity"] == "study"
    lines = elsewhere(server.uri)
    assert lines[0].startswith(f"Runs go to the MLflow server at {server.uri}")
    assert f"Curves of {name}: {server.uri}/#/experiments/{experiment.experiment_id}/runs" in "\n".join(lines)


def test_a_server_and_its_database_that_are_killed_and_restarted(
    postgres: Postgres, server: Server, tmp_path: Path, name: str
) -> None:
    driver = Driver(tmp_path, name, server.uri, steps=480)
    process = driver.start()
    driver.wait_for_runs(client(server))
    server.kill()
    postgres.kill()
    time.sleep(8)
    postgres.start()
    server.start()
    ended(process)
    driver.sync()
    check(driver, client(server))


def test_a_driver_that_is_killed(server: Server, tmp_path: Path, name: str) -> None:
    driver = Driver(tmp_path, name, server.uri, steps=480)
    process = driver.start()
    driver.wait_for_runs(client(server))
    process.kill()
    process.communicate()
    time.sleep(3)  # workers notice
    driver.run()
    check(driver, client(server))


def test_the_smallest_and_the_largest_values_arrive(server: Server, tmp_path: Path, name: str) -> None:
    log, odd = tmp_path / "metrics.jsonl", (5e-324, -1e-300, 0.0, -0.1, 1.6e308, -1.6e308)
    with MetricsLog(log) as metrics:
        for step in range(600):
            metrics.append(step, {"objective/kl": odd[step % len(odd)], "policy/entropy": step / 7})
    run = MlflowSink(
        server.uri, None, name, tmp_path / "state.json", "odd", None, {}, {}, identity="key", origin="a" * 32
    )
    assert run.finish(log, "diverged", {}, {})
    histories = [client(server).get_metric_history(run.state.run_id, key) for key in ("objective/kl", "policy/entropy")]
    sent = Series((one.key, one.step, shown(one.value)) for history in histories for one in history)
    assert list(compared("odd", written(log), sent)) == []


def test_a_slow_server(server: Server, proxy: Proxy, tmp_path: Path, name: str) -> None:
    """5 s a call: all trials have ended, and the report is drawn, while MLflow still hears of the first ones."""
    text = STUDY.replace("seeds: [0, 1]", "seeds: [0]")
    quick = Driver(tmp_path / "quick", f"{name}-quick", server.uri, steps=64, sleep=0.1, text=text)
    quick.run()
    proxy.before = lambda method, path: time.sleep(5)
    slow = Driver(tmp_path / "slow", name, proxy.uri, steps=64, sleep=0.1, text=text)
    slow.run()
    check(slow, client(server))
    took = [_seconds_of_trials(one) for one in (quick, slow)]
    calls = [when for when, _ in proxy.requests]
    print(f"trials: {took[0]:.1f} s, slow {took[1]:.1f} s; {len(calls)} calls in {calls[-1] - calls[0]:.0f} s")
    last = max(path.stat().st_mtime for path in slow.study.trial_files())
    assert len([when for when in calls if when < last]) < len(calls) / 2
    assert took[1] < 60


def _seconds_of_trials(driver: Driver) -> float:
    """From the first note of a trial to the last record."""
    return (
        max(path.stat().st_mtime for path in driver.study.trial_files())
        - driver.study.registration_file.stat().st_mtime
    )


def test_lost_answers(server: Server, proxy: Proxy, tmp_path: Path, name: str) -> None:
    """The server does what it is asked, and each third answer is lost, that to a created run the first two times."""
    created: list[str] = []

    def loses(method: str, path: str) -> bool:
        if path.endswith("runs/create"):
            created.append(path)
            return len(created) % 3 != 0
        return len(proxy.requests) % 3 == 0

    proxy.loses = loses
    driver = Driver(tmp_path, name, proxy.uri)
    driver.run()
    for _ in range(40):
        with suppress(AssertionError):
            driver.sync()
            break
    proxy.loses = lambda method, path: False
    driver.sync()
    check(driver, client(server))
    assert len(created) > 5


def test_a_server_that_fails_now_and_then(server: Server, proxy: Proxy, tmp_path: Path, name: str) -> None:
    failing = range(5, 60)
    proxy.before = lambda method, path: 500 if len(proxy.requests) in failing else None
    driver = Driver(tmp_path, name, proxy.uri, environment={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"})
    said = driver.run()
    assert said.count("MLflow did not take") <= 2
    proxy.before = lambda method, path: None
    driver.sync()
    check(driver, client(server))


def test_a_database_that_is_full(postgres: Postgres, tmp_path: Path, name: str) -> None:
    """PostgreSQL refuses every write, as it does on a disk without space, and reads go on."""
    server = Server(postgres.database("crowded"), tmp_path / "artifacts", tmp_path / "log.txt")
    try:
        driver = Driver(tmp_path / "driver", name, server.uri, steps=320)
        process = driver.start()
        driver.wait_for_runs(client(server))
        refuse = "alter database crowded set default_transaction_read_only = {}"
        postgres.sql(refuse.format("on"), "postgres")
        postgres.sql("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'crowded'", "postgres")
        said = ended(process)
        assert "`ablate sync` sends it later" in said
        assert list(series_differ(client(server), driver.study)) != []
        postgres.sql(refuse.format("off"), "postgres")
        postgres.sql("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'crowded'", "postgres")
        wait_until(lambda: _syncs(driver), "sync does not go on", 300)
        check(driver, client(server))
    finally:
        server.kill()


def _syncs(driver: Driver) -> bool:
    """The server may first notice that its connections have ended."""
    try:
        return bool(driver.sync())
    except AssertionError:
        return False


def test_an_experiment_of_another_program_and_one_that_is_deleted_in_the_middle(
    server: Server, tmp_path: Path, name: str
) -> None:
    at = client(server)
    theirs = at.create_experiment(name)
    at.create_run(theirs, tags={"mlflow.source.name": "train.py"})
    driver = Driver(tmp_path, name, server.uri, steps=320)
    process = driver.start()
    ours = f"{name} (ablate)"
    wait_until(lambda: at.get_experiment_by_name(ours), "no experiment", 300)
    time.sleep(5)
    at.delete_experiment(at.get_experiment_by_name(ours).experiment_id)
    said = ended(process)
    assert f"experiment '{name}' holds runs of another program; these runs go to '{ours}'" in " ".join(said.split())
    driver.sync()
    check(driver, at)
    assert len(at.search_runs([theirs])) == 1


def test_a_machine_that_is_lost_with_what_mlflow_was_told(server: Server, tmp_path: Path, name: str) -> None:
    """A copy of the study on another machine has no state files: its runs take the place of those before."""
    driver = Driver(tmp_path, name, server.uri, steps=64, sleep=0.0)
    driver.run()
    for state in (driver.study.path / "mlflow").glob("*.json"):
        state.unlink()
    driver.run()
    check(driver, client(server))
