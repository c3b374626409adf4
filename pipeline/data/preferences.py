"""Preferences of the user's: rankings of texts that continue a prompt, as prompt, completions, ranks. A pair is a
ranking of two, in files as prompt, chosen, rejected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.data.files import PAIR_COLUMNS, RANKING_COLUMNS, clean, held_out, read_splits
from pipeline.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 3
"""Bad rows that a message lists; of the others it gives the number."""
Ranking = tuple[str, list[str]]
"""A prompt, and its completions, best first."""


def read_preferences(path: Path, key: str, ranked: int = 2) -> tuple[pd.DataFrame, str]:
    """The rankings of a file or folder as prompt, completions (`ranked` texts, best first), heldout, group (what
    rankings of the same answers have in common: the prompt, or where it is empty one of the texts); and what was left
    out, in words.

    Completions continue the prompt as they stand; all are cleaned as texts are. A folder's test split is held out; else
    one of ten groups is, by its hash. Raises `UserError` for what is absent, unreadable or too little, and for rows
    that rank another number of texts.
    """
    import pandas as pd

    splits = _rankings_of(path, key, ranked)
    rows = sum(map(len, splits.values()))
    distinct = {split: _distinct(found) for split, found in splits.items()}
    linked = _linked(texts for found in distinct.values() for prompt, texts in found if not prompt)
    frames = {
        split: pd.DataFrame(found, columns=["prompt", "completions"]).assign(
            group=[prompt or linked[texts[0]] for prompt, texts in found]
        )
        for split, found in distinct.items()
    }
    train = frames["train"]
    kept = train["group"].isin(set(frames["test"]["group"]) if "test" in frames else held_out(train["group"]))
    heldout, train = frames.get("test", train[kept]), train[~kept]
    if train.empty or heldout.empty:
        raise UserError(
            f"{key} = '{path}': {rows} rows leave {len(train)} {'pairs' if ranked == 2 else 'rankings'} to train on and"
            f" {len(heldout)} held out; more are needed, with other prompts or, without prompts, other texts"
        )
    found = pd.concat([train.assign(heldout=False), heldout.assign(heldout=True)], ignore_index=True)
    return found, f"{rows} rows read, {rows - len(found)} left out (empty, equal texts, repeated, or in both splits)"


def _rankings_of(path: Path, key: str, ranked: int) -> dict[str, list[Ranking]]:
    """The rankings of a file or folder by split, as they stand. `key` names in messages where the path stood.

    Raises `UserError` for what is absent or unreadable, and for rows that rank no `ranked` texts. Pairs that lack a
    side are left as they are.
    """
    if ranked == 2:
        pairs = read_splits(path, key, PAIR_COLUMNS)
        return {
            split: [(prompt, sides) for prompt, *sides in frame.itertuples(index=False)]
            for split, frame in pairs.items()
        }
    frames = read_splits(path, key, RANKING_COLUMNS)
    return {split: _checked(frame, path, ranked) for split, frame in frames.items()}


def _checked(frame: pd.DataFrame, path: Path, ranked: int) -> list[Ranking]:
    rankings, bad = list[Ranking](), list[str]()
    for row, cells in enumerate(frame.itertuples(index=False), 1):
        prompt, texts, ranks = (cell.tolist() if hasattr(cell, "tolist") else cell for cell in cells)
        if (wrong := _wrong(prompt, texts, ranks, ranked)) is None:
            rankings.append((prompt, [text for _, text in sorted(zip(ranks, texts, strict=True))]))
        else:
            bad.append(f"row {row}: {wrong}")
    if bad:
        more = f"; and {len(bad) - SHOWN} more rows" if len(bad) > SHOWN else ""
        raise UserError(f"{path}, {'; '.join(bad[:SHOWN])}{more}")
    return rankings


def _wrong(prompt: Any, texts: Any, ranks: Any, ranked: int) -> str | None:
    """Return why a row is no ranking of so many texts, or None."""
    if not isinstance(prompt, str):
        return "the prompt is no text"
    if not isinstance(texts, list) or len(texts) != ranked:
        return f"completions must be a list of {ranked} texts (reward.learned.ranked)"
    if not all(isinstance(text, str) and text.strip() for text in texts):
        return "a completion is empty or no text"
    numbers = isinstance(ranks, list) and all(type(rank) in (int, float) for rank in ranks)
    if not numbers or sorted(ranks) != list(range(1, ranked + 1)):
        return f"ranks {ranks} must be the numbers from 1 (best) to {ranked}, each once"
    return None


def _distinct(rankings: Iterable[tuple[Any, Sequence[Any]]]) -> list[Ranking]:
    """Distinct rankings, cleaned, whose texts all differ."""
    rows: dict[tuple[str, ...], Ranking] = {}
    for prompt, texts in rankings:
        if not all(isinstance(text, str) for text in (prompt, *texts)):
            continue
        opening = clean(prompt)
        # Cleaned as one text, so that the space between prompt and completion stays what it was.
        cleaned = [clean(prompt + text).removeprefix(opening) for text in texts]
        if all(text.strip() for text in cleaned) and len(set(cleaned)) == len(cleaned):
            rows.setdefault((opening, *cleaned), (opening, cleaned))
    return list(rows.values())


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
