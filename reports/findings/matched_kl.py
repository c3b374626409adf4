"""Arms against the baseline's method at equal drift, seed by seed: both at the end of their training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from reports.findings.pairs import maximized, per_prompt
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.matched_kl import Refusal, curve_at, enough, interpolate, refusal
from reports.statistics.two_level import Array, Estimate, Outcome
from studies.definition.design import Cell

FIXED_BETA = "fixed beta"
"""What the arms that differ from the baseline in a fixed beta alone are called together."""
KL, ENDED_KL = "eval/kl_per_sequence", "objective/kl"
GOLD, ENDED_GOLD, ENDED_PROXY = "eval/gold", "objective/gold", "objective/scores"
PLACES = 25
"""Points of a drawn curve."""
_REFERENCE = {GOLD: "reference_gold", "eval/proxy": "reference_proxy"}
_WIN_RATE, _REFERENCE_WIN_RATE = "eval/win_rate", 0.5
Reason = Literal["few arms", "few seeds", ""]
Left = Refusal | Literal["not evaluated"]


@dataclass(frozen=True)
class MatchedKL:
    """One arm against what the baseline's method reaches, on each seed, at the KL at which the arm ends there."""

    metric: str
    arm: str
    method: str
    """Of the baseline."""
    kl: Estimate
    """Nats per sequence at which the arm ends, on the compared seeds; on all seeds where there is no comparison."""
    seeds: int
    """Planned ones."""
    arms: tuple[str, ...]
    """Of the method, without `collapsed`, in ascending order of the KL at which they end."""
    collapsed: tuple[str, ...]
    """Arms of the method that are shown to be worse than the reference: no points of the curve."""
    reason: Reason
    """Why there is no comparison; empty where there is one."""
    left: dict[int, Left] = field(default_factory=dict)
    """Planned seed -> why it is not compared."""
    between: tuple[str, ...] = ()
    """The arms that end next below and above, on some seed."""
    arm_value: Estimate | None = None
    base_value: Estimate | None = None
    """The method's at these KLs."""
    difference: Estimate | None = None
    per_seed: dict[int, float] = field(default_factory=dict)
    p: float | None = None
    p_holm: float | None = None
    """Corrected over the arms compared on this metric."""
    outcome: Outcome = "not estimable"

    @property
    def left_by_reason(self) -> dict[Left, int]:
        """How many planned seeds are not compared, by reason."""
        counts = Counter(self.left.values())
        order: tuple[Left, ...] = ("not evaluated", "below", "beyond", "far apart", "few arms")
        return {why: counts[why] for why in order if counts[why]}


@dataclass(frozen=True)
class SeedCurve:
    """The ends of the method's arms on one seed, in ascending order of KL; K arms, P prompts or 1."""

    arms: tuple[str, ...]
    kl: Array
    """(K, P) nats per sequence."""
    values: Array
    """(K, P) of the metric."""
    reference: Array | None
    """(P,) of the metric under the reference, where it is known."""

    def refusal(self, at: float) -> Refusal:
        return refusal(self.kl.mean(1), at, self.reference is not None)

    def between(self, at: float) -> tuple[str, str]:
        """The arms that end next below and above a KL without a `refusal`."""
        above = max(1, int(np.searchsorted(self.kl.mean(1), at)))
        return self.arms[above - 1], self.arms[above]


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
    arms, collapsed = _arms(records)
    result: list[MatchedKL] = []
    for metric in metrics(records):
        rows = [row for arm in others if (row := _matched(records, metric, arm, name, arms, collapsed)) is not None]
        result += _corrected(rows, maximized(records, metric))
    return tuple(result)


