"""The series of a metrics file that grows while its trial runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tail:
    """What has been read of one trial's `metrics.jsonl`."""

    path: Path
    wanted: frozenset[str]
    """Metrics that are read."""
    offset: int = 0
    series: dict[str, dict[int, float]] = field(default_factory=dict)
    """Metric -> gradient step -> value; of two records at one step the last."""

    def read(self) -> bool:
        """Take in the lines that are new, and say whether there were any. A resumed trial first cuts off what it is
        going to write again: then all is read again."""
        try:
            if self.path.stat().st_size < self.offset:
                self.offset, self.series = 0, {}
            with self.path.open("rb") as file:
                file.seek(self.offset)
                complete = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:  # not begun, or just moved to its final place
            return False
        self.offset += len(complete) + 1 if complete else 0
        for line in complete.splitlines():
            row = json.loads(line)
            for metric in self.wanted & row.keys():
                self.series.setdefault(metric, {})[int(row["step"])] = float(row[metric])
        return bool(complete)
