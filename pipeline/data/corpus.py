"""Texts from wherever they come, split into training and held-out ones; the only file that knows sources."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import file_digest
from pipeline.config import DataConfig, nearest
from pipeline.errors import UserError

COLUMNS = ("text", "label")
FORMATS = ("parquet", "csv", "jsonl")
HELDOUT_TEXTS = 16
"""Built-in reviews held out per prompt wanted: most of their openings are training prompts as well and cannot be used."""
HELDOUT_SHARE = 10
"""One of so many texts is held out when the source has no test split of its own."""


@dataclass(frozen=True)
class Corpus:
    """Distinct cleaned texts; no held-out text occurs among the training texts."""

    train: list[str]
    heldout: list[str]
    heldout_nats: list[float] | None
    """-log probability of each held-out text under the process that made it, nats; None where nobody knows."""
    note: str
    """What was read and what was left out, in words."""


def load_corpus(cfg: DataConfig) -> Corpus:
    """Read the texts of a configuration. Raises `UserError` for what is absent, unreadable or too little."""
    if cfg.source == "builtin":
        return _builtin(cfg)
    splits = _local(Path(cfg.path or "")) if cfg.source == "local" else _hub(cfg)
    return _split(splits, cfg)


def check_source(cfg: DataConfig) -> None:
    """Refuse an absent file or a wrong layout before anything is written."""
    if cfg.source == "local":
        _files(Path(cfg.path or ""))


def fingerprint(cfg: DataConfig) -> dict[str, str]:
    """Digests of the files that a local source consists of: other content under the same path is another source."""
    if cfg.source != "local":
        return {}
    root = Path(cfg.path or "")
    found = [file for files in _files(root).values() for file in files]
    return {"." if file == root else file.relative_to(root).as_posix(): file_digest(file) for file in found}


def _builtin(cfg: DataConfig) -> Corpus:
    from pipeline.data.grammar import generate

    heldout = HELDOUT_TEXTS * cfg.heldout_prompts
    reviews = generate(cfg.sft_texts + heldout, cfg.seed)
    train, kept = reviews[: cfg.sft_texts], reviews[cfg.sft_texts :]
    nats = [-review.logprob for review in kept]
    note = f"{len(reviews)} distinct built-in reviews, seed {cfg.seed}"
    return Corpus([review.text for review in train], [review.text for review in kept], nats, note)


def _split(splits: Mapping[str, Iterable[str]], cfg: DataConfig) -> Corpus:
    texts = {name: [clean(text) for text in rows if isinstance(text, str)] for name, rows in splits.items()}
    read = sum(map(len, texts.values()))
    unique = {name: list(dict.fromkeys(text for text in rows if text)) for name, rows in texts.items()}
    if "test" in unique:
        test = set(unique["test"])
        train, heldout = [text for text in unique["train"] if text not in test], unique["test"]
    else:
        heldout = unique["train"][::HELDOUT_SHARE]
        kept = set(heldout)
        train = [text for text in unique["train"] if text not in kept]
    left_out = read - len(train) - len(heldout)
    if not train or not heldout:
        raise UserError(
            f"data: {read} rows leave {len(train)} training and {len(heldout)} held-out texts after cleaning; more texts are needed"
        )
    note = f"{read} rows read, {left_out} left out (empty, repeated, or in both splits)"
    return Corpus(train[: cfg.sft_texts], heldout, None, note)


_BREAK, _SPACE = re.compile(r"<br\s*/?>", re.IGNORECASE), re.compile(r"\s+")


def clean(text: str) -> str:
    """Plain text on one line: HTML breaks and entities resolved, white space single.

    >>> clean("Good.<br /><br />Very &amp; truly\\tgood ")
    'Good. Very & truly good'
    """
    return _SPACE.sub(" ", html.unescape(_BREAK.sub(" ", text))).strip()


def _local(path: Path) -> dict[str, Iterable[str]]:
    return {split: [text for file in files for text in _read(file)] for split, files in _files(path).items()}


def _files(path: Path) -> dict[str, list[Path]]:
    """Files by split: one file is all training; a folder may hold train* and test*, as hub data sets do."""
    if not path.exists():
        raise UserError(f"data.path = '{path}': there is no such file or folder")
    if path.is_file():
        if path.suffix[1:] not in FORMATS:
            raise UserError(f"data.path = '{path}': the format must be one of {', '.join(FORMATS)}")
        return {"train": [path]}
    found = sorted(file for file in path.rglob("*") if file.suffix[1:] in FORMATS)
    splits = {split: [file for file in found if file.name.startswith(split)] for split in ("train", "test")}
    if not splits["train"]:
        raise UserError(f"data.path = '{path}': the folder holds no train*.parquet, train*.csv or train*.jsonl")
    return {split: files for split, files in splits.items() if files}


def _read(path: Path) -> list[Any]:
    import pandas as pd

    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".csv":
            frame = pd.read_csv(path)
        else:
            frame = pd.read_json(path, lines=True)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as {path.suffix[1:]}: {str(error).splitlines()[0]}") from None
    _require(COLUMNS, list(map(str, frame.columns)), str(path))
    return frame["text"].tolist()


def _require(columns: Iterable[str], found: list[str], origin: str) -> None:
    for column in columns:
        if column not in found:
            raise UserError(f"{origin}: column '{column}' is missing; it has {', '.join(found)}{nearest(column, found)}")


def _hub(cfg: DataConfig) -> dict[str, Iterable[str]]:
    from datasets import load_dataset
    from datasets.config import HF_DATASETS_CACHE

    try:
        data = load_dataset(cfg.name, revision=cfg.revision)
    except Exception as error:
        # The hub's client raises a dozen unrelated classes for "not reachable", and all mean the same to the user.
        cause = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        raise UserError(
            f"data.name = '{cfg.name}' could not be loaded ({cause}); searched the network and the cache {HF_DATASETS_CACHE}. "
            f"With a copy on disk, use data.source=local and data.path=<folder with train.parquet and test.parquet>"
        ) from None
    if "train" not in data:
        raise UserError(f"data.name = '{cfg.name}': there is no split 'train'; it has {', '.join(data)}")
    _require(COLUMNS, data["train"].column_names, f"data.name = '{cfg.name}'")
    return {split: data[split]["text"] for split in ("train", "test") if split in data}
