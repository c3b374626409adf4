"""Verdicts while trials run: which claims have fallen so far, read from the tail of each metrics file.

What is told here is a preview of `studies.claims.verdicts`, by the same functions. Only a claim that has fallen is
told, since none can be said to have survived before its step is reached. A claim that is relative to the baseline is
judged on the steps that the baseline's trial of the same seed has reached. Claims on the evaluation are judged when the
trial has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.run.stopping import Record
from studies.claims.falsifiers import Verdict, evaluate
from studies.claims.relative import Trajectory, compare
from studies.definition.falsifier import Falsifier


@dataclass
class _Tail:
    """What has been read of one trial's metrics file."""

    path: Path
    falsifiers: tuple[Falsifier, ...]
    wanted: frozenset[str]
    """Metrics that are read."""
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
        for line in complete.splitlines():
            row = json.loads(line)
            for metric in self.wanted & row.keys():
                self.series.setdefault(metric, {})[int(row["step"])] = float(row[metric])


class LiveVerdicts:
    """Tells each fallen claim of each trial once."""

    def __init__(self, baseline: str = "") -> None:
        self._baseline = baseline
        self._tails: dict[tuple[str, int], _Tail] = {}
        self._ended: dict[int, dict[str, list[Record]]] = {}
        self._told: set[tuple[str, int, str]] = set()

    def follow(
        self, arm: str, seed: int, path: Path, falsifiers: Iterable[Falsifier], compared: Iterable[str] = ()
    ) -> None:
        """A trial writes this file from now on; `compared`: metrics of it that other arms are compared with."""
        own = tuple(falsifier for falsifier in falsifiers if not falsifier.evaluated)
        wanted = frozenset({falsifier.metric for falsifier in own} | set(compared))
        self._tails[arm, seed] = _Tail(path, own, wanted)

    def baseline_ended(self, seed: int, series: Mapping[str, Iterable[Record]]) -> None:
        """The baseline's trial of a seed has ended and left these series."""
        self._ended[seed] = {metric: list(records) for metric, records in series.items()}

    def poll(self, arm: str, seed: int) -> list[Verdict]:
        """Claims that have fallen since the last call."""
        tail = self._tails.get((arm, seed))
        if tail is None or not tail.falsifiers:
            return []
        tail.read()
        return self.news(self._judge(falsifier, tail, arm, seed) for falsifier in tail.falsifiers)

    def _judge(self, falsifier: Falsifier, tail: _Tail, arm: str, seed: int) -> Verdict:
        series = list(tail.series.get(falsifier.metric, {}).items())
        if not falsifier.relative_to:
            return evaluate(falsifier, series, 0, arm=arm, seed=seed)
        base = self._of_baseline(falsifier.metric, seed)
        return compare(falsifier, Trajectory(series, 0), Trajectory(base, 0), arm=arm, seed=seed)

    def _of_baseline(self, metric: str, seed: int) -> list[Record]:
        """What is known of the baseline's series: all of it, or what its running trial has written."""
        if seed in self._ended:
            return self._ended[seed].get(metric, [])
        tail = self._tails.get((self._baseline, seed))
        if tail is None:
            return []
        tail.read()
        return list(tail.series.get(metric, {}).items())

    def news(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Those that refute and have not been told."""
        fallen = [
            verdict
            for verdict in verdicts
            if verdict.outcome == "FALSIFIED" and (verdict.arm, verdict.seed, verdict.name) not in self._told
        ]
        self._told |= {(verdict.arm, verdict.seed, verdict.name) for verdict in fallen}
        return fallen
