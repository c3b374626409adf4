"""Shared fixtures: an empty output root, and one in which the smoke trial has run."""

from __future__ import annotations

import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # its warning on import would be an error here
os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers of pytest-xdist share the cores, and would fight over them

from collections import Counter
from pathlib import Path

import pytest
from helpers import Recorder, smoke
from hypothesis import HealthCheck, core, settings

from pipeline.run.layout import Layout

# The same examples in every run: a red build means a change of ours, not of luck.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=50)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--benchmarks", action="store_true", help="run tests/benchmarks, and print what they measure")
    parser.addoption("--cases", type=int, default=54, help="of `make fuzz`: cases of its 7 kinds together")
    parser.addoption("--runs", type=int, help="of `make faults`: number of studies to disturb, by each fault in turn")
    parser.addoption("--fault", action="append", help="of `make faults`: this fault alone; repeatable")
    parser.addoption("--seed", type=int, help="of `make fuzz` and `make faults`")


def pytest_configure(config: pytest.Config) -> None:
    """Set the cases of `make fuzz`; without ``--seed`` they are the same in every run."""
    core.global_force_seed = config.getoption("seed")
    settings.register_profile(
        "fuzz", max_examples=-(-config.getoption("cases") // 7), derandomize=config.getoption("seed") is None,
        deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device is visible: make gpu"))
        if "benchmarks" in item.path.parts and not config.getoption("--benchmarks"):
            item.add_marker(pytest.mark.skip(reason="a measurement: make bench"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what this machine could not test, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, number in Counter(str(one.longrepr[2]) for one in skipped if one.longrepr).most_common():
        terminalreporter.write_line(f"{number} tests: {reason}")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "out")


@pytest.fixture(scope="session")
def smoke_layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """An output root in which the smoke trial has run. Read from it; do not write."""
    from pipeline.trial import run_trial

    layout = Layout(tmp_path_factory.mktemp("smoke"))
    run_trial(smoke(), layout, Recorder())
    return layout
