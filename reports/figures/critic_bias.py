"""The figure of what critics' values are worth, by place in the response."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from reports.figures.forest import whiskers
from reports.figures.style import INK, SINGLE, Drawn, arm_styles, legend_columns, legend_entry, new_figure
from reports.findings.critic_bias import PlaceBias
from reports.findings.findings import Findings
from reports.records.load import StudyRecords
from reports.text.words import number


def critic_bias(records: StudyRecords, findings: Findings) -> Drawn | None:
    """The critics' bias after so many tokens, and the share of the states' variance that they explain there."""
    rows = findings.critics
    placed = [row for row in rows if row.place is not None]
    if not placed:
        return None
    styles, arms = arm_styles(records.study), list(dict.fromkeys(row.arm for row in placed))
    figure = new_figure(SINGLE, 4.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    for position, arm in enumerate(arms):
        mine, style = [row for row in placed if row.arm == arm], styles[arm]
        places = [row.place + 0.25 * (position - (len(arms) - 1) / 2) for row in mine if row.place is not None]
        for at, row in zip(places, mine, strict=True):
            top.errorbar(
                [at], [row.bias.value], yerr=whiskers(row.bias), fmt=style.marker, color=style.color, ms=4,
                mec="white", mew=0.5, elinewidth=1.1, zorder=3,
            )  # fmt: skip
        top.plot(places, [row.bias.value for row in mine], color=style.color, dashes=_dashes(style.dashes), lw=0.9)
        known = [(at, row.explained) for at, row in zip(places, mine, strict=True) if row.explained is not None]
        bottom.plot(
            [at for at, _ in known], [share for _, share in known], marker=style.marker, ms=4, color=style.color,
            mec="white", mew=0.5, lw=0.9, dashes=_dashes(style.dashes),
        )  # fmt: skip
    for axes in (top, bottom):
        axes.axhline(0, color=INK, lw=0.8, zorder=1)
    top.set_ylabel("value − worth\n[std of reference samples]")
    bottom.set_ylabel("explained variance\nof the states' worth")
    bottom.set_ylim(max(bottom.get_ylim()[0], -2.0), 1.0)
    bottom.set_xticks(sorted({row.place for row in placed if row.place is not None}))
    bottom.set_xlabel("tokens of the response before the state")
    figure.legend(
        handles=[legend_entry(arm, styles[arm]) for arm in arms],
        loc="outside upper left",
        ncols=legend_columns(arms, SINGLE),
        handlelength=2.2,
    )
    first = placed[0].bias
    caption = (
        "The critics' values at the end of training against what the same states are worth: the mean reward to go of"
        " continuations sampled from them, KL penalty included, on held-out prompts. Above: mean difference, bars:"
        f" 95 %, hierarchical model over seeds and prompts (n = {first.seeds} × {first.prompts} at the first place)."
        " Below: share of the variance between states that the values explain; an offset counts as error, so it can be"
        " negative."
    )
    alt = "The critics' bias over all states: " + "; ".join(
        f"{row.arm} {number(row.bias.value)}" for row in rows if row.place is None
    )
    return Drawn(figure, _data(rows), "What the critic's values are worth", caption, alt + ".")


def _dashes(style: object) -> tuple[float, ...]:
    """What `Axes.plot` takes for a line style of ours."""
    return (1, 0) if isinstance(style, str) else tuple(style[1])  # type: ignore[index]


def _data(rows: Sequence[PlaceBias]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"arm": row.arm, "place": "all" if row.place is None else row.place, "bias": row.bias.value,
             "low": row.bias.low, "high": row.bias.high, "explained": row.explained, "states": row.states,
             "seeds": row.bias.seeds, "prompts": row.bias.prompts}
            for row in rows
        ]
    )  # fmt: skip
