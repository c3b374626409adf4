from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reports.findings import peaks
from reports.findings.findings import Findings
from reports.findings.peaks import gold_peaks
from reports.records.load import StudyRecords
from reports.statistics.peak import Peak
from reports.tables.peaks import peaks_table
from reports.tables.results import all_tables


def test_the_arm_without_a_penalty_peaks_and_falls(records: StudyRecords, findings: Findings) -> None:
    found = {one.arm: one for one in findings.peaks}
    assert set(found) == set(records.arms)
    hacked, held = found["beta_0"], found["beta_0.2"]
    # gold = 0.4 + d (1.1 - 0.26 d) of the square root of the KL is highest at d = 2.1, at 1.56 judge points; a block of
    # updates holds points on either side of it.
    assert hacked.root_kl.value == pytest.approx(2.1, abs=0.4)
    assert 1.25 < hacked.gold.value < 1.6
    assert hacked.fall.value > 2
    assert held.root_kl.value < 1.0
    assert abs(held.fall.value) < 0.1
    assert held.gold.method == "student"
    assert hacked.step.value == pytest.approx(np.mean([one.step for one in hacked.trials.values()]))
    assert 0 < hacked.step.value < max(records.curves["step"])


def test_neither_a_drift_nor_a_step_has_an_interval_below_0(
    records: StudyRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = Peak(root_kl=4.0, value=1.0, fall=0.0, step=2000.0), Peak(root_kl=0.1, value=-1.0, fall=0.0, step=16.0)
    found = iter([far, *[near] * 100])
    monkeypatch.setattr(peaks, "peak", lambda *columns: next(found))
    first = next(iter(gold_peaks(records)))
    assert (first.root_kl.low, first.step.low) == (0.0, 0.0)
    assert first.gold.low is not None
    assert first.gold.low < 0, "judge points may be negative"


def test_the_table_has_a_row_an_arm_and_its_csv_the_interval(records: StudyRecords, findings: Findings) -> None:
    table = peaks_table(findings.peaks)
    assert len(table.rows) == len(table.frame) == len(findings.peaks)
    assert {"step", "root_kl", "gold_low", "gold_high", "fall", "seeds", "method"} <= set(table.frame.columns)
    assert "gold_peaks" in {one.name for one in all_tables(records, findings)}


def test_without_gold_there_is_no_table(records: StudyRecords) -> None:
    silent = replace(records, curves=records.curves.drop(columns="objective/gold"))
    assert gold_peaks(silent) == ()
