"""Preference pairs of the user's: prompt, chosen, rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.data.cleaning import clean
from pipeline.data.files import HELDOUT_SHARE, PAIR_COLUMNS, read_splits
from pipeline.errors import UserError


def read_preferences(path: Path, key: str) -> tuple[pd.DataFrame, str]:
    """The pairs of a file or folder as prompt, chosen, rejected, heldout, and what was left out, in words.

    ``chosen`` and ``rejected`` continue ``prompt`` as they stand; all are cleaned as texts are. A folder's test split
    is held out; else one of ten prompts is. Raises `UserError` for what is absent, unreadable or too little.
    """
    splits = read_splits(path, key, PAIR_COLUMNS)
    rows = sum(map(len, splits.values()))
    frames = {split: _clean(frame) for split, frame in splits.items()}
    if "test" in frames:
        heldout = frames["test"]
        train = frames["train"][~frames["train"]["_group"].isin(set(heldout["_group"]))]
    else:
        groups = frames["train"]["_group"]
        kept = groups.isin(set(groups.drop_duplicates().iloc[::HELDOUT_SHARE]))
        train, heldout = frames["train"][~kept], frames["train"][kept]
    if train.empty or heldout.empty:
        raise UserError(
            f"{key} = '{path}': {rows} rows leave {len(train)} pairs to train on and {len(heldout)} held out; more are"
            " needed"
        )
    pairs = pd.concat([train.assign(heldout=False), heldout.assign(heldout=True)], ignore_index=True)
    left_out = rows - len(pairs)
    return (
        pairs.drop(columns="_group"),
        f"{rows} rows read, {left_out} left out (empty, equal sides, repeated, or in both splits)",
    )


def _clean(frame: Any) -> pd.DataFrame:
    """Distinct pairs with two different sides; `_group` is what must not be on both sides of the split."""
    rows: dict[tuple[str, str, str], str] = {}
    for prompt, chosen, rejected in frame.itertuples(index=False):
        if not all(isinstance(text, str) for text in (prompt, chosen, rejected)):
            continue
        opening = clean(prompt)
        # Cleaned as one text, so that the space between prompt and completion stays what it was.
        better, worse = (clean(prompt + side).removeprefix(opening) for side in (chosen, rejected))
        if better.strip() and worse.strip() and better != worse:
            rows.setdefault((opening, better, worse), opening or better)
    table = pd.DataFrame(list(rows), columns=list(PAIR_COLUMNS))
    return table.assign(_group=list(rows.values()))
