"""From the rows of a log to series over gradient steps, and what is wrong with them.

An update of a trainer that logs once per update stands at two places here: what was measured on its rollout
(`objective/*`, `reward/*`, explained variance) at the gradient steps that the policy had taken by then, what was
measured while training on it at its last gradient step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.run.metrics import METRICS, ON_ROLLOUT
from studies.importing.mapping import MappingFile, Misfit, Named, conversion
from studies.importing.naming import Reading, reading
from studies.importing.problems import Problem
from studies.importing.programs import Counts
from studies.importing.rows import LogRow, number

Array = NDArray[np.float64]
TOLERANCE = 1e-6
"""By how much a value may miss its bounds: what float32 rounding leaves of a quantity that is 0 or 1."""

KLS = tuple(key for key in METRICS if key.startswith(("objective/kl", "eval/kl_")) and key != "objective/kl_coef")

_LEFT_OUT = "the whole series is left out, since its name or unit must be wrong"
_LAST_COUNTS = "of two values at one step the last counts"


@dataclass(frozen=True)
class Series:
    """One metric: gradient steps (ascending, unique) and finite values of equal length."""

    key: str
    """Theirs."""
    steps: NDArray[np.int64]
    values: Array


@dataclass(frozen=True)
class Trajectory:
    """What one log says."""

    series: dict[str, Series]
    summary: dict[str, float]
    """Final measurements (`eval/*`): their last values."""
    steps: int
    """Gradient steps taken, as far as the log is sound."""
    diverged: str | None
    """Where it stopped being finite, in words."""
    keys: tuple[str, ...]
    read: Reading
    """How its keys were read."""
    dropped: dict[str, str]
    """Ours -> why nothing of it is left, though a key of that meaning is there."""
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Log:
    """A log whose rows know their place on both cadences."""

    name: str
    lines: NDArray[np.int64]
    rollout: NDArray[np.int64]
    trained: NDArray[np.int64]


def trajectory(rows: Sequence[LogRow], mapping: MappingFile, name: str) -> Trajectory:
    """Series of a log in our names and units. Raises `Misfit` when its x-axis or its keys cannot be understood."""
    keys = tuple(dict.fromkeys(key for row in rows for key in row.values))
    read = reading(mapping, keys, name)
    named = read.named
    used = [row for row in rows if any(row.values.get(theirs.key) is not None for theirs in named.values())]
    log, problems = _placed(used, mapping, read, name)
    columns, faults = _columns(used, named, mapping, log)
    problems += faults if problems else [*faults, *_repeated(columns, named, log)]
    dropped = {fault.metric: fault.why for fault in faults}
    end, fault = _finite_end(columns, named, log)
    if fault:
        problems.append(fault)
    series: dict[str, Series] = {}
    for ours, values in columns.items():
        fault = _out_of_range(ours, named[ours].key, values[:end], log)
        why = fault.why if fault else _unmeasured(ours, values)
        if fault:
            problems.append(fault)
        if why:
            dropped[ours] = why
        elif (curve := _series(ours, named[ours].key, values[:end], log)) is not None:
            series[ours] = curve
        else:
            dropped[ours] = "no value of it in the log"
    taken = int(log.trained[:end].max(initial=0))
    summary = {ours: float(curve.values[-1]) for ours, curve in series.items() if ours.startswith("eval/")}
    kept = {ours: curve for ours, curve in series.items() if ours not in summary}
    return Trajectory(kept, summary, taken, _ending(log, end), keys, read, dropped, tuple(problems))


def _unmeasured(ours: str, values: Array) -> str | None:
    """A KL to the reference that is 0 in every row: programs write that where they do not compute it."""
    recorded = values[~np.isnan(values)]
    if ours not in KLS or len(recorded) < 2 or recorded.any():
        return None
    return f"0 in all {len(recorded):,} rows, as a program writes that does not measure it"


def _ending(log: _Log, end: int) -> str | None:
    return None if end == len(log.lines) else f"not finite from line {log.lines[end]} of {log.name}"


def _placed(rows: Sequence[LogRow], mapping: MappingFile, read: Reading, name: str) -> tuple[_Log, list[Problem]]:
    """Where each row stands in gradient steps; rows that go back, or repeat a place, are told of."""
    key, per = read.axis, read.per
    x = np.array([_whole(row, key, name) for row in rows], dtype=np.int64)
    lines = np.array([row.line for row in rows], dtype=np.int64)
    if read.counts == "gradient_steps":
        # An update began no earlier than the rollout that was logged before it: GRPO logs every gradient step.
        keys = [theirs.key for ours, theirs in read.named.items() if ours.startswith(ON_ROLLOUT)]
        sampled = np.sort(x[[any(row.values.get(key) is not None for key in keys) for row in rows]])
        before = np.concatenate([[0], sampled])[np.searchsorted(sampled, x)]
        log = _Log(name, lines, np.maximum(x - (per or 0), before), x)
    else:
        if per is None:
            raise Misfit(
                f"{name}: its x-axis '{key}' counts {read.counts}; say how many gradient steps an update takes:"
                " --steps-per-update N (num_ppo_epochs x num_mini_batches), or `step: {counts: gradient_steps}` in"
                " the mapping"
            )
        updates = _updates(x, read.counts, mapping, name, key, lines)
        log = _Log(name, lines, (updates - 1) * per, updates * per)
    return log, _back(x, log, key)


def _back(x: NDArray[np.int64], log: _Log, key: str) -> list[Problem]:
    back = np.flatnonzero(np.diff(x) < 0) + 1
    if not len(back):
        return []
    at = int(back[0])
    why = f"goes back from {x[at - 1]}, as after a resume"
    return [Problem("back", log.name, int(log.lines[at]), key, "", str(x[at]), why, len(back), len(x), _LAST_COUNTS)]


def _repeated(columns: dict[str, Array], named: dict[str, Named], log: _Log) -> list[Problem]:
    """The series with most values at a place that it already had one for; all others repeat for the same reason."""
    worst: Problem | None = None
    for ours, values in columns.items():
        there = np.flatnonzero(~np.isnan(values))
        places, firsts = np.unique(log.trained[there], return_index=True)
        count = len(there) - len(places)
        if count > (worst.count if worst else 0):
            at = int(there[np.setdiff1d(np.arange(len(there)), firsts)[0]])
            why = f"a second value at gradient step {log.trained[at]}"
            worst = Problem(
                "repeated",
                log.name,
                int(log.lines[at]),
                named[ours].key,
                ours,
                f"{values[at]:.6g}",
                why,
                count,
                len(there),
                _LAST_COUNTS,
            )
    return [worst] if worst else []


def _whole(row: LogRow, key: str, name: str) -> int:
    value = number(row.values.get(key))
    if value is None or not math.isfinite(value) or value != int(value) or not 0 <= value < 2**53:
        raise Misfit(
            f"{name}, line {row.line}: {key} = {row.values.get(key)!r} is no place on an x-axis; a whole number is"
            " expected"
        )
    return int(value)


def _updates(
    x: NDArray[np.int64], counts: Counts, mapping: MappingFile, name: str, key: str, lines: NDArray[np.int64]
) -> NDArray[np.int64]:
    if counts == "updates":
        if len(x) and x.min() < mapping.step.first:
            raise Misfit(
                f"{name}: {key} begins at {x.min()}; if its first update is number 0, say `step: {{first: 0}}` in the"
                " mapping"
            )
        return x - mapping.step.first + 1
    per = mapping.episodes_per_update
    if per is None:
        raise Misfit(
            f"{name}: its x-axis '{key}' counts episodes; give episodes_per_update in the mapping (TRL: batch_size)"
        )
    bad = np.flatnonzero((x % per != 0) | (x == 0))
    if len(bad):
        at = int(bad[0])
        raise Misfit(
            f"{name}, line {lines[at]}: {key} = {x[at]} is no whole number of updates of {per} episodes"
            " (episodes_per_update)"
        )
    updates: NDArray[np.int64] = x // per
    return updates


def _columns(
    rows: Sequence[LogRow], named: dict[str, Named], mapping: MappingFile, log: _Log
) -> tuple[dict[str, Array], list[Problem]]:
    """Our metric -> one value a row in our unit, NaN where not recorded. What is no number leaves the whole series
    out."""
    columns: dict[str, Array] = {}
    problems = []
    for ours, theirs in named.items():
        raw = [row.values.get(theirs.key) for row in rows]
        numbers = [number(value) for value in raw]
        strange = [
            at for at, (value, one) in enumerate(zip(raw, numbers, strict=True)) if value is not None and one is None
        ]
        if strange:
            at, recorded = strange[0], sum(value is not None for value in raw)
            problems.append(
                Problem(
                    "text",
                    log.name,
                    int(log.lines[at]),
                    theirs.key,
                    ours,
                    repr(raw[at])[:40],
                    "no number",
                    len(strange),
                    recorded,
                    _LEFT_OUT,
                )
            )
            continue
        # infinity, not NaN, marks what was logged as not finite: NaN is "not recorded" from here on
        values = np.array([_marked(one) for one in numbers], dtype=np.float64)
        columns[ours] = _converted(values, ours, theirs, rows, mapping)
    return columns, problems


def _marked(value: float | None) -> float:
    return math.nan if value is None else value if math.isfinite(value) else math.inf


def _converted(values: Array, ours: str, theirs: Named, rows: Sequence[LogRow], mapping: MappingFile) -> Array:
    factor, power = conversion(theirs.unit, METRICS[ours], mapping.length is not None) if theirs.unit else (1.0, 0)
    scale: Array | float = _lengths(rows, mapping) ** power if power else 1.0
    infinite = np.isinf(values)
    with np.errstate(invalid="ignore"):
        result: Array = (values * factor * scale - theirs.subtract) * theirs.factor
    result[infinite] = np.inf
    return result


def _lengths(rows: Sequence[LogRow], mapping: MappingFile) -> Array:
    """Tokens of a response at each row; NaN where they were not logged, or could not be."""
    if not isinstance(mapping.length, str):
        return np.full(len(rows), mapping.length or math.nan)
    numbers = [number(row.values.get(mapping.length)) for row in rows]
    return np.array([one if one is not None and 1 <= one < math.inf else math.nan for one in numbers])


def _finite_end(columns: dict[str, Array], named: dict[str, Named], log: _Log) -> tuple[int, Problem | None]:
    """How many rows are sound: up to the first that logged something not finite. A trial diverged there, and later rows
    are no result."""
    firsts = {ours: int(at[0]) for ours, values in columns.items() if len(at := np.flatnonzero(np.isinf(values)))}
    if not firsts:
        return len(log.lines), None
    ours = min(firsts, key=lambda key: (firsts[key], key))
    end, key = firsts[ours], named[ours].key
    count = int(np.isinf(columns[ours]).sum())
    effect = f"the trial counts as diverged there; {len(log.lines) - end:,} rows from it on are left out"
    recorded = int((~np.isnan(columns[ours])).sum())
    return end, Problem(
        "diverged", log.name, int(log.lines[end]), key, ours, "NaN or infinite", "not finite", count, recorded, effect
    )


def _out_of_range(ours: str, key: str, values: Array, log: _Log) -> Problem | None:
    metric = METRICS[ours]
    recorded = int((~np.isnan(values)).sum())
    below, above = values < metric.low - TOLERANCE, values > metric.high + TOLERANCE
    outside = np.flatnonzero(below | above)
    if not len(outside):
        return None
    at = int(outside[0])
    why = f"{f'below {metric.low:g}' if below[at] else f'above {metric.high:g}'} {metric.unit}, which cannot be"
    return Problem(
        "range",
        log.name,
        int(log.lines[at]),
        key,
        ours,
        f"{values[at]:.6g}",
        why,
        len(outside),
        recorded,
        _LEFT_OUT,
    )


def _series(ours: str, key: str, values: Array, log: _Log) -> Series | None:
    """Sorted by step; of two values at one step the last counts."""
    there = ~np.isnan(values)
    if not there.any():
        return None
    steps = (log.rollout if ours.startswith(ON_ROLLOUT) else log.trained)[: len(values)][there]
    latest = dict(zip(steps.tolist(), values[there].tolist(), strict=True))
    ordered = sorted(latest.items())
    return Series(
        key, np.array([step for step, _ in ordered], dtype=np.int64), np.array([value for _, value in ordered])
    )
