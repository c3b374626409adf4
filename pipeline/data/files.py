"""Tables of texts: parquet, CSV and JSONL on the user's disk, one file or a folder in the layout of a hub data set;
data sets of the hub, at exactly the commit asked for, no code of theirs, no pickles; and one form for all texts."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.config.names import nearest
from pipeline.data.settings import DataConfig
from pipeline.errors import UserError
from pipeline.named_files import UNREADABLE, below, is_folder, kind_of, leaves, require_file
from pipeline.run.hub import absent, cause_of_absence
from pipeline.run.store import file_digest
from pipeline.wording import in_words, shown

FORMATS = ("parquet", "csv", "jsonl")
SPLITS = ("train", "test")
TEXT_COLUMNS = ("text",)
PAIR_COLUMNS = ("prompt", "chosen", "rejected")
HELDOUT_SHARE = 10
"""One of so many texts or prompts is held out when a source has no test split of its own."""


_BREAK, _SPACE = re.compile(r"</?(?:br|p|hr)\s*/?>", re.IGNORECASE), re.compile(r"\s+")
_STRAY: dict[int, str | None] = {
    **{code: None for code in (*range(0x20), 0x7F, 0xFEFF, *range(0xD800, 0xE000)) if not chr(code).isspace()},
    # Dashes and quotes of Windows-1252 that were read as Latin-1 on the way; hundreds of IMDb's reviews have them.
    **{code: bytes([code]).decode("cp1252", "ignore") or None for code in range(0x80, 0xA0)},
}


def clean(text: str) -> str:
    """Plain text on one line: HTML breaks and entities resolved, stray control characters repaired, white space single.

    >>> clean("Good.<br /><br />Very &amp; truly\\tgood ")
    'Good. Very & truly good'
    >>> clean("bad \\x96 it\\x92s\\x00 dull")
    'bad – it’s dull'
    """
    return _SPACE.sub(" ", html.unescape(_BREAK.sub(" ", text)).translate(_STRAY)).strip()


def held_out(names: Iterable[str]) -> set[str]:
    """Return the texts or prompts that are held out: one of `HELDOUT_SHARE`, rounded up, by the order of their hashes,
    so that the order of a file does not matter and an added name moves at most one other."""
    distinct = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    return set(distinct[: math.ceil(len(distinct) / HELDOUT_SHARE)])


def split_files(path: Path, key: str) -> dict[str, list[Path]]:
    """Files by split: one file is all training; a folder may hold train* and test*, as hub data sets do.
    Raises `UserError` for what is absent or has another layout."""
    origin = f"{key} = '{shown(path, 400)}'"
    if kind_of(path) is None:
        raise UserError(f"{origin}: there is no such file or folder")
    if not is_folder(path):
        require_file(path, origin)
        if path.suffix[1:] not in FORMATS:
            raise UserError(f"{origin}: the format must be one of {', '.join(FORMATS)}")
        return {"train": [path]}
    tables = [file for file in below(path, origin) if file.suffix[1:] in FORMATS]
    for file in tables:
        if leaves(file, path):
            name = file.relative_to(path)
            raise UserError(f"{origin}: '{name}' is a link that leaves the folder; put the file there, as cp -rL does")
        require_file(file, str(file))
    splits = {split: [file for file in tables if file.name.startswith(split)] for split in SPLITS}
    if not splits["train"]:
        raise UserError(f"{origin}: the folder holds no train*.parquet, train*.csv or train*.jsonl")
    return {split: files for split, files in splits.items() if files}


def digests(path: Path, key: str) -> dict[str, str]:
    """Digest of every file that `split_files` finds: other content under the same path is another source."""
    tables = [file for files in split_files(path, key).values() for file in files]
    return {"." if file == path else file.relative_to(path).as_posix(): file_digest(file) for file in tables}


def check_source(cfg: DataConfig) -> None:
    """Refuse an absent file, a wrong layout or a missing column before anything is written."""
    if cfg.source == "local":
        read_splits(Path(cfg.local.path or ""), "data.local.path", TEXT_COLUMNS, head=True)


def read_splits(path: Path, key: str, columns: Sequence[str], head: bool = False) -> dict[str, Any]:
    """The named columns by split, as data frames; the `head` of each file alone. Raises `UserError` with the file for
    what cannot be read or lacks a column."""
    import pandas as pd

    return {
        split: pd.concat([_read(file, columns, head) for file in files], ignore_index=True)
        for split, files in split_files(path, key).items()
    }


def require(columns: Sequence[str], header: Sequence[object], origin: str) -> None:
    """Refuse a table that lacks one of `columns`."""
    names = [str(name) for name in header]
    for column in columns:
        if column not in names:
            its = f"its columns are {shown(', '.join(names), 1_000)}" if names else "it has no columns"
            raise UserError(
                f"{origin}: no column '{column}'{nearest(column, names)}; {its}; needed are {', '.join(columns)}"
            )


def _read(path: Path, columns: Sequence[str], head: bool) -> Any:
    import pandas as pd
    import pyarrow.parquet as pq

    with readable(path):
        if path.suffix == ".parquet":
            frame = pq.read_schema(path).empty_table().to_pandas() if head else pd.read_parquet(path)
        elif path.suffix == ".csv":
            # As strings, and nothing is "missing": a review may consist of the word NA.
            rows = 0 if head else None
            frame = pd.read_csv(path, encoding="utf-8-sig", dtype=str, keep_default_na=False, nrows=rows)
        else:
            # As they are: a string type would refuse half a surrogate pair.
            objects = islice(numbered_lines(path), 1 if head else None)
            frame = pd.DataFrame([row for _, row in objects], dtype=object)
    require(columns, list(frame.columns), str(path))
    return frame[list(columns)]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what reading a table raises into a `UserError` with the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: is not UTF-8 (byte 0x{error.object[error.start]:02x}); convert it, for example with: iconv -f"
            " latin1 -t utf-8"
        ) from None
    except UNREADABLE as error:
        raise UserError(f"{path}: cannot be read as {path.suffix[1:]}: {in_words(error)}") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file and their lines, from 1 on. Raises `UserError`."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line.rstrip())
                except (ValueError, RecursionError) as error:
                    # A decoder's own line is counted from this one.
                    why = getattr(error, "msg", in_words(error))
                    raise UserError(f"{path}: cannot be read as jsonl: line {number}: {why}") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}: line {number} is {type(row).__name__} and no object")
                yield number, row


TABLES = ("Parquet", "Csv", "Json", "Arrow", "Cache")
"""Builders of `datasets` that read tables and nothing else."""


def check_reachable(cfg: DataConfig) -> None:
    """Refuse a hub data set that is neither in the cache nor to be had, by one short question. Raises `UserError`."""
    if cfg.source == "hub" and not _cached(cfg):
        cause = cause_of_absence("dataset", cfg.hub.name or "", cfg.hub.revision)
        if cause:
            raise _absent(cfg, cause)


def hub_splits(cfg: DataConfig) -> dict[str, Any]:
    """The texts by split, as data frames, from the cache or the network. Raises `UserError` where there are none."""
    import datasets

    check_reachable(cfg)
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        builder = _builder(cfg)
        builder.download_and_prepare()
        data = builder.as_dataset()
    except UserError:
        raise
    except Exception as error:  # like the hub's client, `datasets` raises a dozen unrelated classes
        raise _absent(cfg, in_words(error)) from None
    if "train" not in data:
        raise UserError(f"data.hub.name = '{cfg.hub.name}': there is no split 'train'; it has {', '.join(data)}")
    wanted = [split for split in SPLITS if split in data]
    for split in wanted:
        require(TEXT_COLUMNS, data[split].column_names, f"data.hub.name = '{cfg.hub.name}', split '{split}'")
    return {split: data[split].select_columns(list(TEXT_COLUMNS)).to_pandas() for split in wanted}


def _builder(cfg: DataConfig) -> Any:
    from datasets import load_dataset_builder
    from datasets.packaged_modules.cache.cache import Cache

    name, cached = cfg.hub.name or "", _cached(cfg)
    if len(cached) == 1:
        # By its commit: left to itself, `datasets` tries the network first, for half a minute where there is none, and
        # then takes the newest copy of its cache, whichever commit was asked for.
        config, version, commit = cached[0].parts[-3:]
        return Cache(repo_id=name, dataset_name=name.split("/")[-1], config_name=config, version=version, hash=commit)
    builder = load_dataset_builder(name, revision=cfg.hub.revision)
    if Path(builder.cache_dir).name != cfg.hub.revision:
        raise _absent(cfg, f"the newest copy in the cache is of revision {Path(builder.cache_dir).name}")
    if not any(base.__name__ in TABLES for base in type(builder).__mro__):
        raise UserError(
            f"data.hub.name = '{name}': its files are no parquet, CSV or JSON but for {type(builder).__name__}; use"
            " another data set"
        )
    return builder


def _cached(cfg: DataConfig) -> list[Path]:  # <cache>/<data set>/<configuration>/<version>/<commit>
    from datasets.config import HF_DATASETS_CACHE
    from datasets.naming import camelcase_to_snakecase

    *owner, last = (cfg.hub.name or "").split("/")
    folder = Path(HF_DATASETS_CACHE).expanduser() / "___".join([*owner, camelcase_to_snakecase(last)])
    return sorted(folder.glob(f"*/*/{cfg.hub.revision}"))


def _absent(cfg: DataConfig, cause: str) -> UserError:
    from datasets.config import HF_DATASETS_CACHE

    instead = "use data.source=local and data.local.path=<folder with train*.parquet and test*.parquet>"
    return UserError(absent("data.hub.name", cfg.hub.name or "", cfg.hub.revision, cause, HF_DATASETS_CACHE, instead))
