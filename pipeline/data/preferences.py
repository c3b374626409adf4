"""Preferences of the user's: pairs as prompt, chosen, rejected, and rankings as prompt, completions, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.data.cleaning import clean
from pipeline.data.files import PAIR_COLUMNS, RANKING_COLUMNS, held_out, numbered_rows, read_splits, split_files
from pipeline.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


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
    import pandas as pd

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
    import pandas as pd

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
    import pandas as pd

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


SHOWN = 3
"""Bad rows that a message lists; of the others it gives the number."""
Ranking = tuple[str, list[str]]
"""A prompt, and its completions, best first."""


def rankings_of(path: Path, key: str, ranked: int) -> dict[str, list[Ranking]]:
    """The rankings of a file or folder by split, as they stand. `key` names in messages where the path stood.

    Raises `UserError` for what is absent or unreadable, and for rows that rank no `ranked` texts, with their lines.
    """
    found: dict[str, list[Ranking]] = {}
    for split, files in split_files(path, key).items():
        for file in files:
            found.setdefault(split, []).extend(_of_file(file, ranked))
    return found


def _of_file(path: Path, ranked: int) -> list[Ranking]:
    rankings, bad = list[Ranking](), list[str]()
    for place, row in numbered_rows(path, RANKING_COLUMNS):
        prompt, texts, ranks = (_plain(row[name]) for name in RANKING_COLUMNS)
        if (wrong := _wrong(prompt, texts, ranks, ranked)) is None:
            rankings.append((prompt, [text for _, text in sorted(zip(ranks, texts, strict=True))]))
        else:
            bad.append(f"{place}: {wrong}")
    if bad:
        more = f"; and {len(bad) - SHOWN} more rows" if len(bad) > SHOWN else ""
        raise UserError(f"{path}, {'; '.join(bad[:SHOWN])}{more}")
    return rankings


def _wrong(prompt: Any, texts: Any, ranks: Any, ranked: int) -> str | None:
    """Why a row is no ranking of so many texts, in words."""
    if not isinstance(prompt, str):
        return f"the prompt is {_named(prompt)} and no text"
    for name, column in (("completions", texts), ("ranks", ranks)):
        if not isinstance(column, list):
            return f"{name} is {_named(column)} and no list"
        if len(column) != ranked:
            return f"{len(column)} {name}, and reward.learned.ranked is {ranked}"
    for place, text in enumerate(texts, 1):
        if not isinstance(text, str) or not text.strip():
            return f"completion {place} is {'empty' if isinstance(text, str) else f'{_named(text)} and no text'}"
    if any(isinstance(rank, bool) or not isinstance(rank, int | float) for rank in ranks) or sorted(ranks) != list(
        range(1, ranked + 1)
    ):
        return f"ranks {ranks} must be the numbers from 1 (best) to {ranked}, each once"
    return None


def _plain(value: Any) -> Any:
    """Lists of a table are arrays."""
    return value.tolist() if hasattr(value, "tolist") else value


def _named(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
