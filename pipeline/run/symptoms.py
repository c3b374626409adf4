"""What a trial's series show of its health: which leave their band, how often, why, and what to turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.run.bands import BANDS, Band
from pipeline.run.knobs import acting, instruction

Array = NDArray[np.float64]
Series = tuple[Array, Array]
"""Gradient steps (N,) in rising order, and values (N,)."""
LEAST = 10
"""Records below which a series is not judged."""
OK = "ok"
UNKNOWN = "not judged"
"""Health of a trial without a banded series of `LEAST` records."""


@dataclass(frozen=True)
class Symptom:
    """A series that left its band in too many of its records."""

    key: str
    side: Literal["above", "below"]
    bound: float
    """In the series' unit."""
    outside: int
    n: int
    """Finite records; `outside` of them lie beyond `bound`."""
    first: int
    """Gradient step of the first record outside."""
    cause: str
    knob: str
    """What to change, as an instruction; empty where no knob of the band acts in the trial."""

    @property
    def share(self) -> float:
        """Of the records outside, in (0, 1]."""
        return self.outside / self.n

    @property
    def condition(self) -> str:
        """Series, side and bound.

        >>> Symptom("policy/approxkl", "above", 0.02, 61, 100, 3, "too far", "lower optimiser.lr").condition
        'policy/approxkl above 0.02'
        """
        return f"{self.key} {self.side} {self.bound:.3g}"

    @property
    def sentence(self) -> str:
        """All of it in one plain sentence, without the full stop.

        >>> Symptom("policy/approxkl", "above", 0.02, 61, 100, 3, "too far", "lower optimiser.lr").sentence
        'policy/approxkl above 0.02 in 61 % of 100 records, first at step 3: too far; lower optimiser.lr'
        """
        often = f"in {in_percent(self.share)} % of {self.n:,} records, first at step {self.first:,}"
        return f"{self.condition} {often}: {self.cause}{f'; {self.knob}' if self.knob else ''}"


@dataclass(frozen=True)
class Health:
    """What a trial's series say of it."""

    symptoms: tuple[Symptom, ...]
    """The largest share first."""
    judged: tuple[str, ...]
    """Series that were held against a band."""

    @property
    def words(self) -> str:
        """`OK`, `UNKNOWN`, or the series that left their bands with the share of their records.

        >>> Health((Symptom("policy/approxkl", "above", 0.02, 61, 100, 3, "too far", "lower"),), ()).words
        'policy/approxkl 61 %'
        >>> Health((), ("policy/approxkl",)).words, Health((), ()).words
        ('ok', 'not judged')
        """
        if self.symptoms:
            return ", ".join(f"{one.key} {in_percent(one.share)} %" for one in self.symptoms)
        return OK if self.judged else UNKNOWN


def in_percent(share: float) -> str:
    """A share in percent, without a sign: a rare spike is not told as 0, nor nearly all records as 100.

    >>> in_percent(0.614), in_percent(0.0042), in_percent(0.9996), in_percent(1.0)
    ('61', '0.42', '> 99', '100')
    """
    if 0.995 <= share < 1:
        return "> 99"
    return f"{100 * share:.0f}" if share >= 0.01 else f"{100 * share:.2g}"


def examine(series: Mapping[str, Series], settings: Mapping[str, object]) -> Health:
    """Hold a trial's series against their bands.

    `series`: of each key its steps and values; values that are not finite are no records. `settings`: the trial's
    configuration, flat (`kl.beta`); a setting that is not stated does not hold a band back. A series that is not
    recorded, or in fewer than `LEAST` records, is not judged.
    """
    found, judged = list[Symptom](), list[str]()
    for key in BANDS.keys() & series.keys():
        steps, values = _finite(*series[key])
        bands = [band for band in BANDS[key] if band.unless not in series and _holds(band, settings)]
        if bands and len(values) >= LEAST:
            judged.append(key)
            found += _of_series(key, bands, steps, values, settings)
    return Health(tuple(sorted(found, key=lambda one: (-one.share, one.key, one.side))), tuple(sorted(judged)))


def _of_series(
    key: str, bands: list[Band], steps: Array, values: Array, settings: Mapping[str, object]
) -> list[Symptom]:
    """The gravest symptom on each side."""
    gravest: dict[str, Symptom] = {}
    for band in bands:
        for one in _beyond(key, band, steps, values, settings):
            gravest.setdefault(one.side, one)
    return list(gravest.values())


def _holds(band: Band, settings: Mapping[str, object]) -> bool:
    return all(settings[key] in allowed for key, allowed in band.only.items() if key in settings)


def _beyond(key: str, band: Band, steps: Array, values: Array, settings: Mapping[str, object]) -> Iterator[Symptom]:
    base = _base(band, values)
    if base <= 0:  # a multiple of nothing bounds nothing: a reference that never ends a response cannot lose that
        return
    low, high = band.low * base, band.high * base
    sides: tuple[tuple[Literal["above", "below"], float, NDArray[np.bool_], str], ...] = (
        ("above", high, values > high, band.above),
        ("below", low, values < low, band.below),
    )
    for side, bound, out, cause in sides:
        outside = int(out.sum())
        if outside > band.share * len(values):
            knob = instruction(acting(band.knobs, settings))
            yield Symptom(key, side, bound, outside, len(values), int(steps[out][0]), cause, knob)


def _base(band: Band, values: Array) -> float:
    if band.base == "start":
        return float(values[0])
    return float(np.median(values)) if band.base == "median" else 1.0


def _finite(steps: Array, values: Array) -> Series:
    known = np.isfinite(values)
    return (steps, values) if known.all() else (steps[known], values[known])
