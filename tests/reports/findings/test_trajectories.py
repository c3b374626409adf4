"""Trainings over drift and alarms of a study, from its records to the findings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reports.findings.findings import Findings
from reports.findings.trajectories import alarms, aligned, paths
from reports.records.load import StudyRecords

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built


def rewritten(records: StudyRecords, change: dict[tuple[str, int], dict[str, np.ndarray]]) -> StudyRecords:
    """The records with other trajectories: (arm, seed) -> column -> values, one row an update."""
    import pandas as pd

    frames = [pd.DataFrame(columns).assign(arm=arm, seed=seed) for (arm, seed), columns in change.items()]
    return dataclasses.replace(records, curves=pd.concat(frames, ignore_index=True))


def path(speed: float, slope: float, updates: int = 100) -> dict[str, np.ndarray]:
    """KL rises by `speed` an update, gold by `slope` per nat, the proxy by one per nat."""
    step = np.arange(updates) * 16.0
    kl = speed * np.arange(updates)
    return {"step": step, "objective/kl": kl, "objective/gold": slope * kl, "objective/scores": kl}


def test_paths_take_the_exact_kl_where_it_was_recorded(records: StudyRecords) -> None:
    trial = path(0.1, 2.0)
    exact = {
        **trial,
        "objective/kl_exact_per_token": trial["objective/kl"] / 10,
        "objective/length": np.full(100, 20.0),
    }
    other = rewritten(records, {("beta_0.05", 0): exact})
    assert paths(other)["beta_0.05", 0].kl[-1] == pytest.approx(
        2 * paths(rewritten(records, {("beta_0.05", 0): trial}))["beta_0.05", 0].kl[-1]
    )


def test_drift_of_the_demo_is_what_was_built_in(records: StudyRecords, findings: Findings) -> None:
    """The builder's gold is 0.4 + d (1.1 - 0.26 d): it peaks at 4.5 nats, and only beta 0 goes beyond."""
    raised = {one.arm: one for one in findings.alarms}
    assert len(raised["beta_0"].alarms) == raised["beta_0"].trials == 3
    assert raised["beta_0"].kl is not None
    assert raised["beta_0"].kl.value == pytest.approx((1.1 / 0.52) ** 2, rel=0.6)
    assert not raised["beta_0.05"].alarms
    assert raised["beta_0.05"].kl is None
    assert len(findings.paths) == 11


@pytest.mark.parametrize("dropped", [["objective/kl"], ["objective/gold", "objective/scores"]])
def test_without_kl_or_rewards_there_is_no_path(records: StudyRecords, dropped: list[str]) -> None:
    other = dataclasses.replace(records, curves=records.curves.drop(columns=dropped))
    assert (paths(other), alarms(other)) == ({}, ())


def test_failed_trials_have_no_trajectory(build: Builder, tmp_path: object) -> None:
    from pathlib import Path

    from reports.records.load import load_records

    shape = {"seeds": (0,), "steps": 1600, "prompts": 4, "diverged": (), "budget": (), "missing": ()}
    built: Built = build(Path(str(tmp_path)), **shape, failed=(("beta_0", 0),))
    assert {arm for arm, _ in paths(load_records(built.folder, built.study))} == {"beta_0.01", "beta_0.05", "beta_0.2"}


def test_seeds_of_an_arm_on_one_grid(records: StudyRecords) -> None:
    seeds, series = aligned(records, "objective/kl", "beta_0")
    assert seeds == [0, 1, 2]
    raw = (
        records.curves[(records.curves["arm"] == "beta_0") & (records.curves["seed"] == 1)]
        .set_index("step")["objective/kl"]
        .dropna()
    )
    assert series.values[1] == pytest.approx(raw.to_numpy(dtype=float))
    ended = series.grid[series.last[2]]
    assert ended == 672
    assert not series.whole[series.grid > ended].any()
    assert aligned(records, "policy/ratio", "beta_0")[0] == []
    fine = aligned(records, "policy/pg_clipfrac", "beta_0.05")[1]
    assert len(fine.grid) <= 257
    assert (np.diff(fine.grid) % 16 == 0).all()
