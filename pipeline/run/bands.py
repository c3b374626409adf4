"""Healthy bands of series: what a trial that learns well shows, the likely cause where it shows something else, and
the settings to change.

A band is a warning, not a verdict. `Metric.low` and `Metric.high` bound what a correct trial can show; a band bounds
what a healthy one does. Where no source gives a number, it is measured on the shipped studies of the profile `tiny`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

SHARE = 0.2
"""Share of its records that a series may have outside a band, unless the band sets another. PPO at four times the
learning rate of `tiny`, with which it wins most often, has 12 % of its steps above the band of policy/approxkl."""

Base = Literal["", "start", "median"]


@dataclass(frozen=True)
class Band:
    """The healthy values of a series, `low` to `high`, both allowed."""

    advice: str
    """Change to make, as an instruction; the settings of other algorithms and schedules among them."""
    source: str
    low: float = -math.inf
    high: float = math.inf
    below: str = ""
    """Likely cause of values below `low`."""
    above: str = ""
    """Likely cause of values above `high`."""
    base: Base = ""
    """Unit of the bounds. start: the median of the trial's first records, as many as a series needs to be
    judged; median: that of all positive records; empty: 1."""
    least_base: float = 0.0
    """The band judges only a series whose base is above this."""
    share: float = SHARE
    """Share of the records that may lie outside, from 0 to 1."""
    only: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Settings, and the values of them with which the band holds; a trial that does not state one has it."""
    unless: str = ""
    """A series that shows the same more precisely: where it is recorded, this one is not judged."""

    @property
    def words(self) -> str:
        """The healthy values, in words.

        >>> Band("", "", low=0.9, high=1.1).words, Band("", "", low=0.5, base="start", share=0.01).words
        ('0.9 to 1.1 in at least 80 % of the records', 'at least 0.5 times its start in at least 99 % of the records')
        """
        sides = {"at least": self.low, "at most": self.high}
        finite = {side: bound for side, bound in sides.items() if math.isfinite(bound)}
        bounds = (
            f"{self.low:g} to {self.high:g}" if len(finite) == 2 else " ".join(f"{k} {v:g}" for k, v in finite.items())
        )
        times = {"start": " times its start", "median": " times its median", "": ""}[self.base]
        return f"{bounds}{times} in at least {100 * (1 - self.share):g} % of the records"


def _bands() -> dict[str, tuple[Band, ...]]:
    content = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return {key: tuple(Band(**band) for band in bands) for key, bands in content.items()}


BANDS = _bands()
"""Series -> its bands, the gravest first."""
