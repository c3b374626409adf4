"""Tables: they state what the findings hold, and stay tables in LaTeX and Markdown whatever stands in a cell."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import trim_mean

from reports.findings.findings import Findings, analyse
from reports.findings.pairs import shared
from reports.records.load import StudyRecords, load_records
from reports.records.searches import SearchResult
from reports.statistics import two_level
from reports.statistics.coverage import published
from reports.statistics.power import detectable
from reports.tables.judge import KINDS, RULES, judge_table, judges
from reports.tables.results import all_tables, arm_table
from reports.tables.search import tuning_table
from reports.tables.table import Head, Table, TableCell, latex, markdown
from studies.definition.search import Tried

if TYPE_CHECKING:
    from pathlib import Path

    from tests.reports.conftest import Builder

NASTY = (
    "a--b", "[x]", "*", "50 % & more", "a_b^c~d#e$f{g}h\\i", '"quoted" `tick`', "<tag> | bar", "café 中 🙂 − × – β √",
    "line\nbreak\x00", "---",
)  # fmt: skip
COMMANDS = {
    "begin", "end", "toprule", "midrule", "bottomrule", "textbf", "textless", "textgreater", "textbar", "textbackslash",
    "times", "beta", "textasciicircum", "textasciitilde", "texttt", "textendash", "surd",
}  # fmt: skip


def made(*rows: tuple[TableCell, ...]) -> Table:
    heads = tuple(Head(f"h_{i}", "nats & more") for i in range(2))
    return Table("t", "Title 50 %", "A note\nof two lines.", heads, rows, pd.DataFrame())


def tabular(text: str) -> list[list[str]]:
    """The cells of the rows; fails on anything that a compiler would stumble over."""
    assert text.isascii()
    code = [line for line in text.splitlines() if not line.startswith("%")]
    assert set(re.findall(r"\\([a-zA-Z]+)", "\n".join(code))) <= COMMANDS
    for line in code:
        bare = re.sub(r"\\[\\&%$#_{}]", "", line)
        assert not {"%", "#"} & set(bare)
        assert not set("_^~<>|") & set(re.sub(r"\$[^$]*\$", "", bare))
        assert bare.count("$") % 2 == 0
        depths = np.cumsum([{"{": 1, "}": -1}.get(character, 0) for character in bare])
        assert (depths >= 0).all()
        assert depths[-1] == 0
    body = code[code.index(r"\midrule") + 1 : code.index(r"\bottomrule")]
    assert all(line.endswith(r" \\") and not line.startswith(("[", "*")) for line in body)
    return [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in body]


@pytest.mark.parametrize("text", NASTY)
def test_anything_can_stand_in_a_cell(text: str) -> None:
    table = made((TableCell(text, text, bold=True), TableCell(text)), (TableCell(text), TableCell("", text)))
    assert list(map(len, tabular(latex(table)))) == [2, 2]
    lines = markdown(table).splitlines()
    assert len(lines) == 4
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_what_is_printed_is_what_was_meant() -> None:
    table = made(
        (TableCell("−1.5", "[−2, −1]", bold=True), TableCell("a--b", "baseline")),
        (TableCell("[x]"), TableCell("café 中")),
    )
    assert latex(table).splitlines()[-4:-2] == [
        r"\textbf{$-$1.5} [$-$2, $-$1] & a-{}-b (baseline) \\", r"{}[x] & cafe \texttt{U+4E2D} \\",
    ]  # fmt: skip
    assert markdown(table).splitlines()[2] == r"| **−1.5** \[−2, −1\] | a--b (baseline) |"


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


def test_the_interquartile_mean_stands_next_to_the_mean(
    tables: dict[str, Table], records: StudyRecords, findings: Findings
) -> None:
    gold = records.prompts[records.prompts["arm"] == "beta_0.05"]["policy_gold"].to_numpy(float)
    found = tables["robust"].frame.set_index("arm").loc["beta_0.05"]
    assert found["eval/gold_iqm"] == pytest.approx(trim_mean(gold, 0.25))
    assert found["eval/gold"] == findings.arm("beta_0.05").estimates["eval/gold"].value


def test_improvement_is_the_share_of_won_prompts(records: StudyRecords, tables: dict[str, Table]) -> None:
    frame = records.prompts.set_index(["arm", "seed", "prompt_id"])["policy_gold"].astype(float)
    pairs = [(frame["beta_0.01", seed], frame["beta_0.05", seed]) for seed in (0, 1)]
    found = tables["sensitivity"].frame.set_index("arm").loc["beta_0.01"]
    assert found["improvement"] == pytest.approx(np.mean([np.mean(np.where(a == b, 0.5, a > b)) for a, b in pairs]))
    assert (found["improvement_metric"], found["seeds"]) == ("eval/gold", 2)


def test_power_uses_the_error_of_the_effect(records: StudyRecords, findings: Findings) -> None:
    assert findings.power
    for one in findings.power:
        pair = shared(records, one.metric, [one.arm, "beta_0.05"])
        assert pair is not None
        assert one.detectable == pytest.approx(detectable(pair.moments(), 0.05 / 3))
        assert (one.target, one.suffices) == (0.05, one.detectable <= 0.05)
        assert one.seeds_needed is None or one.seeds_needed > one.seeds


def test_coverage_is_shown_by_seeds_and_spread(tables: dict[str, Table]) -> None:
    table = tables["coverage"]
    assert [cells[0].text for cells in table.rows] == ["1", "2", "3", "5", "10"]
    equal = [cell for cell in published() if (cell.seeds, cell.spread) == (5, "equal")]
    lowest = min(min(cell.mean_coverage, cell.difference_coverage) for cell in equal)
    assert table.rows[3][1].text.startswith(f"{100 * lowest:.0f} to ")
    worst = max(cell.family_wise_error for cell in published() if cell.seeds == 5)
    assert table.rows[3][-1].text == f"{100 * worst:.1f}"


def test_divergence_against_the_baseline(tables: dict[str, Table]) -> None:
    found = row(tables["statuses"], "beta_0")
    assert (found[1], found[-1][:8]) == ("3", "+0.333 [")
    frame = tables["statuses"].frame.set_index("arm")
    assert frame.loc["beta_0", "divergence_difference_high"] == two_level.rate_difference(1, 3, 0, 3).high
    assert row(tables["statuses"], "beta_0.05")[-1] == "–"
    assert frame.loc["beta_0.01", "ended"] == 2


def test_alarms_state_trials(tables: dict[str, Table]) -> None:
    assert tables["matched_kl"].rows == ()
    assert row(tables["alarms"], "beta_0")[1] == "3 of 3"
    assert row(tables["alarms"], "beta_0.05")[1:] == ["0 of 3", "–", "–", "–", "–"]
    assert len(tables["alarms"].frame) == 3


def test_equal_drift_names_neighbours_and_reasons(strengths: StudyRecords) -> None:
    found = analyse(strengths)
    table = next(one for one in all_tables(strengths, found) if one.name == "matched_kl")
    gold = {cells[0].text: cells for cells in table.rows if cells[1].text == "gold reward"}
    assert list(gold) == ["tight", "tighter", "loose"]
    assert (gold["tight"][3].detail, gold["tight"][7].text) == ("beta_0.05 and beta_0.035", "3 × 200")
    reason = "3 of 3 seeds ended beyond the arms of fixed beta"
    assert (gold["loose"][-1].text, gold["loose"][-1].detail, gold["loose"][6].text) == ("not compared", reason, "–")
    tight = next(one for one in found.matched if (one.arm, one.metric) == ("tight", "eval/gold"))
    assert tight.difference is not None
    frame = table.frame[table.frame["metric"] == "eval/gold"].set_index("arm")
    assert frame.loc["tight", "difference_low"] == tight.difference.low
    assert frame.loc["loose", "not_compared"] == reason
    assert "fixed beta: beta_0.07, beta_0.05 and beta_0.035" in table.note


def test_an_arm_is_bold_only_when_all_differences_support_it(build: Builder, tmp_path: Path) -> None:
    arms = {"beta_0": 0.0, "beta_0.05": 0.05, "beta_0.2": 0.2}
    built = build(tmp_path, arms=arms, steps=64, prompts=300, diverged=(), budget=(), missing=())
    records = load_records(built.folder, built.study)
    for other, best in ((0.0, ["beta_0.2"]), (0.95, [])):
        prompts = records.prompts.copy()
        noise = np.random.default_rng(0).normal(0, 1.0, len(prompts))
        prompts["policy_gold"] = prompts["arm"].map({"beta_0": 0.0, "beta_0.05": other, "beta_0.2": 1.0}) + noise
        shifted = replace(records, prompts=prompts)
        table = arm_table(shifted, analyse(shifted))
        bold = {
            head.text: [cells[at].text for cells in table.rows if cells[at].bold] for at, head in enumerate(table.heads)
        }
        assert len(bold["gold reward"]) == len(best)
        gold = table.frame.set_index("arm")["best_on"].str.contains("eval/gold")
        assert gold[gold].index.tolist() == best
        assert not any(bold[drift] for drift in ("KL per token", "KL per sequence", "entropy"))
        assert ("Bold (" in table.note) >= bool(best)
    alone = build(tmp_path / "one", arms={"beta_0.05": 0.05}, steps=64, prompts=20, diverged=(), budget=(), missing=())
    assert analyse(load_records(alone.folder, alone.study)).best == {}


def test_trials_of_a_search() -> None:
    won = Tried(0, "search-000", {"kl.beta": 0.1}, "complete", {"eval/win_rate": 0.81234}, True, 64)
    lost = Tried(1, "search-001", {"kl.beta": 1e-5}, "pruned", {}, False, 16)
    table = tuning_table(SearchResult((won, lost), (0,), {"confirm-1": 0}))
    assert [[cell.text for cell in cells] for cells in table.rows] == [
        ["0", "0.1", "complete", "64", "0.812", "kept", "on it", "confirm-1"],
        ["1", "1e-05", "pruned", "16", "–", "broken", "–", "–"],
    ]
    assert table.frame["eval/win_rate"][0] == 0.81234


SUMMARY: dict[str, float] = {
    **{
        f"{kind}/{name}{end}": value
        for kind in KINDS
        for name, value in (("faulty", 0.25), ("wins", 0.125), ("wins_lexicon", 0.75))
        for end in ("", "_low", "_high")
        if kind != "real" or name == "faulty"
    },
    **{f"{kind}/n": 512 for kind in KINDS},
    **{f"threshold/{name}": place + 0.25 for place, name in enumerate(RULES)},
    **{f"share/{name}": 0.03 for name in RULES},
    "threshold_texts": 1598,
    "length": 32,
}


def judged(*stages: tuple[str, dict[str, float]]) -> Any:
    return SimpleNamespace(upstream=tuple({"stage": name, "key": "k", "summary": own} for name, own in stages))


def test_a_guarded_judge_has_a_row_for_every_kind_of_text() -> None:
    assert judges(judged(("prompts", {}), ("reward", {"accuracy": 0.9}), ("judge", {}))) == []
    own = SUMMARY | {"real/faulty": 0.0137, "real/faulty_low": 0.0067, "real/faulty_high": 0.0279}
    table = judge_table(judged(("sft", {}), ("judge", own)))
    assert len(table.rows) == len(KINDS)
    assert row(table, "real texts")[1:] == ["512", "1.4 [0.7, 2.8]", "–", "–"]
    assert [cell.text for cell in table.rows[1][1:]] == ["512", "25.0", "12.5", "75.0"]
    short = SUMMARY | {"length": 8, "threshold/unlikely": -7.0, "threshold_texts": 1600}
    table = judge_table(judged(("judge", SUMMARY), ("judge", short), ("judge", dict(SUMMARY))))
    names = [cells[0].text for cells in table.rows]
    assert len(set(names)) == len(names) == 2 * len(KINDS)
    assert (names[0], names[len(KINDS)]) == ("real texts (of at most 32 tokens)", "real texts (of at most 8 tokens)")
    for figure in ("97 % of real texts", "0.250 / −7.00 nats", "cut at 32 / 8 tokens. 1,598 / 1,600 texts set them"):
        assert figure in table.note, figure
