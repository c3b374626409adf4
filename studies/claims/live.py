"""Verdicts while trials run: which claims have fallen so far, read from the tail of each metrics file.

What is told here is a preview of `studies.claims.verdicts`, by the same function; only a claim that has fallen is told,
since none can be said to have survived before its step is reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from studies.claims.falsifiers import Verdict, evaluate
from studies.definition.schema import Falsifier


@dataclass
class _Tail:
    """What has been read of one trial's metrics file."""

    path: Path
    falsifiers: tuple[Falsifier, ...]
    offset: int = 0
    series: dict[str, dict[int, float]] = field(default_factory=dict)

    def read(self) -> None:
        """Take in the lines that are new. A resumed trial first cuts off what it is going to write again: then all is
        read again."""
        try:
            if self.path.stat().st_size < self.offset:
                self.offset, self.series = 0, {}
            with self.path.open("rb") as file:
                file.seek(self.offset)
                complete = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:  # not begun, or just moved to its final place
            return
        self.offset += len(complete) + 1 if complete else 0
        wanted = {falsifier.metric for falsifier in self.falsifiers}
        for line in complete.splitlines():
            row = json.loads(line)
            for metric in wanted & row.keys():
                self.series.setdefault(metric, {})[int(row["step"])] = float(row[metric])


class LiveVerdicts:
    """Tells each fallen claim of each trial once."""

    def __init__(self) -> None:
        self._tails: dict[tuple[str, int], _Tail] = {}
        self._told: set[tuple[str, int, str]] = set()

    def follow(self, arm: str, seed: int, path: Path, falsifiers: Iterable[Falsifier]) -> None:
        """A trial writes this file from now on."""
        self._tails[arm, seed] = _Tail(path, tuple(falsifiers))

    def poll(self, arm: str, seed: int) -> list[Verdict]:
        """Claims that have fallen since the last call."""
        tail = self._tails.get((arm, seed))
        if tail is None or not tail.falsifiers:
            return []
        tail.read()
        return self.news(
            evaluate(falsifier, tail.series.get(falsifier.metric, {}).items(), 0, arm=arm, seed=seed)
            for falsifier in tail.falsifiers
        )

    def news(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Those that refute and have not been told."""
        fallen = [
            verdict
            for verdict in verdicts
            if verdict.outcome == "FALSIFIED" and (verdict.arm, verdict.seed, verdict.name) not in self._told
        ]
        self._told |= {(verdict.arm, verdict.seed, verdict.name) for verdict in fallen}
        return fallen
