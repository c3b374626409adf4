"""How many cases; without `--seed` the same in every run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, core, settings


def pytest_configure(config: pytest.Config) -> None:
    kinds = len(config.getoption("kind") or range(9))
    if config.getoption("seed") is not None:
        core.global_force_seed = config.getoption("seed")
    settings.register_profile(
        "fuzz", max_examples=-(-config.getoption("cases") // kinds), derandomize=core.global_force_seed is None,
        deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--kind`, only the cases of those kinds."""
    if kinds := config.getoption("kind"):
        items[:] = [
            item for item in items if getattr(item, "callspec", None) and item.callspec.params.get("kind") in kinds
        ]
