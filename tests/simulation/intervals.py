"""How often the intervals and verdicts of `reports.statistics.two_level` are right, and those of other methods.

Draws seeds x prompts tables of a baseline and of four arms that do not differ from it, whose truth is known, and
applies the functions of the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from reports.statistics.coverage import ARMS, RARE, REPLICATES, SEEDS, Coverage
from reports.statistics.hierarchical import Moments, moments, posterior
from reports.statistics.two_level import ALPHA, LEVEL, contrast, linear, logit_bounds, wilson

Array = NDArray[np.float64]
PROMPTS = (128, 512)
_CHUNK = 50
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
"""What a seed adds, in standard deviations over prompts. The last two have a standard deviation of 0.2."""
KINDS = ("rate 0.5", "rate 0.95", "score", "ratio")
"""A win rate in the middle and near its end, a judge's score, and nats per token."""


@dataclass(frozen=True)
class Scenario:
    """What is drawn, and how much of it."""

    kind: str
    spread: str
    seeds: int
    prompts: int


@dataclass(frozen=True)
class Comparison:
    """A method over all kinds and numbers of prompts: coverage as average and least, family-wise error as average and
    largest, widths relative to those of the chosen method."""

    method: str
    spread: str
    seeds: int
    mean_coverage: float
    mean_least: float
    mean_width: float
    difference_coverage: float
    difference_least: float
    difference_width: float
    family_wise_error: float
    family_wise_largest: float


class Candidate:
    """Two-sided probability of a distance, and half-width of a level, from moments. Shapes (...)."""

    def __init__(self, given: Moments) -> None:
        self.given = given

    def beyond(self, distance: Array) -> Array:
        raise NotImplementedError

    def half_width(self, level: float) -> Array:
        raise NotImplementedError


class Hierarchical(Candidate):
    """The method of the reports, or the same with another prior."""

    factor = 1.0
    """Of the prior's scale."""
    half_cauchy = False

    def __init__(self, given: Moments) -> None:
        self.posterior = posterior(replace(given, spread=self.factor * given.spread), self.half_cauchy)

    def beyond(self, distance: Array) -> Array:
        return self.posterior.beyond(distance)

    def half_width(self, level: float) -> Array:
        return self.posterior.half_width(level)


class Halved(Hierarchical):
    """Half the prior's scale."""

    factor = 0.5


class Doubled(Hierarchical):
    """Twice the prior's scale."""

    factor = 2.0


class HalfCauchy(Hierarchical):
    """A half-Cauchy prior of the scale that is used with one seed."""

    half_cauchy = True


class Student(Candidate):
    """Student's t with S - 1 degrees of freedom whatever the data; prompts add to the variance. None of one seed."""

    def _error(self) -> tuple[Array, Array | float]:
        given = self.given
        seeds = given.seeds
        variance = given.between / seeds + np.maximum(given.prompts - given.within / seeds, 0.0)
        return np.sqrt(variance), max(seeds - 1, 1)

    def beyond(self, distance: Array) -> Array:
        from scipy.special import stdtr

        se, df = self._error()
        return np.asarray(2 * stdtr(df, -distance / se), dtype=np.float64)

    def half_width(self, level: float) -> Array:
        from scipy.special import stdtrit

        se, df = self._error()
        return np.asarray(stdtrit(df, (1 + level) / 2) * se, dtype=np.float64)


class Satterthwaite(Student):
    """The t test that the bootstrap of earlier versions was expanded to: the degrees of freedom follow the data."""

    def _error(self) -> tuple[Array, Array | float]:
        given = self.given
        of_seeds, of_prompts = given.between / given.seeds, given.prompts
        total = of_seeds + of_prompts
        # With hundreds of prompts their own term hardly lowers the degrees of freedom.
        weighted = of_seeds**2 / max(1, given.seeds - 1) + of_prompts**2 / 127
        return np.sqrt(total), total**2 / weighted


METHODS: dict[str, type[Candidate]] = {
    "chosen": Hierarchical,
    "half the prior's scale": Halved,
    "twice the prior's scale": Doubled,
    "half-Cauchy prior": HalfCauchy,
    "Student over seeds": Student,
    "Satterthwaite (former)": Satterthwaite,
}


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
    from scipy.special import ndtr

    # The share of eight answers that one answer beats, rounded to eighths without bias.
    return np.floor(8 * ndtr(_centre(design.kind) + values) + rng.random(shape)) / 8, None


def truth(design: Scenario) -> float:
    """The mean over all seeds and prompts that `tables` are drawn from."""
    effects = _quantiles(design.spread)
    if design.kind == "score":
        return float(effects.mean())
    if design.kind == "ratio":
        return float(1.0 + 0.5 * effects.mean())
    from scipy.special import ndtr

    return float(ndtr((_centre(design.kind) + effects) / 2**0.5).mean())


def _centre(kind: str) -> float:
    """Where the mean of ndtr over prompts is the rate of the kind: their standard deviation is 1."""
    from scipy.special import ndtri

    return float(2**0.5 * ndtri(float(kind.removeprefix("rate "))))


