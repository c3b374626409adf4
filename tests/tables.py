"""Tables of texts as files of every format that is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd


def write(path: Path, rows: Any) -> Path:
    """Rows, or columns by name, in the format that the file's suffix names."""
    frame = pd.DataFrame(rows)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path
