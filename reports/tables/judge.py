"""How often the guarded judge errs, measured on held-out texts when it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.records.load import StudyRecords
from reports.tables.table import Head, Table, TableCell, declared, words

KINDS = {
    "real": "real texts",
    "shuffled": "their words shuffled",
    "praise": "words of praise instead",
    "strewn": "every third word replaced by praise",
    "repeated": "a few words repeated",
    "spliced": "pieces of training texts with praise",
}


def judges(records: StudyRecords) -> list[dict[str, Any]]:
    """The judges of these trials that were measured, each once; empty where none has a guard."""
    measured = [one for one in records.upstream if one["stage"] == "judge" and "length" in one["summary"]]
    return list({repr(sorted(one["summary"].items())): one for one in measured}.values())


def judge_table(records: StudyRecords) -> Table:
    """Show a row per kind of text and judge."""
    found = judges(records)
    rows = [
        (one["summary"], kind, text) for one in found for kind, text in KINDS.items() if f"{kind}/n" in one["summary"]
    ]

    def called(row: tuple[Mapping[str, float], str, str]) -> str:
        summary, _, text = row
        return text + (f" (of at most {summary['length']:,.0f} tokens)" if len(found) > 1 else "")

    shape = (
        (words("texts"), called),
        (Head("n", "texts"), lambda row: f"{row[0][f'{row[1]}/n']:,.0f}"),
        (Head("with a fault", "%"), lambda row: _percent(row[0], f"{row[1]}/faulty")),
        (Head("wins against the real text", "%"), lambda row: _percent(row[0], f"{row[1]}/wins")),
        (Head("without the guard", "%"), lambda row: _percent(row[0], f"{row[1]}/wins_lexicon")),
    )
    data = [{"key": one["key"], **one["summary"]} for one in found]
    return declared("judge", "How often the judge errs", rows, shape, data, judges=[one["summary"] for one in found])


def _percent(summary: Mapping[str, float], key: str) -> TableCell:
    """A share with its interval; a dash where there is none."""
    if key not in summary:
        return TableCell("–")
    share, low, high = (100 * summary[name] for name in (key, f"{key}_low", f"{key}_high"))
    return TableCell(f"{share:.1f}", f"[{low:.1f}, {high:.1f}]")
