"""Which arms stand out where lines of all of them could not be told apart: the rest becomes a grey background."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from reports.figures.style import MUTED, ArmStyle, legend_entry
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.statistics.two_level import Array
from reports.text.words import name

MOST = 12
"""Lines that can be told apart in one panel."""
EITHER_END = 4


@dataclass(frozen=True)
class Emphasis:
    """The arms that are drawn with colour, dashes and marker, in the order of the study."""

    arms: tuple[str, ...]
    others: int
    chosen_by: str
    """What the arms at either end were ranked by, in words."""

    def __contains__(self, arm: str) -> bool:
        return arm in self.arms

    @property
    def sentence(self) -> str:
        """For a caption; empty where all arms are drawn alike."""
        if not self.others:
            return ""
        ends = f"the {EITHER_END} highest and {EITHER_END} lowest on {self.chosen_by}"
        return (
            f" Of many arms the baseline and {ends} stand out; grey: means of the other {self.others}, which the CSV"
            " names."
        )

    def handles(self, styles: dict[str, ArmStyle]) -> list[Line2D]:
        """Legend entries."""
        entries = [legend_entry(arm, style) for arm, style in styles.items() if arm in self]
        rest = Line2D([], [], color=MUTED, lw=0.6, alpha=0.6, label=f"{self.others} other arms")
        return [*entries, rest] if self.others else entries


def emphasis(records: StudyRecords, findings: Findings) -> Emphasis:
    """All arms up to `MOST`; of more the baseline and those at either end of the objective."""
    metric = records.study.objective.metric
    if len(records.arms) <= MOST:
        return Emphasis(tuple(records.arms), 0, name(metric))
    values = {result.arm: result.estimates[metric].value for result in findings.arms if metric in result.estimates}
    ranked = (
        sorted((arm for arm in values if arm != records.study.baseline), key=lambda arm: values[arm]) or records.arms
    )
    ends = {records.study.baseline, *ranked[:EITHER_END], *ranked[-EITHER_END:]}
    chosen = tuple(arm for arm in records.arms if arm in ends)
    return Emphasis(chosen, len(records.arms) - len(chosen), name(metric))


def background(axes: Axes, lines: Iterable[tuple[ArrayLike, ArrayLike]]) -> None:
    """Thin grey lines behind those that stand out."""
    drawn = list(_finite(lines))
    if drawn:
        axes.add_collection(LineCollection(drawn, colors=MUTED, linewidths=0.5, alpha=0.45, zorder=1))
        axes.autoscale_view()


def _finite(lines: Iterable[tuple[ArrayLike, ArrayLike]]) -> Iterator[Array]:
    for x, y in lines:
        points = np.column_stack([np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)])
        points = points[np.isfinite(points).all(axis=1)]
        if len(points):
            yield points
