"""Trainings over drift, alarms, peaks and health of a study, from its records to the findings and their tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reports.findings.findings import Findings
from reports.findings.trajectories import alarms, gold_peaks, healths, paths
from reports.records.load import StudyRecords
from reports.tables.drift import peaks_table
from reports.tables.runs import health_table
from studies.claims.symptoms import by_arm, health_of

KL = "objective/kl_per_token"


def test_paths_take_the_exact_kl_where_it_was_recorded(records: StudyRecords) -> None:
    exact = records.curves["objective/kl"] / records.curves["objective/length"]
    doubled = records.curves.assign(**{"objective/kl_exact_per_token": 2 * exact})
    before, after = paths(records), paths(replace(records, curves=doubled))
    np.testing.assert_allclose(after["beta_0.05", 0].kl, 2 * before["beta_0.05", 0].kl)
    assert len(before) == 11
    for dropped in (["objective/kl"], ["objective/gold", "objective/scores"]):
        other = replace(records, curves=records.curves.drop(columns=dropped))
        assert (paths(other), alarms(other), gold_peaks(other)) == ({}, (), ())


def test_drift_of_the_demo_is_what_was_built_in(records: StudyRecords, findings: Findings) -> None:
    """The builder's gold is 0.4 + d (1.1 - 0.26 d) of d = √KL: it peaks at d = 2.1, at 1.56 judge points, and only beta
    0 goes beyond."""
    raised = {one.arm: one for one in findings.alarms}
    assert len(raised["beta_0"].alarms) == raised["beta_0"].trials == 3
    assert raised["beta_0"].kl.value == pytest.approx((1.1 / 0.52) ** 2, rel=0.6)
    assert (raised["beta_0.05"].alarms, raised["beta_0.05"].kl) == ({}, None)
    found = {one.arm: one for one in findings.peaks}
    hacked, held = found["beta_0"], found["beta_0.2"]
    assert hacked.root_kl.value == pytest.approx(2.1, abs=0.4)
    assert 1.25 < hacked.gold.value < 1.6
    assert hacked.fall.value > 2
    assert abs(held.fall.value) < 0.1
    assert held.gold.method == "student"
    assert hacked.step.value == pytest.approx(np.mean([one.step for one in hacked.trials.values()]))
    assert all(bound.low >= 0 for one in findings.peaks for bound in (one.step, one.root_kl) if bound.low is not None)
    table = peaks_table(findings.peaks).frame.set_index("arm")
    assert table.loc["beta_0", ["gold", "gold_low"]].tolist() == [hacked.gold.value, hacked.gold.low]


def test_the_page_judges_health_as_the_tag_does(records: StudyRecords, findings: Findings) -> None:
    recorded = {cell: health_of(records.folder, record) for cell, record in sorted(records.records.items())}
    assert {one.arm: one for one in findings.health} == {one.arm: one for one in by_arm(recorded)}
    counts = {one.arm: (len(one.unhealthy), one.judged) for one in findings.health}
    assert counts == {"beta_0": (3, 3), "beta_0.01": (0, 2), "beta_0.05": (0, 3), "beta_0.2": (0, 3)}
    rows = [[cell.text for cell in row] for row in health_table(findings.health).rows]
    assert [row[1] for row in rows] == ["3 of 3", "0 of 2", "0 of 3", "0 of 3"]
    assert rows[0][2] == f"{KL} above 0.5"


def test_failed_trials_are_left_out_and_diverged_ones_counted(records: StudyRecords) -> None:
    def with_status(arm: str, status: str) -> StudyRecords:
        own = records.records[arm, 0].model_copy(update={"status": status})
        mine = (records.trials["arm"] == arm) & (records.trials["seed"] == 0)
        trials = records.trials.assign(status=records.trials["status"].mask(mine, status))
        return replace(records, records={**records.records, (arm, 0): own}, trials=trials)

    failed = with_status("beta_0", "failed")
    assert ("beta_0", 0) not in paths(failed)
    assert (healths(failed)[0].judged, list(healths(failed)[0].unhealthy)) == (2, [1, 2])
    ended = {one.arm: one for one in healths(with_status("beta_0.05", "diverged"))}["beta_0.05"]
    assert (ended.ill, ended.judged, ended.diverged) == (1, 3, (0,))
