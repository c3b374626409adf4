"""How often the guarded judge errs, measured on held-out texts when it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    " The thresholds depend on the length; these are for {tokens} tokens. {texts} texts set them, for each length those"
    " that are as long. A text with a fault loses against every text without. Wins: the share that scores higher than"
    " the real text, ties counting half; so often the judge errs. Brackets: 95 % intervals over texts."
)


def judges(records: StudyRecords) -> list[dict[str, Any]]:
    """The judges of these trials that were measured, each once; empty where none has a guard."""
    measured = [one for one in records.upstream if one["stage"] == "judge" and "real/n" in one["summary"]]
    return list({repr(sorted(one["summary"].items())): one for one in measured}.values())


def judge_table(records: StudyRecords) -> Table:
    """A row per kind of text and judge."""
    heads = (
        Head("texts", numeric=False),
        Head("n", "texts"),
        Head("with a fault", "%"),
        Head("wins against the real text", "%"),
        Head("without the guard", "%"),
    )
    rows, data, found = [], [], judges(records)
    for entry in found:
        summary = entry["summary"]
        which = f" (of at most {summary['threshold_tokens']:,.0f} tokens)" if len(found) > 1 else ""
        for kind, words in KINDS.items():
            shares = (_percent(summary, f"{kind}/{what}") for what in ("faulty", "wins", "wins_lexicon"))
            rows.append((TableCell(words + which), TableCell(f"{summary[f'{kind}/n']:,.0f}"), *shares))
        if "classes/n" in summary:
            wins = _percent(summary, "classes/wins")
            rows.append(
                (
                    TableCell("real negative texts against positive ones" + which),
                    TableCell(f"{summary['classes/n']:,.0f}"),
                    TableCell("–"),
                    wins,
                    TableCell("–"),
                )
            )
        data.append({"key": entry["key"], **summary})
    note = _NOTE.format(
        fluency=_each(found, "threshold_fluency", number),
        repetition=_each(found, "threshold_repetition", number),
        end=_each(found, "threshold_end", number),
        tokens=_each(found, "threshold_tokens", "{:,.0f}".format),
        texts=_each(found, "threshold_texts", "{:,.0f}".format),
    )
    return Table("judge", "How often the judge errs", note, heads, tuple(rows), pd.DataFrame(data))


def _each(found: Sequence[Mapping[str, Any]], key: str, words: Callable[[float], str]) -> str:
    """A figure of every judge, in the order of the rows."""
    return " / ".join(words(entry["summary"][key]) for entry in found)


def _percent(summary: Mapping[str, float], key: str) -> TableCell:
    """A share with its interval; a dash where there is none."""
    if key not in summary:
        return TableCell("–")
    share, low, high = (100 * summary[name] for name in (key, f"{key}_low", f"{key}_high"))
    return TableCell(f"{share:.1f}", f"[{low:.1f}, {high:.1f}]")
