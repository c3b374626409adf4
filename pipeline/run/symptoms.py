"""Health of a trial by its series: which leave their band, how often, the likely cause, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.run.metrics import BANDS, Band

Array = NDArray[np.float64]
Series = tuple[Array, Array]
"""Gradient steps (N,) in rising order, and values (N,)."""
Side = Literal["above", "below"]
LEAST = 10
"""Records below which a series is not judged."""
FEWEST = 3
"""Records outside a band below which they are chance."""
OK = "ok"
DIVERGED = "diverged"
UNKNOWN = "not judged"
"""Health of a trial without a banded series of `LEAST` records."""


@dataclass(frozen=True)
class Symptom:
    """A series that left its band in too many of its records."""

    key: str
    side: Side
    bound: float
    """Bound in the series' unit."""
    outside: int
    n: int
    """Records that were counted; `outside` of them lie beyond `bound`."""
    first: int
    """Gradient step of the first record outside."""
    cause: str
    knob: str
    """Change to make, as an instruction."""
    late: bool = False
    """True where the last `n` records alone were counted: over the whole trial the series stayed in its band."""

    @property
    def share(self) -> float:
        """Share of the records outside, in (0, 1]."""
        return self.outside / self.n

    @property
    def condition(self) -> str:
        """Series, side and bound."""
        return f"{self.key} {self.side} {self.bound:.3g}"

    @property
    def span(self) -> str:
        """The records that were counted."""
        return f"{'the last ' if self.late else ''}{self.n:,} records"

    @property
    def sentence(self) -> str:
        """All of it in plain sentences.

        >>> Symptom("policy/approxkl", "above", 0.02, 61, 100, 3, "too far", "lower lr").sentence
        'policy/approxkl above 0.02 in 61 % of 100 records, first at step 3. Likely cause: too far. Try: lower lr.'
        """
        often = f"in {in_percent(self.share)} % of {self.span}, first at step {self.first:,}"
        return f"{self.condition} {often}. Likely cause: {self.cause}. Try: {self.knob}."


@dataclass(frozen=True)
class Health:
    """Health of a trial by its series."""

    symptoms: tuple[Symptom, ...]
    """The largest share first."""
    judged: tuple[str, ...]
    """Series that were held against a band."""
    diverged: bool = False
    """True where the trial ended because its numbers were no longer finite or its policy collapsed."""

    @property
    def words(self) -> str:
        """`OK`, `UNKNOWN`, or what is wrong: `DIVERGED`, and the series that left their bands with the share of their
        records.

        >>> Health((Symptom("policy/approxkl", "above", 0.02, 61, 100, 3, "too far", "lower"),), ()).words
        'policy/approxkl 61 %'
        >>> Health((), ("policy/approxkl",)).words, Health((), ()).words, Health((), (), diverged=True).words
        ('ok', 'not judged', 'diverged')
        """
        shares = [f"{one.key} {in_percent(one.share)} %{' at the end' if one.late else ''}" for one in self.symptoms]
        wrong = ", ".join([DIVERGED] * self.diverged + shares)
        return wrong or (OK if self.judged else UNKNOWN)


def in_percent(share: float) -> str:
    """A share in percent, without a sign: a rare spike is not shown as 0, nor nearly all records as 100.

    >>> in_percent(0.614), in_percent(0.0042), in_percent(0.9996), in_percent(1.0)
    ('61', '0.42', '> 99', '100')
    """
    if 0.995 <= share < 1:
        return "> 99"
    return f"{100 * share:.0f}" if share >= 0.01 else f"{100 * share:.2g}"


def examine(series: Mapping[str, Series], settings: Mapping[str, object], diverged: bool = False) -> Health:
    """Hold a trial's series against their bands.

    `series`: of each key its steps and values; NaN is no record, an infinite value is one. `settings`: the trial's
    configuration, flat (`kl.beta`); a setting that is not stated does not hold a band back. `diverged`: whether the
    trial ended so. A series leaves a band where more than the band's share of all records is outside, or more than half
    of the last ones: a tenth of all, but at least `LEAST`. Fewer than `FEWEST` records outside are never a symptom. A
    series that is not recorded, or in fewer than `LEAST` records, is not judged.
    """
    known = {key: held for key in BANDS.keys() & series.keys() if len((held := _records(*series[key]))[1]) >= LEAST}
    found, judged = list[Symptom](), list[str]()
    for key, (steps, values) in known.items():
        bands = [band for band in BANDS[key] if band.unless not in known and _holds(band, settings)]
        if bases := [(band, base) for band in bands if (base := _base(band, values)) > band.least_base]:
            judged.append(key)
            found += _of_series(key, bases, steps, values)
    symptoms = tuple(sorted(found, key=lambda one: (-one.share, one.key, one.side)))
    return Health(symptoms, tuple(sorted(judged)), diverged)


def _of_series(key: str, bases: Sequence[tuple[Band, float]], steps: Array, values: Array) -> list[Symptom]:
    """The gravest symptom on each side."""
    gravest: dict[Side, Symptom] = {}
    for band, base in bases:
        sides: tuple[tuple[Side, float, NDArray[np.bool_], str], ...] = (
            ("above", band.high * base, values > band.high * base, band.above),
            ("below", band.low * base, values < band.low * base, band.below),
        )
        for side, bound, out, cause in sides:
            if span := _counted(out, band.share):
                outside, n, first = span
                one = Symptom(key, side, bound, outside, n, int(steps[first]), cause, band.advice, n < len(values))
                gravest.setdefault(side, one)
    return list(gravest.values())


def _counted(out: NDArray[np.bool_], share: float) -> tuple[int, int, int] | None:
    """Records outside, of how many, and the index of the first of them: of all, or of the last where these alone are
    too many; None where it is no symptom."""
    last = max(LEAST, len(out) // 10)
    for judged, allowed in ((out, share), (out[-last:], 0.5)):
        outside = int(judged.sum())
        if outside >= FEWEST and outside > allowed * len(judged):
            return outside, len(judged), len(out) - len(judged) + int(judged.argmax())
    return None


def _holds(band: Band, settings: Mapping[str, object]) -> bool:
    return all(settings[key] in allowed for key, allowed in band.only.items() if key in settings)


def _base(band: Band, values: Array) -> float:
    """Return the unit of the band's bounds; 0 where there is none."""
    if not band.base:
        return 1.0
    finite = values[np.isfinite(values)]
    used = finite[:LEAST] if band.base == "start" else finite[finite > 0]
    return float(np.median(used)) if len(used) else 0.0


def _records(steps: Array, values: Array) -> Series:
    known = ~np.isnan(values)
    return (steps, values) if known.all() else (steps[known], values[known])