def seed_lines(records: StudyRecords, metric: str) -> dict[int, tuple[Array, Array]]:
    """Seed -> KL and value, (`PLACES`,) each, of the curve that an arm is compared with on this seed; NaN where arms
    are too far apart."""
    arms, _ = _arms(records)
    seeds = {arm: _seeds(records, metric, arm) for arm in arms}
    prompts = _prompts(records, metric, [(arm, seed) for arm in arms for seed in seeds[arm]])
    lines = {}
    for seed in records.seeds:
        curve = _curve(records, metric, [arm for arm in arms if seed in seeds[arm]], seed, prompts)
        xs, ys = curve.kl.mean(1), curve.values.mean(1)
        if len(xs) < 2:
            continue
        places = np.linspace(np.sqrt(xs[0]), np.sqrt(xs[-1]), PLACES) ** 2
        places[[0, -1]] = xs[[0, -1]]
        if curve.reference is not None:
            xs, ys = np.append(0.0, xs), np.append(curve.reference.mean(), ys)
        values = [np.nan if curve.refusal(at) else interpolate(xs, ys, at) for at in places]
        lines[seed] = places, np.array(values)
    return lines


def _matched(
    records: StudyRecords, metric: str, arm: str, method: str, arms: tuple[str, ...], collapsed: tuple[str, ...]
) -> MatchedKL | None:
    seeds = {name: _seeds(records, metric, name) for name in (arm, *arms)}
    prompts = _prompts(records, metric, [(name, seed) for name in seeds for seed in seeds[arm] if seed in seeds[name]])
    mine = [_end(records, metric, arm, seed, prompts) for seed in seeds[arm]]
    if not mine or not mine[0][0].size:
        return None
    planned = records.seeds
    row = MatchedKL(metric, arm, method, _estimate([kl for kl, _ in mine]), len(planned), arms, collapsed, "few arms")
    if len(arms) < 2:
        return row
    left: dict[int, Left] = {seed: "not evaluated" for seed in planned if seed not in seeds[arm]}
    between: set[str] = set()
    tables = []
    for seed, (kl, values) in zip(seeds[arm], mine, strict=True):
        curve = _curve(records, metric, [name for name in arms if seed in seeds[name]], seed, prompts)
        if why := curve.refusal(float(kl.mean())):
            left[seed] = why
            continue
        between.update(curve.between(float(kl.mean())))
        tables.append((kl, values, curve_at(curve.kl, curve.values, curve.reference, kl)))
    if not enough(len(tables), row.seeds):
        return replace(row, reason="few seeds", left=left)
    own, base = [values for _, values, _ in tables], [values for _, _, values in tables]
    apart = [first - second for first, second in zip(own, base, strict=True)]
    estimate = _estimate(apart)
    compared = [seed for seed in seeds[arm] if seed not in left]
    return replace(
        row,
        kl=_estimate([kl for kl, _, _ in tables]),
        reason="",
        left=left,
        between=tuple(name for name in arms if name in between),
        arm_value=_estimate(own),
        base_value=_estimate(base),
        difference=estimate,
        per_seed={seed: float(values.mean()) for seed, values in zip(compared, apart, strict=True)},
    )


def _arms(records: StudyRecords) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The evaluated arms of the baseline's method in ascending order of their mean KL, and those that collapsed."""
    key = ENDED_KL if only_ends(records) else KL
    known = {arm: list(records.recorded(arm, key).values()) for arm in base_method(records)[1]}
    arms = sorted((arm for arm in known if known[arm]), key=lambda arm: np.mean(known[arm]))
    collapsed = tuple(arm for arm in arms[1:] if _collapsed(records, arm))
    return tuple(arm for arm in arms if arm not in collapsed), collapsed


def _collapsed(records: StudyRecords, arm: str) -> bool:
    """Whether the 95 % interval of an arm's win rate, or of its gold reward where there is no win rate, lies below the
    reference. Between such an arm and one at a smaller KL lies a maximum that no interpolation finds. It is judged over
    seeds, so that no seed is chosen by its scores, and by an interval, so that noise does not drop an arm at a low KL.
    """
    metric = _WIN_RATE if _WIN_RATE in records.trials.columns else GOLD
    seeds = _seeds(records, metric, arm)
    prompts = _prompts(records, metric, [(arm, seed) for seed in seeds])
    curves = [_curve(records, metric, [arm], seed, prompts) for seed in seeds]
    apart = [curve.values[0] - curve.reference for curve in curves if curve.reference is not None and curve.values.size]
    high = _estimate(apart).high if apart else None
    return high is not None and high < 0


