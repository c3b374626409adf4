"""The table of the judge's errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from reports.tables.judge import KINDS, RULES, judge_table, judges

RATES = {
    f"{kind}/{name}{end}": value
    for kind in KINDS
    for name, value in (("faulty", 0.25), ("wins", 0.125), ("wins_lexicon", 0.75))
    for end in ("", "_low", "_high")
    if (kind, name) not in (("real", "wins"), ("real", "wins_lexicon"))
}
SUMMARY: dict[str, float] = {
    **RATES,
    **{f"{kind}/n": 512 for kind in KINDS},
    "real/faulty": 0.0137,
    "real/faulty_low": 0.0067,
    "real/faulty_high": 0.0279,
    "threshold_texts": 1598,
    "length": 32,
    **{f"threshold/{name}": place + 0.25 for place, name in enumerate(RULES)},
    **{f"share/{name}": 0.03 for name in RULES},
}


def records(*stages: tuple[str, dict[str, float]]) -> Any:
    return SimpleNamespace(upstream=tuple({"stage": name, "key": "k", "summary": own} for name, own in stages))


def test_trials_without_a_guard_have_no_table() -> None:
    assert judges(records(("prompts", {}), ("reward", {"accuracy": 0.9}))) == []
    assert judges(records(("judge", {}))) == [], "it is no longer in the store"


def test_every_kind_of_text_has_a_row_with_its_intervals() -> None:
    table = judge_table(records(("sft", {}), ("judge", SUMMARY)))
    real, stop, *_ = table.rows
    assert len(table.rows) == len(KINDS)
    assert [cell.text for cell in real] == ["real texts", "512", "1.4", "–", "–"]
    assert real[2].detail == "[0.7, 2.8]"
    assert [cell.text for cell in stop[1:]] == ["512", "25.0", "12.5", "75.0"]
    for figure in ("97 % of real texts", "0.250 nats per token", "6.25 nats", "cut at 32 tokens. 1,598 texts set them"):
        assert figure in table.note, figure
    labelled = SUMMARY | {"classes/n": 250, "classes/wins": 0.3, "classes/wins_low": 0.25, "classes/wins_high": 0.36}
    last = judge_table(records(("judge", labelled))).rows[-1]
    assert [cell.text for cell in last] == ["real negative texts against positive ones", "250", "–", "30.0", "–"]
    assert last[3].detail == "[25.0, 36.0]"


def test_several_judges_are_told_apart_and_each_has_its_thresholds() -> None:
    short = SUMMARY | {"length": 8, "threshold/unlikely": -7.0, "threshold_texts": 1600}
    table = judge_table(records(("judge", SUMMARY), ("judge", short), ("judge", dict(SUMMARY))))
    names = [row[0].text for row in table.rows]
    assert len(set(names)) == len(names) == 2 * len(KINDS)
    assert (names[0], names[len(KINDS)]) == ("real texts (of at most 32 tokens)", "real texts (of at most 8 tokens)")
    for figure in ("0.250 / −7.00 nats per token", "cut at 32 / 8 tokens. 1,598 / 1,600 texts set them"):
        assert figure in table.note, figure
