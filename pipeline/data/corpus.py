"""Texts from wherever they come, cleaned and split into training and held-out ones; the only file that knows
sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

import numpy as np

from pipeline.data.cleaning import clean, polarity
from pipeline.data.files import TEXT_COLUMNS, held_out, read_splits
from pipeline.data.hub_data import hub_splits
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
    """-log probability of each held-out text under the process that made it, nats; None where nobody knows."""
    note: str
    """What was read and what was left out, in words."""
    train_labels: list[int] = field(default_factory=list)
    """1 positive, 0 negative, -1 anything else; of the built-in reviews none."""
    heldout_labels: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Rows read, and rows left out by reason."""

    def require_both_classes(self) -> None:
        """Raises `UserError` where one of the two classes is absent."""
        for name, labels in (("training", self.train_labels), ("held-out", self.heldout_labels)):
            positive, negative = labels.count(1), labels.count(0)
            if not positive or not negative:
                raise UserError(
                    f"data: reward preferences 'labels' need both classes, and the {len(labels)} {name} texts are"
                    f" {positive} positive and {negative} negative (labels must be 0 or 1, negative or positive); use"
                    " other texts, or preferences: judge"
                )


def load_corpus(cfg: DataConfig) -> Corpus:
    """Read the texts of a configuration. Raises `UserError` for what is absent, unreadable or too little."""
    match cfg.source:
        case "builtin":
            return _builtin(cfg)
        case "local":
            return _split(read_splits(Path(cfg.local.path or ""), "data.local.path", TEXT_COLUMNS), cfg)
        case "hub":
            return _split(hub_splits(cfg), cfg)
        case _:
            assert_never(cfg.source)


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
    texts = {name: _distinct(frame, counts) for name, frame in splits.items()}
    train, heldout = texts["train"], texts.get("test", {})
    if "test" in texts:
        # Left out of the held-out texts and not of the others: a ready classifier may have been trained on all of the
        # training split.
        both = train.keys() & heldout.keys()
        counts["in_both_splits"] = len(both)
        heldout = {text: label for text, label in heldout.items() if text not in both}
    else:
        kept = held_out(train)
        heldout = {text: label for text, label in train.items() if text in kept}
        train = {text: label for text, label in train.items() if text not in kept}
    if not train or not heldout:
        raise UserError(
            f"data: {counts['rows']} rows leave {len(train)} training and {len(heldout)} held-out texts after cleaning;"
            " more texts are needed"
        )
    train, heldout = _shuffled(train, cfg.seed, 0), _shuffled(heldout, cfg.seed, 1)
    counts |= {"train_texts": len(train), "heldout_texts": len(heldout)}
    left_out = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in ("empty", "repeated", "in_both_splits"))
    note = f"{counts['rows']} rows read, left out: {left_out}; {len(train)} training and {len(heldout)} held-out texts"
    used = dict(list(train.items())[: cfg.sft_texts])
    return Corpus(list(used), list(heldout), None, note, list(used.values()), list(heldout.values()), counts)


def _distinct(frame: Any, counts: dict[str, int]) -> dict[str, int]:
    """Cleaned texts with their polarity; of equal texts the first counts."""
    distinct: dict[str, int] = {}
    cleaned: dict[Any, str] = {}
    for raw, label in zip(frame["text"].tolist(), frame["label"].tolist(), strict=True):
        if not isinstance(raw, str):
            raw = ""
        if (text := cleaned.get(raw)) is None:
            text = cleaned[raw] = clean(raw)
        counts["empty"] += not text
        counts["repeated"] += text in distinct
        if text:
            distinct.setdefault(text, polarity(label))
    return distinct


def _shuffled(texts: dict[str, int], seed: int, stream: int) -> dict[str, int]:
    """In an order of our own: data sets often come sorted by label, and the first texts must stand for all."""
    rows = list(texts.items())
    return {rows[index][0]: rows[index][1] for index in np.random.default_rng([seed, 2, stream]).permutation(len(rows))}
