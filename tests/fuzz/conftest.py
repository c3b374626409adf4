"""Number of cases; without `--seed` the same in every run."""

from __future__ import annotations

import pytest
from fuzz.cases import KINDS
from hypothesis import HealthCheck, core, settings


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("seed") is not None:
        core.global_force_seed = config.getoption("seed")
    settings.register_profile(
        "fuzz", max_examples=-(-config.getoption("cases") // len(KINDS)), derandomize=core.global_force_seed is None,
        deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip
