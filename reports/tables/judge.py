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
    "stop": "a full stop",
    "brief": "“a great film.” and the like",
    "shuffled": "their words shuffled",
    "ordered": "the most fluent of 16 orders of their words",
    "praise": "words of praise instead",
    "strewn": "every third word replaced by praise",
    "strewn_best": "the best of 8 texts strewn with praise",
    "repeated": "a few words repeated",
    "stopped": "ended in mid-sentence",
    "spliced": "pieces of training texts with praise",
    "spliced_best": "the best of 8 such splices",
    "dropped": "a training text with praise, every fifth word left out",
    "walked": "tokens that followed the last two in training texts",
    "walked_best": "the best of 8 such walks",
}
RULES = {
    "unlikely": "less likely than {} % of real texts under a trigram model of them ({} nats per token)",
    "predictable": "more likely than {} % of them ({} nats per token)",
    "repetitive": "more repetition than in {} % ({} of its tokens stood there before)",
    "disordered": "an order of words less plausible than in {} % ({} nats per word above a random order)",
    "copied": "more words in phrases of training texts than {} % have ({} of the words)",
    "gushing": "more words of praise than {} % have ({} of the words)",
    "thin": "less content than {} % have ({} nats)",
    "unended": "an end less plausible than {} % of theirs ({} nats)",
}
_NOTE = (
    "Held-out texts, cut like prompts and responses, and texts made from them. Each of these is a fault: {rules}. Most"
    " thresholds depend on the length; these are for the longest texts, cut at {length} tokens. {texts} texts set them,"
    " for each length those that reach it. A text with a fault loses against every text without. Wins: the share that"
    " scores higher than the real text, ties counting half; so often the judge errs. The best of 8 is the one that the"
    " judge likes best. One good answer to all prompts is no fault of any answer, so no row shows it. Brackets: 95 %"
    " intervals over texts."
)


def judges(records: StudyRecords) -> list[dict[str, Any]]:
    """The judges of these trials that were measured, each once; empty where none has a guard."""
    measured = [one for one in records.upstream if one["stage"] == "judge" and "length" in one["summary"]]
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
        which = f" (of at most {summary['length']:,.0f} tokens)" if len(found) > 1 else ""
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
    rules = [
        words.format(_each(found[:1], f"share/{name}", _others), _each(found, f"threshold/{name}", number))
        for name, words in RULES.items()
    ]
    length, texts = (_each(found, key, "{:,.0f}".format) for key in ("length", "threshold_texts"))
    note = _NOTE.format(rules="; ".join(rules), length=length, texts=texts)
    return Table("judge", "How often the judge errs", note, heads, tuple(rows), pd.DataFrame(data))


def _others(share: float) -> str:
    """Percentage of real texts that are not beyond a threshold."""
    return f"{100 * (1 - share):.0f}"


def _each(found: Sequence[Mapping[str, Any]], key: str, words: Callable[[float], str]) -> str:
    """A figure of every judge, in the order of the rows."""
    return " / ".join(words(entry["summary"][key]) for entry in found)


def _percent(summary: Mapping[str, float], key: str) -> TableCell:
    """A share with its interval; a dash where there is none."""
    if key not in summary:
        return TableCell("–")
    share, low, high = (100 * summary[name] for name in (key, f"{key}_low", f"{key}_high"))
    return TableCell(f"{share:.1f}", f"[{low:.1f}, {high:.1f}]")