def _curve(records: StudyRecords, metric: str, arms: Sequence[str], seed: int, prompts: pd.Index | None) -> SeedCurve:
    ends = sorted(
        ((arm, *_end(records, metric, arm, seed, prompts)) for arm in arms), key=lambda end: float(end[1].mean())
    )
    size = (0, 1 if prompts is None else len(prompts))
    kl, values = (np.stack([end[part] for end in ends]) if ends else np.empty(size) for part in (1, 2))
    reference = None
    if metric == _WIN_RATE and not only_ends(records):
        reference = np.full(size[1], _REFERENCE_WIN_RATE)
    elif arms and prompts is not None and _knows_reference(records, metric):
        reference = records.answers(arms[0], _REFERENCE[metric], [seed], prompts)[0]
    return SeedCurve(tuple(end[0] for end in ends), kl, values, reference)


def _end(records: StudyRecords, metric: str, arm: str, seed: int, prompts: pd.Index | None) -> tuple[Array, Array]:
    """KL and metric of one trial, (P,) each; P = 1 of what exists once per trial."""
    keys = ENDED_KL if only_ends(records) else KL, metric
    if prompts is None:
        first, second = (np.array([records.recorded(arm, key)[seed]]) for key in keys)
        return first, second
    first, second = (
        two_level.linear(*(records.answers(arm, part, [seed], prompts) if part else None for part in columns))[0]  # type: ignore[arg-type]
        for key in keys
        if (columns := per_prompt(records, key))
    )
    return first, second


def _seeds(records: StudyRecords, metric: str, arm: str) -> list[int]:
    """Evaluated seeds of an arm with a KL and the metric."""
    if (columns := _columns(records, metric)) is not None:
        return records.answered(arm, columns)
    known = [records.recorded(arm, key) for key in (ENDED_KL if only_ends(records) else KL, metric)]
    return [seed for seed in records.evaluated(arm) if all(seed in values for values in known)]


def _prompts(records: StudyRecords, metric: str, trials: Sequence[tuple[str, int]]) -> pd.Index | None:
    """Prompts that all of these trials answered, with all `_columns`; None of what exists once per trial."""
    columns = _columns(records, metric)
    return None if columns is None else records.shared_prompts(trials, columns)


def _columns(records: StudyRecords, metric: str) -> list[str] | None:
    """Per-prompt columns of KL, metric and, where it is known, the reference's; None of what exists once per trial."""
    found = [per_prompt(records, key) for key in (ENDED_KL if only_ends(records) else KL, metric)]
    if None in found:
        return None
    reference = [_REFERENCE[metric]] if _knows_reference(records, metric) else []
    return [column for columns in found for column in columns or () if column] + reference


def _knows_reference(records: StudyRecords, metric: str) -> bool:
    return metric in _REFERENCE and records.by_prompt(metric, [_REFERENCE[metric]])


def _estimate(rows: Sequence[Array]) -> Estimate:
    """Over seeds, (P,) each."""
    table = np.stack(rows)
    return two_level.over_seeds(list(table[:, 0])) if table.shape[1] == 1 else two_level.mean(table)


def _corrected(rows: Sequence[MatchedKL], maximize: bool) -> list[MatchedKL]:
    tested = two_level.verdicts([row.difference for row in rows], [None] * len(rows), maximize)
    return [
        replace(row, p=one.p, p_holm=one.p_holm, outcome=one.outcome) for row, one in zip(rows, tested, strict=True)
    ]
