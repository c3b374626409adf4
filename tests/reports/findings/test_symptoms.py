"""The health of trials on the page: from the loaded series to findings, table, sentence and HTML."""

from __future__ import annotations

from dataclasses import replace

from reports.findings.findings import Findings
from reports.findings.symptoms import healths
from reports.records.load import StudyRecords
from reports.tables.symptoms import health_table
from studies.claims.symptoms import by_arm, health_of

KL = "objective/kl_per_token"


def test_the_page_judges_as_the_tag_does(records: StudyRecords, findings: Findings) -> None:
    recorded = {cell: health_of(records.folder, record) for cell, record in sorted(records.records.items())}
    assert {one.arm: one for one in findings.health} == {one.arm: one for one in by_arm(recorded)}
    assert [one.arm for one in findings.health] == records.arms


def test_the_arm_without_a_penalty_is_unhealthy_and_no_other(findings: Findings) -> None:
    counts = {one.arm: (len(one.unhealthy), one.judged) for one in findings.health}
    assert counts == {"beta_0": (3, 3), "beta_0.01": (0, 2), "beta_0.05": (0, 3), "beta_0.2": (0, 3)}
    worst = findings.health[0].worst
    assert worst is not None
    assert (worst[1].key, worst[1].side, worst[1].bound, worst[1].knob) == (KL, "above", 0.5, "raise kl.beta")


def test_a_failed_trial_says_nothing(records: StudyRecords) -> None:
    cell = ("beta_0", 0)
    failed = records.records[cell].model_copy(update={"status": "failed"})
    found = healths(replace(records, records={**records.records, cell: failed}))
    assert (found[0].arm, found[0].judged, list(found[0].unhealthy)) == ("beta_0", 2, [1, 2])


def test_the_table_has_a_row_for_each_arm_and_its_csv_every_symptom(findings: Findings) -> None:
    table = health_table(findings.health)
    rows = [[cell.text for cell in row] for row in table.rows]
    assert [row[:2] for row in rows[1:]] == [["beta_0.01", "0 of 2"], ["beta_0.05", "0 of 3"], ["beta_0.2", "0 of 3"]]
    assert rows[0][:3] == ["beta_0", "3 of 3", f"{KL} above 0.5"]
    assert rows[0][-1] == "raise kl.beta"
    assert len(table.frame) == sum(len(found) for one in findings.health for found in one.unhealthy.values()) == 3
    assert (table.frame["share"] == table.frame["outside"] / table.frame["records"]).all()
    assert "3 of 11 trials: beta_0 (3 of 3)" in table.note


def test_a_diverged_trial_is_counted_without_its_series(records: StudyRecords) -> None:
    cell = ("beta_0.05", 0)
    ended = records.records[cell].model_copy(update={"status": "diverged"})
    found = {one.arm: one for one in healths(replace(records, records={**records.records, cell: ended}))}
    assert (found["beta_0.05"].ill, found["beta_0.05"].judged, found["beta_0.05"].diverged) == (1, 3, (0,))
