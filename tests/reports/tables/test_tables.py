"""Tables: they state what the findings hold, and stay tables in LaTeX and Markdown whatever stands in a cell."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from reports.findings.findings import Findings
from reports.findings.pairs import shared
from reports.records.load import SearchResult, StudyRecords
from reports.statistics.power import detectable
from reports.tables.results import all_tables
from reports.tables.runs import KINDS, judge_table, judges, tuning_table
from reports.tables.table import Head, Table, TableCell, latex, markdown
from studies.definition.search import Tried

if TYPE_CHECKING:
    pass


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
    lines = markdown(table).splitlines()
    assert [len(re.split(r"(?<!\\)\|", line)) for line in lines] == [4] * 4


def test_what_is_printed_is_what_was_meant() -> None:
    row = (TableCell("−1.5", "[−2, −1]"), TableCell("a--b<c>", "baseline"))
    table = Table("t", "T", "n", (Head("x"), Head("y_z", "%")), (row,), pd.DataFrame())
    assert r"$-$1.5 [$-$2, $-$1] & a-{}-b\textless{}c\textgreater{} (baseline) \\" in latex(table)
    assert r"x & y\_z [\%] \\" in latex(table)
    assert markdown(table).splitlines()[2] == r"| −1.5 \[−2, −1\] | a--b&lt;c&gt; (baseline) |"


@pytest.fixture(scope="module")
def tables(records: StudyRecords, findings: Findings) -> dict[str, Table]:
    return {table.name: table for table in all_tables(records, findings)}


def row(table: Table, arm: str) -> list[str]:
    found = next(cells for cells in table.rows if cells[0].text == arm)
    return [f"{cell.text} {cell.detail}".strip() for cell in found]


def test_every_table_of_a_study_can_be_printed(tables: dict[str, Table]) -> None:
    for table in tables.values():
        assert list(map(len, tabular(latex(table)))) == [len(table.heads)] * len(table.rows), table.name


def test_arms_and_effects_are_those_of_the_findings(tables: dict[str, Table], findings: Findings) -> None:
    arms, effects = tables["arms"].frame.set_index("arm"), tables["effects"].frame.set_index(["metric", "arm"])
    for one in findings.arms:
        estimate = one.estimates["eval/win_rate"]
        found = arms.loc[one.arm, ["eval/win_rate", "eval/win_rate_low", "eval/win_rate_high"]]
        assert found.tolist() == [estimate.value, estimate.low, estimate.high]
    for effect in findings.effects:
        assert effect.estimate is not None
        found = effects.loc[(effect.metric, effect.arm)]
        wanted = (effect.estimate.value, effect.p, effect.p_holm, effect.outcome)
        assert tuple(found[["difference", "p", "p_holm", "outcome"]]) == wanted
    assert row(tables["arms"], "beta_0.2")[1] == "3 × 200 1 budget"


def test_power_uses_the_error_of_the_effect(
    records: StudyRecords, findings: Findings, tables: dict[str, Table]
) -> None:
    assert tables["power"].frame["detectable"].tolist() == [one.detectable for one in findings.power] != []
    for one in findings.power:
        pair = shared(records, one.metric, [one.arm, "beta_0.05"])
        assert pair is not None
        assert one.detectable == pytest.approx(detectable(pair.moments(), 0.05 / 3))
        assert one.target == 0.05
        assert one.seeds_needed is None or one.seeds_needed > one.seeds


def test_statuses_and_alarms(tables: dict[str, Table]) -> None:
    statuses = tables["statuses"].frame.set_index("arm")
    assert statuses.loc["beta_0", ["planned", "complete", "diverged"]].tolist() == [3, 2, 1]
    assert row(tables["alarms"], "beta_0")[1] == "3 of 3"
    assert row(tables["alarms"], "beta_0.05")[1:] == ["0 of 3", "–", "–", "–"]
    assert (len(tables["alarms"].frame), tables["matched_kl"].rows) == (3, ())


def test_trials_of_a_search() -> None:
    won = Tried(0, "search-000", {"kl.beta": 0.1}, "complete", {"eval/win_rate": 0.81234}, True, 64)
    lost = Tried(1, "search-001", {"kl.beta": 1e-5}, "pruned", {}, False, 16)
    table = tuning_table(SearchResult((won, lost), (0,), {"confirm-1": 0}))
    assert [[cell.text for cell in cells] for cells in table.rows] == [
        ["0", "0.1", "complete", "64", "0.812", "kept", "on it", "confirm-1"],
        ["1", "1e-05", "pruned", "16", "–", "broken", "–", "–"],
    ]
    assert table.frame["eval/win_rate"][0] == 0.81234


def judged(*stages: tuple[str, dict[str, float]]) -> Any:
    return SimpleNamespace(upstream=tuple({"stage": name, "key": "k", "summary": own} for name, own in stages))


def test_a_guarded_judge_has_a_row_for_every_kind_of_text() -> None:
    shares = (("faulty", 0.25), ("wins", 0.125), ("wins_lexicon", 0.75))
    ends = {f"{key}{end}": value for key, value in shares for end in ("", "_low", "_high")}
    own: dict[str, float] = {f"{kind}/{key}": value for kind in KINDS for key, value in {**ends, "n": 512}.items()}
    rules = ["unlikely", "predictable", "repetitive", "disordered", "copied", "gushing", "thin", "unended"]
    own |= {f"threshold/{name}": 0.25 for name in rules} | {f"share/{name}": 0.03 for name in rules}
    own |= {"threshold_texts": 1598, "length": 32}
    assert judges(judged(("prompts", {}), ("reward", {"accuracy": 0.9}), ("judge", {}))) == []
    table = judge_table(judged(("sft", {}), ("judge", own), ("judge", own | {"length": 8})))
    assert len(table.rows) == 2 * len(KINDS)
    assert [cell.text for cell in table.rows[1][1:]] == ["512", "25.0", "12.5", "75.0"]
    assert "97 % of real texts" in table.note
    assert "32 / 8 tokens" in table.note
    assert len({cells[0].text for cells in table.rows}) == 2 * len(KINDS), "each judge names its length"
