"""Forest plot of the findings of papers: the effect that was measured on each testbed, and what the paper predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from textwrap import fill
from typing import Any

import pandas as pd

from pipeline.run.metrics import METRICS
from reports.figures.marks import point, rows_axis, side
from reports.figures.style import BLUE, DOUBLE, GRID, INK, ORANGE, ArmStyle, Plot, entry, legend, new_figure
from reports.statistics.two_level import Estimate
from reports.text.say import say
from reports.text.words import name

WIDTH = 46
"""Letters in a line of a label."""
TESTBEDS = {
    "reviews": ArmStyle(INK, "-", "o"), "long reviews": ArmStyle(ORANGE, "-", "D"), "chains": ArmStyle(BLUE, "-", "s"),
}  # fmt: skip
"""How each testbed is drawn; in `papers.yaml` they are keys of a finding."""
ENDS = ("estimate", "estimate_low", "estimate_high")
"""An effect and its interval, as columns; those of the run on other seeds begin with `again_`."""
_COLUMNS = [
    "finding", "testbed", "metric", "at_equal_kl", "expect", "margin", "verdict", *ENDS,
    *(f"again_{end}" for end in ENDS),
]  # fmt: skip


def papers(tested: Sequence[Mapping[str, Any]]) -> Plot | None:
    """Draw a row per finding and testbed with an estimate, in a panel for each metric; the band is what the paper
    predicts: a half-line, or the margin within which arms count as equal. None where nothing was estimated."""
    data = pd.DataFrame(tested, columns=_COLUMNS).dropna(subset="estimate").astype(object)
    if data.empty:
        return None
    data = data.where(data.notna(), None)
    keys = [(str(row["metric"]), row["at_equal_kl"] in (True,)) for row in data.to_dict("records")]
    panels = {key: own.to_dict("records") for key, own in data.groupby(pd.Series(keys, data.index), sort=False)}
    sizes = [len(own) + 0.9 for own in panels.values()]
    figure = new_figure(DOUBLE, 0.4 + 0.34 * sum(sizes))
    grid = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": sizes})
    for axes, ((key, matched), rows) in zip(grid.flat, panels.items(), strict=True):
        ends = [row[run + end] for row in rows for run in ("", "again_") for end in ENDS]
        reach = 1.15 * max(abs(end) for end in [*ends, *(row["margin"] for row in rows)] if end is not None)
        for at, row in enumerate(rows):
            band = (min(max(end, -reach), reach) for end in predicted(row["expect"], row["margin"]))
            axes.fill_betweenx([at - 0.4, at + 0.4], *band, color=GRID, lw=0, zorder=0)
            for run, below in (("", 0.0), ("again_", 0.24)):
                value, low, high = (row[run + end] for end in ENDS)
                if value is not None:
                    effect = Estimate(value, low, high, 0, 0, "none")
                    point(axes, effect, at + below, TESTBEDS[row["testbed"]], hollow=bool(run))
            side(axes, at, row["verdict"])
        axes.axvline(0, color=INK, lw=0.8, zorder=1)
        axes.set_xlim(-reach, reach)
        rows_axis(axes, [fill(row["finding"], WIDTH) for row in rows])
        axes.set_title(f"Δ {name(key)}{' at equal KL' * matched} [{METRICS[key].unit}]")
    legend(figure, [entry(bed, look.color, "", look.marker) for bed, look in TESTBEDS.items()])
    alt = "; ".join(f"{row['finding']} ({row['testbed']}): {row['verdict']}" for row in data.to_dict("records"))
    return Plot(figure, data, "Effects beside what papers predict", say("figures", "papers"), alt, wide=True)


def predicted(expect: str, margin: float) -> tuple[float, float]:
    """Return the least and the largest effect that are as expected.

    >>> predicted("higher", 0.0), predicted("equal", 0.03)
    ((0.0, inf), (-0.03, 0.03))
    """
    return {"higher": (margin, inf), "lower": (-inf, -margin), "equal": (-margin, margin)}[expect]
