"""The health of trials on the page: from the loaded series to findings, table, sentence and HTML."""

from __future__ import annotations

from dataclasses import replace

from pipeline.run.symptoms import Symptom
from reports.findings.findings import Findings
from reports.findings.symptoms import healths
from reports.pages.page import environment
from reports.records.load import StudyRecords
from reports.tables.symptoms import health_table
from reports.text.symptoms import health_sentence
from studies.claims.symptoms import ArmHealth, by_arm, health_of

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
    assert table.note.startswith("Series left their healthy band in 3 of 11 trials: beta_0 (3 of 3).")


def test_sentences() -> None:
    assert health_sentence(()) == ""
    assert health_sentence([ArmHealth("a", 3, {})]) == (
        "No trial had a series outside its healthy band for longer than the band allows (3 trials judged)."
    )
    ended = [ArmHealth("a", 3, {}, (7,)), ArmHealth("b", 2, {})]
    assert health_sentence(ended).endswith(" allows (5 trials judged). Training diverged in 1 of 5 trials: a (1 of 3).")


def test_the_table_shows_trials_that_diverged_and_explains_only_what_it_shows() -> None:
    fine, ended = health_table([ArmHealth("a", 3, {})]), health_table([ArmHealth("a", 3, {}, (7,))])
    assert [cell.text for cell in fine.rows[0][:3]] == ["a", "0 of 3", "none"]
    assert "Shown:" not in fine.note
    assert (ended.rows[0][1].text, ended.rows[0][1].detail) == ("1 of 3", "1 diverged")
    assert "Shown:" not in ended.note
    ill = health_table([ArmHealth("a", 3, {7: (Symptom(KL, "above", 0.5, 12, 12, 1856, "far", ""),)}, (7,))])
    assert "Shown: of each arm" in ill.note
    assert (ill.rows[0][1].text, ill.rows[0][1].detail) == ("1 of 3", "1 diverged")


def test_a_diverged_trial_is_counted_without_its_series(records: StudyRecords) -> None:
    cell = ("beta_0.05", 0)
    ended = records.records[cell].model_copy(update={"status": "diverged"})
    found = {one.arm: one for one in healths(replace(records, records={**records.records, cell: ended}))}
    assert (found["beta_0.05"].ill, found["beta_0.05"].judged, found["beta_0.05"].diverged) == (1, 3, (0,))


def test_a_late_symptom_says_which_records_it_counts() -> None:
    late = Symptom(KL, "above", 0.5, 12, 12, 1856, "far", "", late=True)
    row = health_table([ArmHealth("a", 1, {3: (late,)})]).rows[0]
    assert (row[3].text, row[3].detail) == ("100 %", "12 of the last 12 records, seed 3")
    assert row[6].text == "–"


def test_html_is_escaped() -> None:
    odd = Symptom("reward/<b>", "above", 1.0, 5, 10, 1, "<script>alert(1)</script>", "a & b")
    table = health_table([ArmHealth("<i>", 1, {0: (odd,)})])
    page = environment().from_string('{% from "macros.html.j2" import show with context %}{{ show(table) }}')
    shown = page.render(table=table)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert not any(raw in shown for raw in ("<script>", "<b>", "<i>"))
