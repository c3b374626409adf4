"""Arms against the baseline's method at equal drift: both at the end of their training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from reports.findings.pairs import maximized, per_prompt
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.matched_kl import LEAST, EndCurve
from reports.statistics.two_level import Array, Estimate, Outcome
from studies.definition.design import Cell

FIXED_BETA = "fixed beta"
"""What the arms that differ from the baseline in a fixed beta alone are called together."""
KL, ENDED_KL = "eval/kl_per_sequence", "objective/kl"
GOLD, ENDED_GOLD, ENDED_PROXY = "eval/gold", "objective/gold", "objective/scores"
PLACES = 25
"""Points of a drawn curve."""
_REFERENCE = {GOLD: "reference_gold", "eval/proxy": "reference_proxy"}
_REFERENCE_WIN_RATE = 0.5
Reason = Literal["below", "beyond", "few arms", "no shared seed", ""]


@dataclass(frozen=True)
class MatchedKL:
    """One arm against what the baseline's method reaches at the KL at which the arm ends."""

    metric: str
    arm: str
    method: str
    """Of the baseline."""
    kl: Estimate
    """Nats per sequence at which the arm ends."""
    arms: tuple[str, ...]
    """Of the method, in ascending order of the KL at which they end."""
    range: tuple[float, float]
    """KL of the first and the last of them."""
    reason: Reason
    """Why there is no comparison; empty where there is one."""
    between: tuple[str, str] | None = None
    """The arms that end next below and above."""
    arm_value: Estimate | None = None
    base_value: Estimate | None = None
    """The method's at that KL."""
    difference: Estimate | None = None
    per_seed: dict[int, float] | None = None
    p: float | None = None
    p_holm: float | None = None
    """Corrected over the arms compared on this metric."""
    outcome: Outcome = "not estimable"


@dataclass(frozen=True)
class MethodCurve:
    """What the baseline's method reaches between the KLs at which its arms end."""

    metric: str
    method: str
    arms: tuple[str, ...]
    kl: Array
    """(N,) nats per sequence."""
    estimates: tuple[Estimate, ...]


def base_method(records: StudyRecords) -> tuple[str, tuple[str, ...]]:
    """The name of the baseline's method and its arms: as declared, else those that differ from the baseline in a fixed
    beta alone."""
    base = records.study.baseline
    for name, arms in (records.study.methods or {}).items():
        if base in arms:
            return name, arms
    configs = {cell.arm: cell.config for cell in records.plan if isinstance(cell, Cell)}
    if base not in configs or configs[base].kl.control != "fixed":
        return base, (base,)
    rest = {arm: config.model_dump(exclude={"kl": {"beta"}, "train": {"stop"}}) for arm, config in configs.items()}
    alike = tuple(arm for arm in records.arms if rest.get(arm) == rest[base])
    return (FIXED_BETA if len(alike) > 1 else base), alike


def only_ends(records: StudyRecords) -> bool:
    """Whether no trial was evaluated, so that the ends of the series of imported logs stand for it."""
    return KL not in records.trials.columns


def metrics(records: StudyRecords) -> list[str]:
    """What is compared: the objective unless it is a KL itself, and the gold reward, or its like of imported trials."""
    others = (ENDED_GOLD, ENDED_PROXY) if only_ends(records) else (GOLD,)
    recorded = [key for key in (records.study.objective.metric, *others) if key in records.trials.columns]
    return [key for key in dict.fromkeys(recorded) if "/kl" not in key]


def matched(records: StudyRecords) -> tuple[MatchedKL, ...]:
    """Every evaluated arm of another method, by metric; empty where the study has no other method."""
    name, own = base_method(records)
    others = [arm for arm in records.arms if arm not in own and records.evaluated(arm)]
    result: list[MatchedKL] = []
    for metric in metrics(records):
        rows = [row for arm in others if (row := _matched(records, metric, arm, name, own)) is not None]
        result += _corrected(rows, maximized(records, metric))
    return tuple(result)


def method_curve(records: StudyRecords, metric: str) -> MethodCurve | None:
    """The curve that arms are held against, with intervals; None where its arms are too few or share no seed."""
    name, own = base_method(records)
    arms = _by_kl(records, own)
    seeds = [seed for seed in records.seeds if all(seed in records.evaluated(arm) for arm in arms)]
    curve = _curve(records, metric, arms, seeds) if arms and seeds else None
    if curve is None:
        return None
    low, high = curve.range
    places = np.linspace(np.sqrt(low), np.sqrt(high), PLACES)[1:-1] ** 2
    places = np.concatenate([[low], places, [high]])
    return MethodCurve(metric, name, tuple(arms), places, tuple(_estimate(curve.at(place)) for place in places))


