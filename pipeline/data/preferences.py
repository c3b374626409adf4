"""Preferences of the user's: pairs as prompt, chosen, rejected, and rankings as prompt, completions, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from pipeline.data.cleaning import clean
from pipeline.data.files import PAIR_COLUMNS, held_out, read_splits
from pipeline.data.rankings import rankings_of
from pipeline.errors import UserError


def read_preferences(path: Path, key: str) -> tuple[pd.DataFrame, str]:
    """The pairs of a file or folder as prompt, chosen, rejected, heldout, and what was left out, in words.

    ``chosen`` and ``rejected`` continue ``prompt`` as they stand; all are cleaned as texts are. A folder's test split
    is held out; else one of ten prompts is, by its hash. Raises `UserError` for what is absent, unreadable or too
    little.
    """
    splits = read_splits(path, key, PAIR_COLUMNS)
    rows = sum(map(len, splits.values()))
    pairs = with_heldout({split: _clean(frame) for split, frame in splits.items()}, rows, path, key)
    return pairs.drop(columns="_group"), _left_out(rows, len(pairs))


def read_rankings(path: Path, key: str, ranked: int) -> tuple[pd.DataFrame, str]:
    """The same of rankings: prompt, completions (`ranked` texts, best first), heldout, group (what rankings of the same
    answers have in common: the prompt, or where it is empty one of the texts).

    Raises `UserError` also for rows that are no rankings of so many texts, with their lines.
    """
    splits = rankings_of(path, key, ranked)
    rows = sum(map(len, splits.values()))
    distinct = {split: _distinct(found) for split, found in splits.items()}
    linked = _linked(texts for found in distinct.values() for prompt, texts in found if not prompt)
    frames = {
        split: pd.DataFrame(found, columns=["prompt", "completions"]).assign(
            _group=[prompt or linked[texts[0]] for prompt, texts in found]
        )
        for split, found in distinct.items()
    }
    rankings = with_heldout(frames, rows, path, key, "rankings")
    return rankings.rename(columns={"_group": "group"}), _left_out(rows, len(rankings))


def with_heldout(frames: dict[str, pd.DataFrame], rows: int, path: Path, key: str, what: str = "pairs") -> pd.DataFrame:
    """Both halves in one table with the column `heldout`: no `_group` is in both.

    `rows`: how many were read. Raises `UserError` where one half is empty.
    """
    if "test" in frames:
        heldout = frames["test"]
        train = frames["train"][~frames["train"]["_group"].isin(set(heldout["_group"]))]
    else:
        kept = frames["train"]["_group"].isin(held_out(frames["train"]["_group"]))
        train, heldout = frames["train"][~kept], frames["train"][kept]
    if train.empty or heldout.empty:
        raise UserError(
            f"{key} = '{path}': {rows} rows leave {len(train)} {what} to train on and {len(heldout)} held out; more"
            " are needed, with other prompts or, without prompts, other texts"
        )
    return pd.concat([train.assign(heldout=False), heldout.assign(heldout=True)], ignore_index=True)


def _left_out(rows: int, kept: int) -> str:
    return f"{rows} rows read, {rows - kept} left out (empty, equal texts, repeated, or in both splits)"


def _linked(rankings: Iterable[Sequence[str]]) -> dict[str, str]:
    """Each text to one of all texts that are linked with it: two are where a ranking has both.

    >>> _linked([["a", "b"], ["c", "d"], ["d", "a"]])
    {'a': 'a', 'b': 'a', 'c': 'a', 'd': 'a'}
    """
    found: dict[str, str] = {}

    def root(text: str) -> str:
        while found.setdefault(text, text) != text:
            found[text] = text = found[found[text]]
        return text

    for texts in rankings:
        for text in texts:
            one, other = sorted((root(texts[0]), root(text)))
            found[other] = one
    return {text: root(text) for text in found}


def _distinct(rankings: Iterable[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """Distinct rankings, cleaned, whose texts all differ."""
    rows: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    read: set[tuple[str, ...]] = set()
    for prompt, texts in rankings:
        if (prompt, *texts) in read:
            continue
        read.add((prompt, *texts))
        opening = clean(prompt)
        cleaned = [clean(prompt + text).removeprefix(opening) for text in texts]
        if all(text.strip() for text in cleaned) and len(set(cleaned)) == len(cleaned):
            rows.setdefault((opening, *cleaned), (opening, cleaned))
    return list(rows.values())


def _clean(frame: pd.DataFrame) -> pd.DataFrame:
    """Distinct pairs with two different sides; `_group` is what must not be on both sides of the split."""
    rows: dict[tuple[str, str, str], None] = {}
    for prompt, chosen, rejected in frame.drop_duplicates().itertuples(index=False):
        if not all(isinstance(text, str) for text in (prompt, chosen, rejected)):
            continue
        opening = clean(prompt)
        # Cleaned as one text, so that the space between prompt and completion stays what it was.
        better, worse = (clean(prompt + side).removeprefix(opening) for side in (chosen, rejected))
        if better.strip() and worse.strip() and better != worse:
            rows.setdefault((opening, better, worse))
    linked = _linked((better, worse) for opening, better, worse in rows if not opening)
    table = pd.DataFrame(list(rows), columns=list(PAIR_COLUMNS))
    return table.assign(_group=[opening or linked[better] for opening, better, _ in rows])
