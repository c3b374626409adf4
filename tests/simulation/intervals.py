"""Accuracy of the intervals and verdicts of `reports.statistics.two_level`.

Draws seeds x prompts tables of a baseline and of four arms that do not differ from it, whose truth is known, and
applies the functions of the reports.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from reports.statistics.contrast import estimate
from reports.statistics.coverage import ARMS, RARE, REPLICATES, SEEDS
from reports.statistics.two_level import mean, rate, verdicts

Array = NDArray[np.float64]
PROMPTS = (128, 512)
_WIDTHS = 100
"""Replicates of which the width is measured: it varies less than the coverage."""
_SHARED, _OWN, _NOISE = 0.6, 0.4, (1 - 0.6**2 - 0.4**2) ** 0.5
"""Standard deviations of what a prompt does to all arms, to one arm, and to one completion; together 1."""
_MIDPOINTS = (np.arange(20_000) + 0.5) / 20_000

Effects = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _normal(sd: float) -> Effects:
    return lambda rng, shape: rng.normal(0.0, sd, shape) if sd else np.zeros(shape)


SPREADS: dict[str, Effects] = {
    "equal": _normal(0.0),
    "sd 0.05": _normal(0.05),
    "sd 0.2": _normal(0.2),
    "sd 1": _normal(1.0),
    "heavy tails": lambda rng, shape: np.asarray(0.2 / 3**0.5 * rng.standard_t(3, shape), dtype=np.float64),
    RARE: lambda rng, shape: np.asarray(-0.5 * (rng.random(shape) < 0.2), dtype=np.float64),
}
"""Effects of a seed, in standard deviations over prompts. The last two have a standard deviation of 0.2."""
KINDS = ("rate 0.5", "rate 0.95", "score", "ratio")
"""A win rate in the middle and near its end, a judge's score, and nats per token."""


@dataclass(frozen=True)
class Scenario:
    """Distribution and size of the drawn tables."""

    kind: str
    spread: str
    seeds: int
    prompts: int


def tables(rng: np.random.Generator, design: Scenario, replicates: int, arms: int = ARMS) -> tuple[Array, Array | None]:
    """Numerator, and denominator of a ratio, of the baseline and the arms: (replicates, 1 + arms, S, P)."""
    shape = (replicates, 1 + arms, design.seeds, design.prompts)
    effects = SPREADS[design.spread](rng, (*shape[:3], 1))
    values = rng.normal(0.0, _SHARED, (replicates, 1, 1, design.prompts))
    values = values + rng.normal(0.0, _OWN, (*shape[:2], 1, design.prompts))
    values = values + effects + rng.normal(0.0, _NOISE, shape)
    if design.kind == "score":
        return values, None
    if design.kind == "ratio":
        tokens = rng.integers(8, 33, shape).astype(np.float64)
        return tokens * (1.0 + 0.5 * values), tokens
    # The share of eight answers that one answer beats, rounded to eighths without bias.
    return np.floor(8 * ndtr(_centre(design.kind) + values) + rng.random(shape)) / 8, None


def drawn(
    design: Scenario, start: int, replicates: int, arms: int = ARMS, chunk: int = 50
) -> Iterator[tuple[Array, Array | None]]:
    """Replicates of `tables`, `chunk` of them drawn at once, from numbers that are fixed by the design and `start`."""
    numbers = (KINDS.index(design.kind), list(SPREADS).index(design.spread), design.seeds, design.prompts)
    rng = np.random.default_rng([start, *numbers])
    for first in range(0, replicates, chunk):
        tops, bottoms = tables(rng, design, min(chunk, replicates - first), arms)
        yield from zip(tops, itertools.repeat(None) if bottoms is None else bottoms, strict=False)


def truth(design: Scenario) -> float:
    """The mean over all seeds and prompts that `tables` are drawn from."""
    effects = _quantiles(design.spread)
    if design.kind == "score":
        return float(effects.mean())
    if design.kind == "ratio":
        return float(1.0 + 0.5 * effects.mean())
    return float(ndtr((_centre(design.kind) + effects) / 2**0.5).mean())


def _centre(kind: str) -> float:
    """Return the centre at which the mean of ndtr over prompts, of standard deviation 1, is the rate of the kind."""
    return float(2**0.5 * ndtri(float(kind.removeprefix("rate "))))


def _quantiles(spread: str) -> Array:
    if spread == RARE:
        return np.where(_MIDPOINTS < 0.2, -0.5, 0.0)
    if spread == "heavy tails":
        return np.asarray(0.2 / 3**0.5 * stdtrit(3, _MIDPOINTS), dtype=np.float64)
    return np.asarray(ndtri(_MIDPOINTS) * float(spread.removeprefix("sd ").replace("equal", "0")), dtype=np.float64)


def simulate(design: Scenario, replicates: int = REPLICATES) -> dict[str, Any]:
    """Return the coverage of intervals and the rate of false findings on the tables of one design: a row of
    ``coverage.csv``."""
    known, rows = truth(design), [_study(design, *one) for one in drawn(design, 20_260_101, replicates)]
    low, high, apart, width, false = map(np.array, zip(*rows, strict=True))
    own, pair, error = (round(float(one.mean()), 4) for one in ((low <= known) & (known <= high), ~apart, false))
    lone, wide = (float(f"{one[:_WIDTHS].mean():.3g}") for one in (high - low, width))
    return asdict(design) | {
        "replicates": replicates, "mean_coverage": own, "mean_width": lone, "difference_coverage": pair,
        "difference_width": wide, "family_wise_error": error,
    }  # fmt: skip


def _study(design: Scenario, top: Array, bottom: Array | None) -> tuple[float, float, bool, float, bool]:
    """Ends of the interval of the baseline's mean; whether that of the first difference excludes 0, and its width;
    whether any arm is called better or worse."""
    under = [None] * len(top) if bottom is None else bottom
    own = rate(top[0]) if design.kind.startswith("rate") else mean(top[0], under[0])
    effects = [
        estimate((1, -1), [(arm, below), (top[0], under[0])]) for arm, below in zip(top[1:], under[1:], strict=True)
    ]
    outcomes = {one.outcome for one in verdicts(effects, [None] * ARMS, maximize=True)}
    width = effects[0].high - effects[0].low
    return own.low, own.high, effects[0].excludes_zero, width, not outcomes.isdisjoint(("better", "worse"))


def designs() -> list[Scenario]:
    return [Scenario(*one) for one in product(KINDS, SPREADS, SEEDS, PROMPTS)]
