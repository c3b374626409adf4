"""Tables that the user has on disk: parquet, CSV and JSONL, one file or a folder in the layout of a hub data set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts import file_digest
from pipeline.config import DataConfig, nearest
from pipeline.errors import UserError

FORMATS = ("parquet", "csv", "jsonl")
HELDOUT_SHARE = 10
"""One of so many rows is held out when a source has no test split of its own."""


def split_files(path: Path, key: str) -> dict[str, list[Path]]:
    """Files by split: one file is all training; a folder may hold train* and test*, as hub data sets do.

    `key` names in messages where the path stood. Raises `UserError` for what is absent or has another layout.
    """
    if not path.exists():
        raise UserError(f"{key} = '{path}': there is no such file or folder")
    if path.is_file():
        if path.suffix[1:] not in FORMATS:
            raise UserError(f"{key} = '{path}': the format must be one of {', '.join(FORMATS)}")
        return {"train": [path]}
    found = sorted(file for file in path.rglob("*") if file.suffix[1:] in FORMATS)
    splits = {split: [file for file in found if file.name.startswith(split)] for split in ("train", "test")}
    if not splits["train"]:
        raise UserError(f"{key} = '{path}': the folder holds no train*.parquet, train*.csv or train*.jsonl")
    return {split: files for split, files in splits.items() if files}


def digests(path: Path, key: str) -> dict[str, str]:
    """Digest of every file that `split_files` finds: other content under the same path is another source."""
    found = [file for files in split_files(path, key).values() for file in files]
    return {"." if file == path else file.relative_to(path).as_posix(): file_digest(file) for file in found}


def check_source(cfg: DataConfig) -> None:
    """Refuse an absent file or a wrong layout before anything is written."""
    if cfg.source == "local":
        split_files(Path(cfg.path or ""), "data.path")


def fingerprint(cfg: DataConfig) -> dict[str, str]:
    """Digests of the files that a local source consists of; a hub data set is pinned by its revision instead."""
    return digests(Path(cfg.path or ""), "data.path") if cfg.source == "local" else {}


def read_splits(path: Path, key: str, columns: Sequence[str]) -> dict[str, Any]:
    """The named columns by split, as data frames. Raises `UserError` with the file for what cannot be read or lacks a column."""
    import pandas as pd

    splits = split_files(path, key).items()
    return {split: pd.concat([_read(file, columns) for file in files], ignore_index=True) for split, files in splits}


def require(columns: Sequence[str], found: Sequence[object], origin: str) -> None:
    """Refuse a table that lacks one of `columns`."""
    names = [str(name) for name in found]
    for column in columns:
        if column not in names:
            raise UserError(f"{origin}: column '{column}' is missing; it has {', '.join(names)}{nearest(column, names)}")


def _read(path: Path, columns: Sequence[str]) -> Any:
    import pandas as pd

    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".csv":
            # As strings, and nothing is "missing": a review may consist of the word NA.
            frame = pd.read_csv(path, encoding=_encoding(path), dtype=str, keep_default_na=False)
        else:
            frame = pd.DataFrame(_json_lines(path), dtype=object)  # as they are: a string type would refuse half a surrogate pair
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: is not UTF-8 (byte 0x{error.object[error.start]:02x}); convert it, for example with: iconv -f latin1 -t utf-8"
        ) from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read as {path.suffix[1:]}: {str(error).splitlines()[0]}") from None
    require(columns, list(frame.columns), str(path))
    return frame[list(columns)]


def _json_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding=_encoding(path)).split("\n"), 1):
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is {type(row).__name__} and no object")
            rows.append(row)
    return rows


def _encoding(path: Path) -> str:
    """UTF-16 where the file begins with its mark, as spreadsheets write it; else UTF-8, with or without a mark."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
