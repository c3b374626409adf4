"""How often the guarded judge errs, measured on held-out texts when it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from reports.records.load import StudyRecords
from reports.tables.table import Head, Table, TableCell
from reports.text.words import number

KINDS = {
    "real": "real texts",
    "shuffled": "their words shuffled",
    "praise": "words of praise instead",
    "strewn": "every third word replaced by praise",
    "repeated": "a few words repeated",
    "stopped": "ended in mid-sentence",
}
_NOTE = (
    "Held-out texts, cut like prompts and responses, and texts made from them. With a fault: less likely than 99 % of"
    " real texts under a trigram model of them ({fluency} nats per token), more repetition than in 99 % of them (more"
    " than {repetition} of the tokens stood there before), or an end less plausible than 99 % of theirs ({end} nats)."
    " The thresholds depend on the length; these are for {tokens} tokens, from {texts} texts. A text with a fault loses"
    " against every text without. Wins: the share that scores higher than the real text, ties counting half; so often"
    " the judge errs. Brackets: 95 % intervals over texts."
)


def judges(records: StudyRecords) -> list[dict[str, Any]]:
    """The judges of these trials that were measured; empty where none has a guard."""
    return [one for one in records.upstream if one["stage"] == "judge" and "real/n" in one["summary"]]


def judge_table(records: StudyRecords) -> Table:
    """A row per kind of text and judge."""
    heads = (
        Head("texts", numeric=False),
        Head("n", "texts"),
        Head("with a fault", "%"),
        Head("wins against the real text", "%"),
        Head("without the guard", "%"),
    )
    rows, data = [], []
    for entry in judges(records):
        summary = entry["summary"]
        for kind, words in KINDS.items():
            shares = (_percent(summary, f"{kind}/{what}") for what in ("faulty", "wins", "wins_lexicon"))
            rows.append((TableCell(words), TableCell(f"{summary[f'{kind}/n']:,.0f}"), *shares))
        if "classes/n" in summary:
            wins = _percent(summary, "classes/wins")
            rows.append(
                (
                    TableCell("real negative texts against positive ones"),
                    TableCell(f"{summary['classes/n']:,.0f}"),
                    TableCell("–"),
                    wins,
                    TableCell("–"),
                )
            )
        data.append({"key": entry["key"], **summary})
    note = _NOTE.format(
        fluency=number(summary["threshold_fluency"]),
        repetition=number(summary["threshold_repetition"]),
        end=number(summary["threshold_end"]),
        tokens=f"{summary['threshold_tokens']:,.0f}",
        texts=f"{summary['threshold_texts']:,.0f}",
    )
    return Table("judge", "How often the judge errs", note, heads, tuple(rows), pd.DataFrame(data))


def _percent(summary: Mapping[str, float], key: str) -> TableCell:
    """A share with its interval; a dash where there is none."""
    if key not in summary:
        return TableCell("–")
    share, low, high = (100 * summary[name] for name in (key, f"{key}_low", f"{key}_high"))
    return TableCell(f"{share:.1f}", f"[{low:.1f}, {high:.1f}]")
