"""Texts from wherever they come, cleaned and split into training and held-out ones; the only file that depends
on the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.files import TEXT_COLUMNS, clean, held_out, hub_splits, read_splits
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


def load_corpus(cfg: DataConfig) -> Corpus:
    """Read the texts of a configuration. Raises `UserError` for what is absent, unreadable or too little."""
    if cfg.source == "builtin":
        return _builtin(cfg)
    if cfg.source == "local":
        return _split(read_splits(Path(cfg.local.path or ""), "data.local.path", TEXT_COLUMNS), cfg)
    return _split(hub_splits(cfg), cfg)


def _builtin(cfg: DataConfig) -> Corpus:
    from pipeline.data.reviews import generate

    heldout = HELDOUT_TEXTS * cfg.heldout_prompts
    reviews = generate(cfg.sft_texts + heldout, cfg.seed, cfg.builtin.insults)
    train, kept = reviews[: cfg.sft_texts], reviews[cfg.sft_texts :]
    nats = [-review.logprob for review in kept]
    insulting = f", {cfg.builtin.insults:.0%} of them with an insult" if cfg.builtin.insults else ""
    note = f"{len(reviews)} distinct built-in reviews{insulting}, seed {cfg.seed}"
    return Corpus([review.text for review in train], [review.text for review in kept], nats, note)


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
    """Cleaned texts, each once."""
    cleaned = [clean(raw) if isinstance(raw, str) else "" for raw in rows]
    texts = list(dict.fromkeys(filter(None, cleaned)))
    empty = cleaned.count("")
    counts["empty"] += empty
    counts["repeated"] += len(cleaned) - empty - len(texts)
    return texts


def _shuffled(texts: list[str], seed: int, stream: int) -> list[str]:
    """Shuffle texts: data sets often come sorted by label, and the first texts must stand for all."""
    return [texts[index] for index in np.random.default_rng([seed, 2, stream]).permutation(len(texts))]
