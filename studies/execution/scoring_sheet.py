"""A file of prompts and completions, and the same file with columns added: parquet, CSV and JSONL."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.files import FORMATS, numbered_lines, readable, require
from pipeline.errors import UserError
from pipeline.named_files import require_file
from pipeline.wording import shown

NEEDED = ("prompt", "completion")
FIELD = 2**31 - 1
"""Characters in a field of a CSV file, at most: a long text is no fault."""


@dataclass(frozen=True)
class Sheet:
    """The rows of a file; columns beside prompt and completion are written back as they were read."""

    path: Path
    rows: list[dict[str, Any]]
    places: list[str]
    """The file and the place of each row, for messages."""

    @property
    def prompts(self) -> list[str]:
        return [row["prompt"] for row in self.rows]

    @property
    def completions(self) -> list[str]:
        return [row["completion"] for row in self.rows]

    @property
    def names(self) -> list[str]:
        """Names of the columns that are there."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def write(self, target: Path, columns: Mapping[str, Sequence[float]]) -> None:
        """Write the rows with columns added."""
        if self.path.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            table = pq.read_table(self.path)
            for name, values in columns.items():
                table = table.append_column(name, pa.array(values, pa.float64()))
            pq.write_table(table, target)
            return
        wider = [
            {**row, **dict(zip(columns, more, strict=True))}
            for row, *more in zip(self.rows, *columns.values(), strict=True)
        ]
        with target.open("w", encoding="utf-8", newline="") as file:
            if self.path.suffix == ".csv":
                writer = csv.DictWriter(file, [*self.names, *columns], lineterminator="\n")
                writer.writeheader()
                writer.writerows(wider)
            else:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in wider)


def read_sheet(path: Path) -> Sheet:
    """Read a file by its suffix. Raises `UserError` with the line of the first row that cannot be used."""
    require_file(path, str(path))
    if path.suffix[1:] not in FORMATS:
        raise UserError(f"{path}: the format must be one of {', '.join(FORMATS)}")
    with readable(path):
        numbered = {"parquet": _parquet, "csv": _csv, "jsonl": numbered_lines}[path.suffix[1:]](path)
        sheet = Sheet(path, [], [])
        for number, row in numbered:
            sheet.rows.append(row)
            sheet.places.append(f"{path}, {'row' if path.suffix == '.parquet' else 'line'} {number}")
    if not sheet.rows:
        raise UserError(f"{path}: it has no rows")
    for place, row in zip(sheet.places, sheet.rows, strict=True):
        _check(row, place)
    return sheet


def _check(row: Mapping[str, Any], place: str) -> None:
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


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
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


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow.parquet as pq

    yield from enumerate(pq.read_table(path).to_pylist(), 1)
