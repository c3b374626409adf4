"""Tables: they state what the findings hold, and stay tables in LaTeX and Markdown whatever stands in a cell."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from reports.findings.findings import Findings
from reports.findings.pairs import shared
from reports.records.load import StudyRecords
from reports.statistics.power import detectable
from reports.tables.results import all_tables
from reports.tables.table import Head, Table, TableCell, latex, markdown


def tabular(text: str) -> list[list[str]]:
    """The cells of the rows; fails on anything that a compiler would stumble over."""
    code = [line for line in text.splitlines() if not line.startswith("%")]
    for line in code:
        bare = re.sub(r"\\[\\&%$#_{}]", "", line)
        assert not set("%#") & set(bare)
        assert not set("_^~<>|") & set(re.sub(r"\$[^$]*\$", "", bare))
        assert bare.count("$") % 2 == bare.count("{") - bare.count("}") == 0
    body = code[code.index(r"\midrule") + 1 : code.index(r"\bottomrule")]
    assert all(line.endswith(r" \\") and not line.startswith(("[", "*")) for line in body)
    return [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in body]


@pytest.mark.parametrize("text", ["[x] a--b", "50 % & more", "a_b^c~d#e$f{g}h\\i", "<tag> | `tick`", "*\nβ √ − ×"])
def test_anything_can_stand_in_a_cell(text: str) -> None:
    heads, cell = (Head("h_0", "nats & more"), Head("h_1", numeric=False)), TableCell(text, text)
    rows = ((cell, TableCell(text)), (TableCell(text), TableCell("", text)))
    table = Table("t", "Title 50 %", "A note\nof two lines.", heads, rows, pd.DataFrame())
    assert list(map(len, tabular(latex(table)))) == [2, 2]
    assert [len(re.split(r"(?<!\\)\|", line)) for line in markdown(table).splitlines()] == [4] * 4


def test_what_is_printed_is_what_was_meant() -> None:
    row = (TableCell("−1.5", "[−2, −1]"), TableCell("a--b<c>", "baseline"))
    table = Table("t", "T", "n", (Head("x"), Head("y_z", "%")), (row,), pd.DataFrame())
    assert r"$-$1.5 [$-$2, $-$1] & a-{}-b\textless{}c\textgreater{} (baseline) \\" in latex(table)
    assert r"x & y\_z [\%] \\" in latex(table)
    assert markdown(table).splitlines()[2] == r"| −1.5 \[−2, −1\] | a--b&lt;c&gt; (baseline) |"


@pytest.fixture(scope="module")
def tables(records: StudyRecords, findings: Findings) -> dict[str, Table]:
    return {table.name: table for table in all_tables(records, findings)}


def test_tables_hold_the_findings_and_can_be_printed(tables: dict[str, Table], findings: Findings) -> None:
    for table in tables.values():
        assert list(map(len, tabular(latex(table)))) == [len(table.heads)] * len(table.rows), table.name
    arms, effects = tables["arms"].frame.set_index("arm"), tables["effects"].frame.set_index(["metric", "arm"])
    for one in findings.arms:
        estimate = one.estimates["eval/win_rate"]
        found = arms.loc[one.arm, ["eval/win_rate", "eval/win_rate_low", "eval/win_rate_high"]]
        assert found.tolist() == [estimate.value, estimate.low, estimate.high]
    for effect in findings.effects:
        found = effects.loc[(effect.metric, effect.arm), ["difference", "p", "p_holm", "outcome"]]
        assert tuple(found) == (effect.estimate.value, effect.p, effect.p_holm, effect.outcome)
    statuses = tables["statuses"].frame.set_index("arm")
    assert statuses.loc["beta_0", ["planned", "complete", "diverged"]].tolist() == [3, 2, 1]
    cells = {
        (name, row[0].text): [f"{cell.text} {cell.detail}".strip() for cell in row[1:]]
        for name in ("arms", "alarms")
        for row in tables[name].rows
    }
    assert cells["arms", "beta_0.2"][0] == "3 × 200 1 budget"
    assert cells["alarms", "beta_0"][0] == "3 of 3"
    assert cells["alarms", "beta_0.05"] == ["0 of 3", "–", "–", "–"]
    assert (len(tables["alarms"].frame), tables["matched_kl"].rows) == (3, ())


def test_power_uses_the_error_of_the_effect(
    records: StudyRecords, findings: Findings, tables: dict[str, Table]
) -> None:
    assert tables["power"].frame["detectable"].tolist() == [one.detectable for one in findings.power] != []
    for one in findings.power:
        moments = shared(records, one.metric, [one.arm, "beta_0.05"]).moments()
        assert (one.detectable, one.target) == (pytest.approx(detectable(moments, 0.05 / 3)), 0.05)
        assert one.seeds_needed is None or one.seeds_needed > one.seeds
