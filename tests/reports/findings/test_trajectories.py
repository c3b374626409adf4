"""Arms at matched KL, laws and alarms of a study, from its records to the findings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reports.findings.findings import Findings
from reports.findings.trajectories import POOLED, alarms, aligned, curves, laws, matched
from reports.records.load import StudyRecords
from reports.statistics import two_level as stats

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


def test_matched_kl_compares_where_both_have_been(records: StudyRecords) -> None:
    slopes = {0: 2.0, 1: 2.2, 2: 2.4}
    fast = {("beta_0.01", seed): path(0.10, slope) for seed, slope in slopes.items()}
    slow = {("beta_0.05", seed): path(0.04, 1.0) for seed in slopes}
    other = rewritten(records, {**fast, **slow})
    found = matched(other, curves(other))
    row = next(row for row in found if (row.metric, row.place) == ("objective/gold", "farthest"))
    end = 0.04 * (99 + 98 + 97) / 3  # a running mean of five updates, three at the end
    assert row.kl == row.high == pytest.approx(end)
    assert row.difference.value == pytest.approx(1.2 * end, rel=1e-6)
    assert list(row.per_seed) == [0, 1, 2]
    assert row.per_seed[2] == pytest.approx(1.4 * end)
    wanted = stats.over_seeds([1.0 * end, 1.2 * end, 1.4 * end])
    assert (row.difference.low, row.difference.high) == pytest.approx((wanted.low, wanted.high))
    assert row.base_step == pytest.approx(98 * 16)
    assert row.arm_step == pytest.approx(98 * 16 * 0.4)
    half = next(row for row in found if (row.metric, row.place) == ("objective/gold", "half way"))
    assert half.kl == pytest.approx(end / 4)
    proxy = next(row for row in found if (row.metric, row.place) == ("objective/scores", "farthest"))
    assert proxy.difference.value == pytest.approx(0.0, abs=1e-9)
    assert proxy.outcome == "no detectable difference"
    assert {row.arm for row in found} == {"beta_0.01"}


def test_matched_kl_takes_the_exact_kl_where_it_was_recorded(records: StudyRecords) -> None:
    trial = path(0.1, 2.0)
    exact = {
        **trial,
        "objective/kl_exact_per_token": trial["objective/kl"] / 10,
        "objective/length": np.full(100, 20.0),
    }
    other = rewritten(records, {("beta_0.05", 0): exact})
    assert curves(other)["beta_0.05", 0].kl[-1] == pytest.approx(
        2 * curves(rewritten(records, {("beta_0.05", 0): trial}))["beta_0.05", 0].kl[-1]
    )


def test_matched_p_is_corrected_over_the_arms(findings: Findings) -> None:
    for metric in ("objective/gold", "objective/scores"):
        for place in ("half way", "farthest"):
            rows = [row for row in findings.matched if (row.metric, row.place) == (metric, place)]
            assert len(rows) >= 2
            assert [row.p_holm for row in rows] == pytest.approx(
                stats.holm([row.p for row in rows if row.p is not None])
            )


def test_drift_of_the_demo_is_what_was_built_in(records: StudyRecords, findings: Findings) -> None:
    """The builder's gold is 0.4 + d (1.1 - 0.26 d): it peaks at 4.5 nats, and only beta 0 goes beyond."""
    raised = {one.arm: one for one in findings.alarms}
    assert len(raised["beta_0"].alarms) == raised["beta_0"].trials == 3
    assert raised["beta_0"].kl is not None
    assert raised["beta_0"].kl.value == pytest.approx((1.1 / 0.52) ** 2, rel=0.6)
    assert not raised["beta_0.05"].alarms
    assert raised["beta_0.05"].kl is None
    by_arm = {one.arm: one for one in findings.laws}
    assert next(iter(by_arm)) == POOLED
    assert by_arm[POOLED].trials == len(findings.curves) == 11
    reference = records.prompts.drop_duplicates("prompt_id")["reference_gold"].mean()
    assert by_arm[POOLED].reference == pytest.approx(reference)


def test_without_gold_the_law_is_fitted_to_the_proxy(records: StudyRecords) -> None:
    other = dataclasses.replace(records, curves=records.curves.drop(columns="objective/gold"))
    found = curves(other)
    assert {one.metric for one in laws(other, found)} == {"objective/scores"}
    assert {row.metric for row in matched(other, found)} == {"objective/scores"}
    assert alarms(other) == ()


@pytest.mark.parametrize("dropped", [["objective/kl"], ["objective/gold", "objective/scores"]])
def test_without_kl_or_rewards_there_is_nothing_to_match(records: StudyRecords, dropped: list[str]) -> None:
    other = dataclasses.replace(records, curves=records.curves.drop(columns=dropped))
    found = curves(other)
    assert (found, matched(other, found), laws(other, found), alarms(other)) == ({}, (), (), ())


def test_failed_trials_have_no_trajectory(build: Builder, tmp_path: object) -> None:
    from pathlib import Path

    from reports.records.load import load_records

    shape = {"seeds": (0,), "steps": 1600, "prompts": 4, "diverged": (), "budget": (), "missing": ()}
    built: Built = build(Path(str(tmp_path)), **shape, failed=(("beta_0", 0),))
    assert {arm for arm, _ in curves(load_records(built.folder, built.study))} == {"beta_0.01", "beta_0.05", "beta_0.2"}


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
