"""Rankings of the user's: a prompt, K completions, and the rank of each, 1 for the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.data.files import RANKING_COLUMNS, numbered_rows, split_files
from pipeline.errors import UserError

TOLD = 3
"""So many bad rows are told, and the number of the others."""
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
        more = f"; and {len(bad) - TOLD} more rows" if len(bad) > TOLD else ""
        raise UserError(f"{path}, {'; '.join(bad[:TOLD])}{more}")
    return rankings


def _wrong(prompt: Any, texts: Any, ranks: Any, ranked: int) -> str | None:
    """Why a row is no ranking of so many texts, in words."""
    if not isinstance(prompt, str):
        return f"the prompt is {_named(prompt)} and no text"
    for name, column in (("completions", texts), ("ranks", ranks)):
        if not isinstance(column, list):
            return f"{name} is {_named(column)} and no list"
        if len(column) != ranked:
            return f"{len(column)} {name}, and reward.ranked is {ranked}"
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