def _matched(records: StudyRecords, metric: str, arm: str, method: str, own: Sequence[str]) -> MatchedKL | None:
    mine = _tables(records, metric, arm, records.evaluated(arm), [arm])
    arms = _by_kl(records, own)
    if mine is None or not arms:
        return None
    ends = _ends(records, arms)
    kl = float(mine[0].mean())
    row = MatchedKL(metric, arm, method, _estimate(mine[0]), tuple(arms), (ends[arms[0]], ends[arms[-1]]), "few arms")
    if len(arms) < 2:
        return row
    if not ends[arms[0]] <= kl <= ends[arms[-1]]:
        return replace(row, reason="below" if kl < ends[arms[0]] else "beyond")
    above = next(index for index, name in enumerate(arms) if index and kl <= ends[name])
    between = arms[above - 1], arms[above]
    seeds = [seed for seed in records.evaluated(arm) if all(seed in records.evaluated(name) for name in between)]
    if not seeds:
        return replace(row, reason="no shared seed")
    # An arm farther off gives the curve its bend; one that lost seeds must not cost the comparison these seeds.
    used = [name for name in arms if name in between or set(seeds) <= set(records.evaluated(name))]
    mine, curve = _tables(records, metric, arm, seeds, [arm, *used]), _curve(records, metric, used, seeds, arm)
    if mine is None or curve is None:
        return row
    if not curve.range[0] <= mine[0].mean() <= curve.range[1]:  # on the seeds that all of them share
        return replace(row, reason="below" if mine[0].mean() < curve.range[0] else "beyond")
    base = curve.at(mine[0])
    difference = mine[1] - base
    estimate = _estimate(difference)
    return replace(
        row,
        kl=_estimate(mine[0]),
        reason="",
        between=between,
        arm_value=_estimate(mine[1]),
        base_value=_estimate(base),
        difference=estimate,
        per_seed=dict(zip(seeds, map(float, difference.mean(1)), strict=True)),
        p=two_level.two_level_p(estimate),
    )


def _curve(
    records: StudyRecords, metric: str, arms: Sequence[str], seeds: Sequence[int], beside: str | None = None
) -> EndCurve | None:
    """Through the ends of these arms on the prompts that they and `beside` answered; None with too few points."""
    together = [*arms, beside] if beside else list(arms)
    tables = [_tables(records, metric, arm, seeds, together) for arm in arms]
    known = [table for table in tables if table is not None]
    if len(known) < len(arms):
        return None
    kl, values = (np.stack([table[part] for table in known]) for part in (0, 1))
    reference = _reference(records, metric, arms[0], seeds, together, values.shape[1:])
    order = np.argsort(kl.mean((1, 2)), kind="stable")
    ends = kl.mean((1, 2))[order]
    if len(arms) + (reference is not None) < LEAST or len(arms) < 2 or not (np.diff(ends) > 1e-9 * ends[-1]).all():
        return None
    return EndCurve(kl[order], values[order], reference)


def _tables(
    records: StudyRecords, metric: str, arm: str, seeds: Sequence[int], beside: Sequence[str]
) -> tuple[Array, Array] | None:
    """KL and metric of an arm, (S, P) each, on the prompts that all arms `beside` it answered; P = 1 of what exists
    once per trial."""
    kl = ENDED_KL if only_ends(records) else KL
    columns = [per_prompt(records, key) for key in (kl, metric)]
    if any(column is None for column in columns):
        known = [records.recorded(arm, key) for key in (kl, metric)]
        if any(seed not in values for values in known for seed in seeds) or not seeds:
            return None
        first, second = (np.array([[values[seed]] for seed in seeds]) for values in known)
        return first, second
    prompts = _prompts(records, metric, seeds, beside)
    if not seeds or not len(prompts):
        return None
    first, second = (
        two_level.linear(*(records.answers(arm, part, seeds, prompts) if part else None for part in column))  # type: ignore[arg-type]
        for column in columns
        if column is not None
    )
    return first, second


def _reference(
    records: StudyRecords, metric: str, arm: str, seeds: Sequence[int], beside: Sequence[str], shape: tuple[int, ...]
) -> Array | None:
    """The metric of the reference, (S, P), where it is known."""
    if metric == "eval/win_rate" and not only_ends(records):
        return np.full(shape, _REFERENCE_WIN_RATE)
    if per_prompt(records, metric) is None or not _knows_reference(records, metric):
        return None
    return records.answers(arm, _REFERENCE[metric], seeds, _prompts(records, metric, seeds, beside))


def _prompts(records: StudyRecords, metric: str, seeds: Sequence[int], beside: Sequence[str]) -> pd.Index:
    """Prompts that all of these arms answered, with a KL, the metric and, where it is known, the reference's."""
    found = [column for key in (KL, metric) for column in per_prompt(records, key) or () if column]
    reference = [_REFERENCE[metric]] if _knows_reference(records, metric) else []
    return records.shared_prompts([(name, seed) for name in beside for seed in seeds], [*found, *reference])


def _knows_reference(records: StudyRecords, metric: str) -> bool:
    return metric in _REFERENCE and records.by_prompt(metric, [_REFERENCE[metric]])


def _by_kl(records: StudyRecords, arms: Sequence[str]) -> list[str]:
    """The evaluated ones, in ascending order of the KL at which they end."""
    ends = _ends(records, arms)
    return sorted(ends, key=lambda arm: ends[arm])


def _ends(records: StudyRecords, arms: Sequence[str]) -> dict[str, float]:
    return dict(_mean_kl(records, arms))


def _mean_kl(records: StudyRecords, arms: Sequence[str]) -> Iterator[tuple[str, float]]:
    for arm in arms:
        values = records.recorded(arm, ENDED_KL if only_ends(records) else KL)
        if values:
            yield arm, float(np.mean(list(values.values())))


def _estimate(table: Array) -> Estimate:
    return two_level.over_seeds(list(table[:, 0])) if table.shape[1] == 1 else two_level.mean(table)


def _corrected(rows: Sequence[MatchedKL], maximize: bool) -> list[MatchedKL]:
    tested = [index for index, row in enumerate(rows) if row.p is not None]
    corrected = dict(zip(tested, two_level.holm([p for row in rows if (p := row.p) is not None]), strict=True))
    return [
        replace(
            row,
            p_holm=corrected.get(index),
            outcome=two_level.verdict(row.difference, corrected.get(index), maximize),
        )
        for index, row in enumerate(rows)
    ]
