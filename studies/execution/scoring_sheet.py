"""A file of prompts and completions, and the same file with columns added: parquet, CSV and JSONL."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.data.files import FORMATS, numbered_lines, readable, require
from pipeline.errors import UserError
from pipeline.named_files import require_file
from pipeline.wording import shown

NEEDED = ("prompt", "completion")
FIELD = 2**31 - 1
"""Characters in a field of a CSV file, at most: a long text is no fault."""
Row = dict[str, Any]


def read_sheet(path: Path) -> dict[str, Row]:
    """The rows of a file, read by its suffix, by the file and place of each. Raises `UserError` with the line of the
    first row that cannot be used."""
    require_file(path, str(path))
    if path.suffix[1:] not in FORMATS:
        raise UserError(f"{path}: the format must be one of {', '.join(FORMATS)}")
    with readable(path):
        numbered = {"parquet": _parquet, "csv": _csv, "jsonl": numbered_lines}[path.suffix[1:]](path)
        word = "row" if path.suffix == ".parquet" else "line"
        rows = {f"{path}, {word} {number}": row for number, row in numbered}
    if not rows:
        raise UserError(f"{path}: it has no rows")
    for place, row in rows.items():
        _check(row, place)
    return rows


def write_sheet(path: Path, rows: Sequence[Row], columns: Mapping[str, Sequence[float]], target: Path) -> None:
    """Write the rows of `path` to `target`, with columns added; the others as they were read."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        for name, values in columns.items():
            table = table.append_column(name, pa.array(values, pa.float64()))
        pq.write_table(table, target)
        return
    added = [dict(zip(columns, more, strict=True)) for more in zip(*columns.values(), strict=True)]
    wider = [{**row, **more} for row, more in zip(rows, added, strict=True)]
    with target.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, list(wider[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(wider)
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in wider)


def _check(row: Row, place: str) -> None:
    """Refuse a row without two texts, or with half of a surrogate pair, which no file can hold. Raises `UserError`."""
    require(NEEDED, list(row), place)
    for name in NEEDED:
        if not isinstance(row[name], str):
            raise UserError(f"{place}: {name} is {shown(json.dumps(row[name], default=str))}, not a text")
    if not (row["prompt"] + row["completion"]).strip():
        raise UserError(f"{place}: prompt and completion are empty")
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: it holds half of a surrogate pair; repair the text") from None


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    """Rows and their last lines. Raises `ValueError` for a row with more or fewer cells than the header."""
    csv.field_size_limit(FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        if len({*(names := reader.fieldnames or [])}) < len(names):
            raise ValueError(f"two columns have one name: {', '.join(names)}")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has not as many cells as there are columns")
            yield reader.line_num, row


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow.parquet as pq

    yield from enumerate(pq.read_table(path).to_pylist(), 1)
