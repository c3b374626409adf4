"""How often the guarded judge errs, measured on held-out texts when it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reports.records.load import StudyRecords
from reports.tables.table import Head, Table, TableCell, declared, words
from reports.text.words import number

KINDS = {
    "real": "real texts",
    "shuffled": "their words shuffled",
    "praise": "words of praise instead",
    "strewn": "every third word replaced by praise",
    "repeated": "a few words repeated",
    "spliced": "pieces of training texts with praise",
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
    " scores higher than the real text, ties counting half; so often the judge errs. One good answer to"
    " all prompts is no fault of any answer, so no row shows it. Brackets: 95 % intervals over texts."
)


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

    rules = [
        text.format(_each(found[:1], f"share/{name}", _others), _each(found, f"threshold/{name}", number))
        for name, text in RULES.items()
    ]
    length, texts = (_each(found, key, "{:,.0f}".format) for key in ("length", "threshold_texts"))
    note = _NOTE.format(rules="; ".join(rules), length=length, texts=texts)
    shape = (
        (words("texts"), called),
        (Head("n", "texts"), lambda row: f"{row[0][f'{row[1]}/n']:,.0f}"),
        (Head("with a fault", "%"), lambda row: _percent(row[0], f"{row[1]}/faulty")),
        (Head("wins against the real text", "%"), lambda row: _percent(row[0], f"{row[1]}/wins")),
        (Head("without the guard", "%"), lambda row: _percent(row[0], f"{row[1]}/wins_lexicon")),
    )
    data = [{"key": one["key"], **one["summary"]} for one in found]
    return declared("judge", "How often the judge errs", note, rows, shape, data)


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
