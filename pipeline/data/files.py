"""Tables that the user has on disk: parquet, CSV and JSONL, one file or a folder in the layout of a hub data set."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.names import nearest
from pipeline.data.settings import DataConfig
from pipeline.errors import UserError
from pipeline.named_files import UNREADABLE, below, first_line, is_folder, leaves, require_file, state
from pipeline.run.store import file_digest
from pipeline.wording import shown

FORMATS = ("parquet", "csv", "jsonl")
TEXT_COLUMNS = ("text", "label")
PAIR_COLUMNS = ("prompt", "chosen", "rejected")
RANKING_COLUMNS = ("prompt", "completions", "ranks")
MOST_ROWS = 10_000_000
"""Of a parquet file."""
HELDOUT_SHARE = 10
"""One of so many texts or prompts is held out when a source has no test split of its own."""


def held_out(names: Iterable[str]) -> set[str]:
    """Return the texts or prompts that are held out: one of `HELDOUT_SHARE`, rounded up, by the order of their hashes.

    Neither labels nor the order of a file influence them, and an added name moves at most one other.
    """
    distinct = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    return set(distinct[: math.ceil(len(distinct) / HELDOUT_SHARE)])


def split_files(path: Path, key: str) -> dict[str, list[Path]]:
    """Files by split: one file is all training; a folder may hold train* and test*, as hub data sets do.

    `key` names in messages where the path stood. Raises `UserError` for what is absent or has another layout.
    """
    origin = f"{key} = '{shown(path, 400)}'"
    if state(path) is None:
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
    splits = {split: [file for file in tables if file.name.startswith(split)] for split in ("train", "test")}
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
        check_columns(Path(cfg.local.path or ""), "data.local.path", TEXT_COLUMNS)


def fingerprint(cfg: DataConfig) -> dict[str, str]:
    """Digests of the files that a local source consists of; a hub data set is pinned by its revision instead."""
    return digests(Path(cfg.local.path or ""), "data.local.path") if cfg.source == "local" else {}


def read_splits(path: Path, key: str, columns: Sequence[str]) -> dict[str, Any]:
    """The named columns by split, as data frames. Raises `UserError` with the file for what cannot be read or lacks a
    column."""
    import pandas as pd

    splits = split_files(path, key).items()
    return {split: pd.concat([_read(file, columns) for file in files], ignore_index=True) for split, files in splits}


def check_columns(path: Path, key: str, columns: Sequence[str]) -> None:
    """Refuse a source one of whose files lacks a column, from the heads of the files alone. Raises `UserError`."""
    for files in split_files(path, key).values():
        for file in files:
            with readable(file):
                header = _header(file, columns)
            require(columns, header, str(file))


def check_rows(path: Path, most: int = MOST_ROWS) -> None:
    """Refuse a parquet file that holds more rows than fit into memory: a kilobyte can stand for billions of equal ones.

    Raises `ValueError`, and what pyarrow raises.
    """
    import pyarrow.parquet as pq

    rows = pq.read_metadata(path).num_rows
    if rows > most:
        raise ValueError(f"it has {rows:,} rows, and at most {most:,} are read")


def require(columns: Sequence[str], header: Sequence[object], origin: str) -> None:
    """Refuse a table that lacks one of `columns`."""
    names = [str(name) for name in header]
    for column in columns:
        if column not in names:
            its = f"its columns are {shown(', '.join(names), 1_000)}" if names else "it has no columns"
            raise UserError(
                f"{origin}: no column '{column}'{nearest(column, names)}; {its}; needed are {', '.join(columns)}"
            )


def _read(path: Path, columns: Sequence[str]) -> Any:
    import pandas as pd

    with readable(path):
        if path.suffix == ".parquet":
            frame = _parquet(path, columns)
        elif path.suffix == ".csv":
            # As strings, and nothing is "missing": a review may consist of the word NA.
            frame = pd.read_csv(path, encoding=_encoding(path), dtype=str, keep_default_na=False)
        else:
            # As they are: a string type would refuse half a surrogate pair.
            frame = pd.DataFrame(list(_json_lines(path)), dtype=object)
    require(columns, list(frame.columns), str(path))
    return frame[list(columns)]


def _parquet(path: Path, columns: Sequence[str]) -> Any:
    """Those of the columns that a parquet file has, as a data frame in which each distinct text is stored once: a
    kilobyte can stand for gigabytes of equal ones."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_rows(path)
    schema = pq.read_schema(path)
    there = [name for name in columns if name in schema.names]
    texts = [name for name in there if schema.field(name).type in (pa.string(), pa.large_string())]
    frame = pq.read_table(path, columns=there, read_dictionary=texts).to_pandas()
    for name in texts:
        distinct = np.array([*frame[name].cat.categories, None], dtype=object)
        frame[name] = pd.Series(distinct[frame[name].cat.codes], index=frame.index, dtype=object)  # code -1: null
    return frame if there else frame.reindex(columns=schema.names)


def numbered_rows(path: Path, columns: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The named columns row by row as Python objects, each row with its place in words, from 1; of formats that hold
    lists.

    Raises `UserError` as `read_splits` does, for a row of JSONL that lacks a column, and for CSV.
    """
    if path.suffix == ".csv":
        raise UserError(f"{path}: CSV holds no lists; use parquet or JSONL")
    if path.suffix == ".parquet":
        return [(f"row {number}", row) for number, row in enumerate(_read(path, columns).to_dict("records"), 1)]
    with readable(path):
        rows = [(f"line {number}", row) for number, row in numbered_lines(path)]
    for place, row in rows:
        require(columns, list(row), f"{path}, {place}")
    return rows


def _header(path: Path, columns: Sequence[str]) -> list[str]:
    """The columns of a table. JSONL has those of all its rows together; no more rows are read than show all of
    `columns`."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        check_rows(path)
        return list(pq.read_schema(path).names)
    if path.suffix == ".csv":
        with path.open(encoding=_encoding(path), newline="") as file:
            return next(csv.reader(file), [])
    header: dict[str, None] = {}
    for row in _json_lines(path):
        header |= dict.fromkeys(row)
        if set(columns) <= header.keys():
            break
    return list(header)


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
        raise UserError(f"{path}: cannot be read as {path.suffix[1:]}: {first_line(error)}") from None


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    return (row for _, row in numbered_lines(path))


def numbered_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file and their lines, from 1 on. Raises `ValueError`."""
    with path.open(encoding=_encoding(path)) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line.rstrip())
                except json.JSONDecodeError as error:  # whose own line is counted from this one
                    raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from None
                except RecursionError:
                    raise ValueError(f"line {number}: nested too deeply") from None
                except ValueError:
                    raise ValueError(f"line {number}: a number with thousands of digits") from None
                if not isinstance(row, dict):
                    raise ValueError(f"line {number} is {type(row).__name__} and no object")
                yield number, row


def _encoding(path: Path) -> str:
    """UTF-16 where the file begins with its mark, as spreadsheets write it; else UTF-8, with or without a mark."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