def _quantiles(spread: str) -> Array:
    from scipy.special import ndtri, stdtrit

    if spread == RARE:
        return np.where(_MIDPOINTS < 0.2, -0.5, 0.0)
    if spread == "heavy tails":
        return np.asarray(0.2 / 3**0.5 * stdtrit(3, _MIDPOINTS), dtype=np.float64)
    return np.asarray(ndtri(_MIDPOINTS) * float(spread.removeprefix("sd ").replace("equal", "0")), dtype=np.float64)


def simulate(design: Scenario, replicates: int = REPLICATES) -> dict[str, Coverage]:
    """Every method of `METHODS` on the same tables."""
    numbers = (KINDS.index(design.kind), list(SPREADS).index(design.spread), design.seeds, design.prompts)
    rng = np.random.default_rng([20_260_101, *numbers])
    known = truth(design)
    counts = {name: np.zeros(3) for name in METHODS}
    widths: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for start in range(0, replicates, _CHUNK):
        size = min(_CHUNK, replicates - start)
        lines = linear(*tables(rng, design, size))
        own, apart = moments(lines[:, 0]), contrast(lines[:, 1:], lines[:, :1])
        for name, method in METHODS.items():
            if name == "Student over seeds" and design.seeds == 1:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                alone, pair = method(own), method(apart)
                p = pair.beyond(np.abs(apart.mean))
                covered = _covered(design, own, alone, known)
            counts[name] += covered.sum(), (p[:, 0] > 1 - LEVEL).sum(), (p.min(1) < ALPHA / ARMS).sum()
            if start < _WIDTHS:
                lone = _width(design, own, alone)
                widths[name].append((float(lone.mean()), float(2 * pair.half_width(LEVEL)[:, 0].mean())))
    return {
        name: Coverage(
            *(design.kind, design.spread, design.seeds, design.prompts, replicates),
            *_figures(counts[name] / replicates, np.mean(widths[name], axis=0)),
        )
        for name in METHODS
        if widths[name]
    }


def _figures(shares: Array, width: Array) -> tuple[float, float, float, float, float]:
    own, pair, error = (round(float(share), 4) for share in shares)
    lone, apart = (float(f"{one:.3g}") for one in width)
    return own, lone, pair, apart, error


def _covered(design: Scenario, own: Moments, method: Candidate, known: float) -> NDArray[np.bool_]:
    """Whether the intervals of the baseline's mean hold the truth."""
    if design.kind in ("score", "ratio"):
        return np.asarray(method.beyond(np.abs(own.mean - known)) > 1 - LEVEL, dtype=np.bool_)
    low, high = _rate_bounds(own, method, design.prompts)
    return np.asarray((low <= known) & (known <= high), dtype=np.bool_)


def _width(design: Scenario, own: Moments, method: Candidate) -> Array:
    if design.kind in ("score", "ratio"):
        return 2 * method.half_width(LEVEL)
    low, high = _rate_bounds(own, method, design.prompts)
    return high - low


def _rate_bounds(own: Moments, method: Candidate, prompts: int) -> tuple[Array, Array]:
    """As `two_level.rate`; the former method had them on the scale of the rate."""
    half = method.half_width(LEVEL)
    if isinstance(method, Satterthwaite):
        low, high = own.mean - half, own.mean + half
    else:
        low, high = logit_bounds(own.mean, half)
    for end in (0.0, 1.0):
        bounds = wilson(end * prompts, prompts)
        low, high = np.where(own.mean == end, bounds.low, low), np.where(own.mean == end, bounds.high, high)  # type: ignore[arg-type]
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def designs() -> list[Scenario]:
    """Every kind, spread, number of seeds and number of prompts."""
    return [Scenario(*one) for one in product(KINDS, SPREADS, SEEDS, PROMPTS)]


def candidates(cells: dict[str, list[Coverage]]) -> Iterator[Comparison]:
    """Every method by spread and number of seeds."""
    for spread, seeds, method in product(SPREADS, SEEDS, METHODS):
        chosen, own = (
            [c for c in cells[name] if (c.spread, c.seeds) == (spread, seeds)] for name in ("chosen", method)
        )
        if own:
            yield Comparison(
                method, spread, seeds,
                *_summary([c.mean_coverage for c in own], min), _relative(own, chosen, "mean_width"),
                *_summary([c.difference_coverage for c in own], min), _relative(own, chosen, "difference_width"),
                *_summary([c.family_wise_error for c in own], max),
            )  # fmt: skip


def _summary(values: list[float], extreme: Callable[[list[float]], float]) -> tuple[float, float]:
    return round(float(np.mean(values)), 4), extreme(values)


def _relative(own: list[Coverage], chosen: list[Coverage], width: str) -> float:
    ratios = [getattr(one, width) / getattr(other, width) for one, other in zip(own, chosen, strict=True)]
    return round(float(np.exp(np.mean(np.log(ratios)))), 3)
