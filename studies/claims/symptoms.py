"""Health of a trial by its series: those that leave their band (`bands.yaml`), the likely cause, and what to change.

Read from the trial's files alone, without training and torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from pipeline.config.trial import flatten
from pipeline.errors import Damaged, Gone
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.store import read_columns

Array = NDArray[np.float64]
Series = tuple[Array, Array]
"""Gradient steps (N,) in rising order, and values (N,)."""
Side = Literal["above", "below"]
LEAST = 10
"""Records below which a series is not judged."""
FEWEST = 3
"""Records outside a band below which they are chance."""
SHARE = 0.2
"""Share of its records that a series may have outside a band, unless the band sets another. PPO at four times the
learning rate of `tiny`, with which it wins most often, has 12 % of its steps above the band of policy/approxkl."""


@dataclass(frozen=True)
class Band:
    """The healthy values of a series, `low` to `high`, both allowed: a warning, not a verdict."""

    advice: str
    """Change to make, as an instruction; the settings of other algorithms and schedules among them."""
    source: str
    low: float = -math.inf
    high: float = math.inf
    below: str = ""
    """Likely cause of values below `low`."""
    above: str = ""
    """Likely cause of values above `high`."""
    base: Literal["", "start", "median"] = ""
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


BANDS: dict[str, tuple[Band, ...]] = {
    key: tuple(Band(**band) for band in bands)
    for key, bands in yaml.safe_load(Path(__file__).with_name("bands.yaml").read_text("utf-8")).items()
}
"""Series -> its bands, the gravest first."""


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
    """Change to make, as an instruction; empty for a trial of another program, whose settings have other names."""
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
        return f"{self.condition} {often}. Likely cause: {self.cause}." + (f" Try: {self.knob}." if self.knob else "")


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
        """``ok``, ``not judged`` without a banded series of `LEAST` records, or what is wrong: ``diverged``, and the
        series that left their bands with the share of their records.

        >>> Health((Symptom("policy/approxkl", "above", 0.02, 61, 100, 3, "too far", "lower"),), ()).words
        'policy/approxkl 61 %'
        >>> Health((), ("policy/approxkl",)).words, Health((), ()).words, Health((), (), diverged=True).words
        ('ok', 'not judged', 'diverged')
        """
        shares = [f"{one.key} {in_percent(one.share)} %{' at the end' if one.late else ''}" for one in self.symptoms]
        wrong = ", ".join(["diverged"] * self.diverged + shares)
        return wrong or ("ok" if self.judged else "not judged")


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
    if any(key.startswith(("imported.", "trainer.")) for key in settings):
        found = [replace(one, knob="") for one in found]
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


@dataclass(frozen=True)
class ArmHealth:
    """The health of an arm's trials."""

    arm: str
    judged: int
    """Trials with a series that was held against a band, and those that diverged."""
    unhealthy: Mapping[int, tuple[Symptom, ...]]
    """Seed -> symptoms, of the trials that have any."""
    diverged: tuple[int, ...] = ()
    """Seeds of the trials that diverged, with symptoms or without."""

    @property
    def ill(self) -> int:
        """Trials with symptoms or divergence."""
        return len({*self.unhealthy, *self.diverged})

    @property
    def worst(self) -> tuple[int, Symptom] | None:
        """The symptom with the largest share of records, and the seed of its trial; the first of equal ones."""
        every = [(seed, symptom) for seed, found in self.unhealthy.items() for symptom in found]
        return max(every, key=lambda one: one[1].share, default=None)

    @property
    def others(self) -> tuple[str, ...]:
        """The other series that left their band in some trial."""
        worst = self.worst
        keys = {one.key for found in self.unhealthy.values() for one in found}
        return tuple(sorted(keys - {worst[1].key})) if worst else ()


def by_arm(trials: Mapping[tuple[str, int], Health]) -> tuple[ArmHealth, ...]:
    """Arm by arm in the order in which they come; `trials`: (arm, seed) -> health."""
    arms = dict.fromkeys(arm for arm, _ in trials)
    own = {arm: {seed: health for (name, seed), health in trials.items() if name == arm} for arm in arms}
    return tuple(
        ArmHealth(
            arm,
            sum(bool(health.judged or health.diverged) for health in of_arm.values()),
            {seed: health.symptoms for seed, health in of_arm.items() if health.symptoms},
            tuple(seed for seed, health in of_arm.items() if health.diverged),
        )
        for arm, of_arm in own.items()
    )


def health_of(folder: StudyFolder, record: TrialRecord) -> Health:
    """The health of a trial that has ended; a trial whose series are lost or damaged is not judged."""
    diverged = record.status == "diverged"
    try:
        return examine(_read(folder, record), dict(flatten(record.config)), diverged)
    except (Damaged, Gone):  # readers of the series report it; a warning adds nothing
        return Health((), (), diverged)


def _read(folder: StudyFolder, record: TrialRecord) -> dict[str, Series]:
    """The series that have bands."""
    if "train" not in record.stages:
        return {}
    found = read_columns(folder, record, "train", "metrics.parquet", {*BANDS, "step"})
    columns = {name: np.array(values, dtype=np.float64) for name, values in found.items()}
    steps = columns.pop("step", np.zeros(0))
    return {key: (steps, values) for key, values in columns.items()}
