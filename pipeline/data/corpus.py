"""Texts from wherever they come, cleaned and split into training and held-out ones; the only file that depends
on the source. A data set of the hub is a folder of tables, downloaded at exactly the commit that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.files import FORMATS, SPLITS, TEXT_COLUMNS, clean, held_out, read_splits
from pipeline.data.settings import DataConfig
from pipeline.errors import UserError
from pipeline.faults import in_words
from pipeline.run.hub import absent, cause_of_absence

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
    path, key = (Path(cfg.local.path or ""), "local.path") if cfg.source == "local" else (_snapshot(cfg), "hub.name")
    return _split(read_splits(path, f"data.{key}", TEXT_COLUMNS), cfg)


def check_reachable(cfg: DataConfig) -> None:
    """Refuse a hub data set that is neither in the cache nor to be had, by one short question. Raises `UserError`."""
    if cfg.source == "hub":
        try:
            _download(cfg, local_files_only=True)
        except Exception:  # the hub's client raises a dozen unrelated classes for "not available"
            if cause := cause_of_absence("dataset", cfg.hub.name or "", cfg.hub.revision):
                raise _absent(cfg, cause) from None


def _snapshot(cfg: DataConfig) -> Path:
    """The folder of a hub data set in the cache, downloaded where it is absent."""
    check_reachable(cfg)
    try:
        return _download(cfg)
    except Exception as error:
        raise _absent(cfg, in_words(error)) from None


def _download(cfg: DataConfig, **how: Any) -> Path:
    from huggingface_hub import snapshot_download

    tables = [f"{folder}{split}*.{suffix}" for folder in ("", "*/") for split in SPLITS for suffix in FORMATS]
    name, revision = cfg.hub.name or "", cfg.hub.revision
    return Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=tables, **how))


def _absent(cfg: DataConfig, cause: str) -> UserError:
    from huggingface_hub.constants import HF_HUB_CACHE

    instead = "use data.source=local and data.local.path=<folder with train*.parquet and test*.parquet>"
    return UserError(absent("data.hub.name", cfg.hub.name or "", cfg.hub.revision, cause, HF_HUB_CACHE, instead))


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
