"""Verdicts while trials run: which claims have fallen so far, read from the tail of each metrics file.

What is told here is a preview of `studies.claims.verdicts`, by the same functions. Only a claim that has fallen is
told, since none can be said to have survived before its step is reached. A claim that is relative to the baseline is
judged on the steps that the baseline's trial of the same seed has reached. Claims on the evaluation are judged when the
trial has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipeline.run.stopping import Record
from pipeline.run.tail import Tail
from studies.claims.falsifiers import Verdict, evaluate
from studies.claims.relative import Trajectory, compare
from studies.definition.falsifier import Falsifier


class _Followed(NamedTuple):
    """A running trial: its file, and the claims on it."""

    tail: Tail
    falsifiers: tuple[Falsifier, ...]


class LiveVerdicts:
    """Tells each fallen claim of each trial once."""

    def __init__(self, baseline: str = "") -> None:
        self._baseline = baseline
        self._followed: dict[tuple[str, int], _Followed] = {}
        self._ended: dict[int, dict[str, list[Record]]] = {}
        self._told: set[tuple[str, int, str]] = set()

    def follow(
        self, arm: str, seed: int, path: Path, falsifiers: Iterable[Falsifier], compared: Iterable[str] = ()
    ) -> None:
        """A trial writes this file from now on; `compared`: metrics of it that other arms are compared with."""
        own = tuple(falsifier for falsifier in falsifiers if not falsifier.evaluated)
        wanted = frozenset({falsifier.metric for falsifier in own} | set(compared))
        self._followed[arm, seed] = _Followed(Tail(path, wanted), own)

    def baseline_ended(self, seed: int, series: Mapping[str, Iterable[Record]]) -> None:
        """The baseline's trial of a seed has ended and left these series."""
        self._ended[seed] = {metric: list(records) for metric, records in series.items()}

    def poll(self, arm: str, seed: int) -> list[Verdict]:
        """Claims that have fallen since the last call."""
        followed = self._followed.get((arm, seed))
        if followed is None or not followed.falsifiers:
            return []
        followed.tail.read()
        return self.news(self._judge(falsifier, followed.tail, arm, seed) for falsifier in followed.falsifiers)

    def _judge(self, falsifier: Falsifier, tail: Tail, arm: str, seed: int) -> Verdict:
        series = list(tail.series.get(falsifier.metric, {}).items())
        if falsifier.relative_to:
            base = self._of_baseline(falsifier.metric, seed)
            found = compare(falsifier, Trajectory(series, 0), Trajectory(base, 0))
        else:
            found = evaluate(falsifier, series, 0)
        return replace(found, arm=arm, seed=seed)

    def _of_baseline(self, metric: str, seed: int) -> list[Record]:
        """What is known of the baseline's series: all of it, or what its running trial has written."""
        if seed in self._ended:
            return self._ended[seed].get(metric, [])
        followed = self._followed.get((self._baseline, seed))
        if followed is None:
            return []
        followed.tail.read()
        return list(followed.tail.series.get(metric, {}).items())

    def news(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Those that refute and have not been told."""
        fallen = [
            verdict
            for verdict in verdicts
            if verdict.outcome == "FALSIFIED" and (verdict.arm, verdict.seed, verdict.name) not in self._told
        ]
        self._told |= {(verdict.arm, verdict.seed, verdict.name) for verdict in fallen}
        return fallen
