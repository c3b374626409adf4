"""Preferences of the user's: pairs of texts that continue a prompt, as prompt, chosen, rejected."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.data.files import PAIR_COLUMNS, clean, held_out, read_splits
from pipeline.errors import UserError


def read_preferences(path: Path, key: str) -> tuple[pd.DataFrame, str]:
    """The pairs of a file or folder as prompt, chosen, rejected, group (the prompt, or where it is empty one of the
    texts), heldout; and what was left out, in words. `key` names in messages where the path stood.

    Completions continue the prompt as they stand; all are cleaned as texts are. A folder's test split is held out; else
    one of ten groups is, by its hash. No held-out text is one to train on. Raises `UserError` for what is absent,
    unreadable or too little.
    """
    read = read_splits(path, key, PAIR_COLUMNS)
    splits = {split: _distinct(frame) for split, frame in read.items()}
    train = splits["train"]
    kept = train["group"].isin(set(splits["test"]["group"]) if "test" in splits else held_out(train["group"]))
    heldout, train = splits.get("test", train[kept]), train[~kept]
    sides = ("chosen", "rejected")
    seen = {text for side in sides for text in train["prompt"] + train[side]}
    heldout = heldout[
        ~pd.concat([(heldout["prompt"] + heldout[side]).isin(seen) for side in sides], axis=1).any(axis=1)
    ]
    rows = sum(map(len, read.values()))
    if train.empty or heldout.empty:
        raise UserError(
            f"{key} = '{path}': {rows} rows leave {len(train)} pairs to train on and {len(heldout)} held out; more are"
            " needed, with other prompts or, without prompts, other texts"
        )
    found = pd.concat([train.assign(heldout=False), heldout.assign(heldout=True)], ignore_index=True)
    return found, f"{rows} rows read, {rows - len(found)} left out (empty, equal texts, repeated, or in both splits)"


def _distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Distinct pairs, cleaned, of texts that differ."""
    rows: dict[tuple[str, str, str], str] = {}
    for prompt, *texts in frame.itertuples(index=False):
        if not all(isinstance(text, str) for text in (prompt, *texts)):
            continue
        opening = clean(prompt)
        # Cleaned as one text, so that the space between prompt and completion stays what it was.
        chosen, rejected = (clean(prompt + text).removeprefix(opening) for text in texts)
        if chosen.strip() and rejected.strip() and chosen != rejected:
            rows[opening, chosen, rejected] = opening or min(chosen, rejected)
    return pd.DataFrame([(*row, group) for row, group in rows.items()], columns=[*PAIR_COLUMNS, "group"])
