"""Texts from wherever they come, and preferences of the user's, cleaned and split into training and held-out ones; the
only file that depends on the source."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.files import PAIR_COLUMNS, TEXT_COLUMNS, clean, held_out, hub_splits, read_splits
from pipeline.data.settings import DataConfig
from pipeline.errors import UserError

HELDOUT_TEXTS = 16
"""Built-in reviews held out per prompt wanted: most of their openings are training prompts as well and cannot be
used."""


@dataclass(frozen=True)
class Corpus:
    """Distinct cleaned texts; no held-out text occurs among the training texts."""

    train: list[str]
    heldout: list[str]
    heldout_nats: list[float] | None
    """-log probability of each held-out text under the process that made it, nats; None where it is unknown."""
    note: str
    """Description of what was read and what was left out."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows read, and rows left out by reason."""
    words: tuple[str, ...] = ()
    """The vocabulary, where the texts have a small one that is known; the first of them ends a prompt."""
    prompts: tuple[list[str], list[str]] | None = None
    """Training and held-out prompts, where these are no openings of the texts."""


def load_corpus(cfg: DataConfig) -> Corpus:
    """Read the texts of a configuration. Raises `UserError` for what is absent, unreadable or too little."""
    if cfg.source == "builtin":
        return _builtin(cfg)
    if cfg.source == "chains":
        return _chains(cfg)
    if cfg.source == "local":
        return _split(read_splits(Path(cfg.local.path or ""), "data.local.path", TEXT_COLUMNS), cfg)
    return _split(hub_splits(cfg), cfg)


def _builtin(cfg: DataConfig) -> Corpus:
    from pipeline.data.reviews import generate

    heldout = HELDOUT_TEXTS * cfg.heldout_prompts
    reviews = generate(cfg.sft_texts + heldout, cfg.seed, cfg.builtin.insults, cfg.builtin.clauses)
    train, kept = reviews[: cfg.sft_texts], reviews[cfg.sft_texts :]
    nats = [-review.logprob for review in kept]
    insulting = f", {cfg.builtin.insults:.0%} of them with an insult" if cfg.builtin.insults else ""
    length = " of {} to {} clauses".format(*cfg.builtin.clauses) if cfg.builtin.clauses else ""
    note = f"{len(reviews)} distinct built-in reviews{length}{insulting}, seed {cfg.seed}"
    return Corpus([review.text for review in train], [review.text for review in kept], nats, note)


def _chains(cfg: DataConfig) -> Corpus:
    from pipeline.data.chains import GROUPS, SIGNS, prompts, texts

    rng, chains = random.Random(cfg.seed), cfg.chains
    train, heldout = (texts(chains, cfg.sft_texts, False, rng), texts(chains, cfg.heldout_prompts, True, rng))
    asked = prompts(chains, cfg.train_prompts, False, rng), prompts(chains, cfg.heldout_prompts, True, rng)
    low, high = chains.lengths
    note = f"products of {low} to {high} elements of {chains.group}, seed {cfg.seed}"
    return Corpus(train, heldout, None, note, words=(*SIGNS, *GROUPS[chains.group].elements), prompts=asked)


def _split(splits: Mapping[str, Any], cfg: DataConfig) -> Corpus:
    counts = {"rows": sum(map(len, splits.values())), "empty": 0, "repeated": 0, "in_both_splits": 0}
    texts = {name: _distinct(frame["text"].tolist(), counts) for name, frame in splits.items()}
    train, heldout = texts["train"], texts.get("test", [])
    if "test" in texts:
        # Left out of the held-out texts and not of the others: a ready classifier may have been trained on all of the
        # training split.
        known = set(train)
        counts["in_both_splits"] = sum(text in known for text in heldout)
        heldout = [text for text in heldout if text not in known]
    else:
        kept = held_out(train)
        train, heldout = [text for text in train if text not in kept], [text for text in train if text in kept]
    if not train or not heldout:
        raise UserError(
            f"data: {counts['rows']} rows leave {len(train)} training and {len(heldout)} held-out texts after cleaning;"
            " more texts are needed"
        )
    counts |= {"train_texts": len(train), "heldout_texts": len(heldout)}
    left_out = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in ("empty", "repeated", "in_both_splits"))
    note = f"{counts['rows']} rows read, left out: {left_out}; {len(train)} training and {len(heldout)} held-out texts"
    return Corpus(_shuffled(train, cfg.seed, 0)[: cfg.sft_texts], _shuffled(heldout, cfg.seed, 1), None, note, counts)


def _distinct(rows: Sequence[Any], counts: dict[str, int]) -> list[str]:
    cleaned = [clean(raw) if isinstance(raw, str) else "" for raw in rows]
    texts = list(dict.fromkeys(filter(None, cleaned)))
    empty = cleaned.count("")
    counts["empty"] += empty
    counts["repeated"] += len(cleaned) - empty - len(texts)
    return texts


def _shuffled(texts: list[str], seed: int, stream: int) -> list[str]:
    # Data sets often come sorted by label, and the first texts must stand for all.
    return [texts[index] for index in np.random.default_rng([seed, 2, stream]).permutation(len(texts))]


def read_preferences(path: Path, key: str) -> tuple[pd.DataFrame, str]:
    """The pairs of a file or folder as prompt, chosen, rejected, group (the prompt, or where it is empty one of the
    texts), heldout; and what was left out, in words. `key` names in messages where the path stood.

    Completions continue the prompt as they stand; all are cleaned as texts are. A folder's test split is held out; else
    one of ten groups is, by its hash. No held-out text is one to train on. Raises `UserError` for what is absent,
    unreadable or too little.
    """
    read = read_splits(path, key, PAIR_COLUMNS)
    splits = {split: _distinct_pairs(frame) for split, frame in read.items()}
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


def _distinct_pairs(frame: pd.DataFrame) -> pd.DataFrame:
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
