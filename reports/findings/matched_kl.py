"""Arms against the baseline's method at equal drift, seed by seed: both at the end of their training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from reports.findings.pairs import maximized, per_prompt
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.matched_kl import Refusal, curve_at, enough, interpolate, refusal
from reports.statistics.two_level import Array, Estimate, Outcome

FIXED_BETA = "fixed beta"
"""Name of the method whose arms differ from the baseline in a fixed beta alone."""
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
    """One arm against the score of the baseline's method, on each seed, at the KL at which the arm ends there."""

    metric: str
    arm: str
    method: str
    """The baseline's method."""
    kl: Estimate
    """Nats per sequence at which the arm ends, on the compared seeds; on all seeds where there is no comparison."""
    seeds: int
    """Planned seeds."""
    arms: tuple[str, ...]
    """Arms of the method, without `collapsed`, in ascending order of the KL at which they end."""
    collapsed: tuple[str, ...]
    """Arms of the method that are shown to be worse than the reference: no points of the curve."""
    reason: Reason
    """Reason why there is no comparison; empty where there is one."""
    left: dict[int, Left] = field(default_factory=dict)
    """Planned seed -> reason why it is not compared."""
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
        """Count the planned seeds that are not compared, by reason."""
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


@dataclass(frozen=True)
class Ends:
    """The ends of trials: on the prompts that all of them answered, or P = 1 where a metric exists once per trial."""

    trials: dict[tuple[str, int], tuple[Array, Array]]
    """(arm, seed) -> KL and metric, (P,) each."""
    reference: dict[int, Array]
    """Seed -> metric of the reference, (P,); empty where it is not known."""

    def seeds(self, arm: str) -> list[int]:
        return [seed for name, seed in self.trials if name == arm]

    def curve(self, arms: Sequence[str], seed: int) -> SeedCurve | None:
        """The curve through those of these arms that have this seed; None without any."""
        found = [(arm, *self.trials[arm, seed]) for arm in arms if (arm, seed) in self.trials]
        if not found:
            return None
        found.sort(key=lambda end: float(end[1].mean()))
        kl, values = (np.stack([end[part] for end in found]) for part in (1, 2))
        return SeedCurve(tuple(end[0] for end in found), kl, values, self.reference.get(seed))


def base_method(records: StudyRecords) -> tuple[str, tuple[str, ...]]:
    """The name of the baseline's method and its arms: as declared, else those that differ from the baseline in a fixed
    beta alone."""
    base = records.study.baseline
    for name, arms in (records.study.methods or {}).items():
        if base in arms:
            return name, arms
    configs = records.configs
    if not configs or configs[base].kl.control != "fixed":
        return base, (base,)
    rest = {arm: config.model_dump(exclude={"kl": {"beta"}, "train": {"stop"}}) for arm, config in configs.items()}
    alike = tuple(arm for arm in records.arms if rest.get(arm) == rest[base])
    return (FIXED_BETA if len(alike) > 1 else base), alike


def only_ends(records: StudyRecords) -> bool:
    """Return whether no trial was evaluated, so that the ends of the series of imported logs stand for it."""
    return KL not in records.trials.columns


def kl_key(records: StudyRecords) -> str:
    """The metric at which arms are compared."""
    return ENDED_KL if only_ends(records) else KL


def metrics(records: StudyRecords) -> list[str]:
    """Metrics to compare: the objective unless it is a KL, and the gold reward, or its like of imported trials."""
    others = (ENDED_GOLD, ENDED_PROXY) if only_ends(records) else (GOLD,)
    recorded = [key for key in (records.study.objective.metric, *others) if key in records.trials.columns]
    return [key for key in dict.fromkeys(recorded) if "/kl" not in key]


def matched(records: StudyRecords) -> tuple[MatchedKL, ...]:
    """Every evaluated arm of another method on the same task, by metric; empty where the study has no other method."""
    method, own = base_method(records)
    others = [arm for arm in records.arms if arm not in (*own, *records.other_tasks) and records.evaluated(arm)]
    if not others:
        return ()
    arms, collapsed = _arms(records)
    result: list[MatchedKL] = []
    for metric in metrics(records):
        found = ends(records, metric, [*arms, *others])
        rows = [_matched(records, found, metric, arm, arms) for arm in others if found.seeds(arm)]
        rows = [replace(row, method=method, collapsed=collapsed) for row in rows]
        tested = two_level.verdicts([row.difference for row in rows], [None] * len(rows), maximized(records, metric))
        result += [
            replace(row, p=one.p, p_holm=one.p_holm, outcome=one.outcome) for row, one in zip(rows, tested, strict=True)
        ]
    return tuple(result)


def at_equal_kl(records: StudyRecords, metric: str, arm: str) -> MatchedKL | None:
    """An arm against the baseline's method on this metric alone, without verdict; None before a trial of it ended."""
    arms, _ = _arms(records)
    found = ends(records, metric, [*arms, arm])
    return _matched(records, found, metric, arm, arms) if found.seeds(arm) else None


def ends(records: StudyRecords, metric: str, arms: Sequence[str]) -> Ends:
    """Return the ends of the evaluated trials of these arms that have a KL and the metric."""
    keys = (kl_key(records), metric)
    found = [per_prompt(records, key) for key in keys]
    if None in found:
        known = {arm: [records.recorded(arm, key) for key in keys] for arm in arms}
        trials = [(arm, seed) for arm in arms for seed in records.evaluated(arm) if all(seed in v for v in known[arm])]
        once = {(arm, seed): tuple(np.array([v[seed]]) for v in known[arm]) for arm, seed in trials}
        rates = metric == _WIN_RATE and not only_ends(records)
        return Ends(once, {seed: np.full(1, _REFERENCE_WIN_RATE) for _, seed in trials} if rates else {})  # type: ignore[arg-type]
    shown = _REFERENCE.get(metric)
    shown = shown if shown and records.by_prompt(metric, [shown]) else None
    columns = [column for pair in found for column in pair or () if column]
    needed = [*columns, shown] if shown else columns
    trials = [(arm, seed) for arm in arms for seed in records.answered(arm, needed)]
    prompts = records.shared_prompts(trials, needed)
    if not len(prompts):
        return Ends({}, {})

    def of(arm: str, seed: int, top: str, bottom: str | None) -> Array:
        parts = [records.answers(arm, part, [seed], prompts) if part else None for part in (top, bottom)]
        return np.asarray(two_level.linear(*parts)[0])  # type: ignore[arg-type]

    values = {(arm, seed): tuple(of(arm, seed, *pair) for pair in found if pair) for arm, seed in trials}
    reference = {seed: records.answers(arm, shown, [seed], prompts)[0] for arm, seed in trials} if shown else {}
    if metric == _WIN_RATE:
        reference = {seed: np.full(len(prompts), _REFERENCE_WIN_RATE) for _, seed in trials}
    return Ends(values, reference)  # type: ignore[arg-type]


def seed_lines(records: StudyRecords, metric: str) -> dict[int, tuple[Array, Array]]:
    """Seed -> KL and value, (`PLACES`,) each, of the curve that an arm is compared with on this seed; NaN where arms
    are too far apart."""
    arms, _ = _arms(records)
    found, lines = ends(records, metric, arms), {}
    for seed in records.seeds:
        curve = found.curve(arms, seed)
        if curve is None or len(curve.arms) < 2:
            continue
        xs, ys = curve.kl.mean(1), curve.values.mean(1)
        places = np.linspace(np.sqrt(xs[0]), np.sqrt(xs[-1]), PLACES) ** 2
        places[[0, -1]] = xs[[0, -1]]
        if curve.reference is not None:
            xs, ys = np.append(0.0, xs), np.append(curve.reference.mean(), ys)
        values = [np.nan if curve.refusal(at) else interpolate(xs, ys, at) for at in places]
        lines[seed] = places, np.array(values)
    return lines


def _matched(records: StudyRecords, found: Ends, metric: str, arm: str, arms: tuple[str, ...]) -> MatchedKL:
    planned = records.seeds
    mine = {seed: found.trials[arm, seed] for seed in found.seeds(arm)}
    row = MatchedKL(metric, arm, "", _estimate([kl for kl, _ in mine.values()]), len(planned), arms, (), "few arms")
    if len(arms) < 2:
        return row
    left: dict[int, Left] = {seed: "not evaluated" for seed in planned if seed not in mine}
    between: set[str] = set()
    base: dict[int, Array] = {}
    for seed, (kl, _) in mine.items():
        curve, at = found.curve(arms, seed), float(kl.mean())
        if why := curve.refusal(at) if curve else "few arms":
            left[seed] = why
        elif curve:
            between.update(curve.between(at))
            base[seed] = curve_at(curve.kl, curve.values, curve.reference, kl)
    if not enough(len(base), len(planned)):
        return replace(row, reason="few seeds", left=left)
    apart = {seed: mine[seed][1] - base[seed] for seed in base}
    return replace(
        row,
        kl=_estimate([mine[seed][0] for seed in base]),
        reason="",
        left=left,
        between=tuple(name for name in arms if name in between),
        arm_value=_estimate([mine[seed][1] for seed in base]),
        base_value=_estimate(list(base.values())),
        difference=_estimate(list(apart.values())),
        per_seed={seed: float(values.mean()) for seed, values in apart.items()},
    )


def _arms(records: StudyRecords) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The evaluated arms of the baseline's method in ascending order of their mean KL, and those that collapsed."""
    known = {arm: list(records.recorded(arm, kl_key(records)).values()) for arm in base_method(records)[1]}
    arms = sorted((arm for arm in known if known[arm]), key=lambda arm: np.mean(known[arm]))
    collapsed = tuple(arm for arm in arms[1:] if _collapsed(records, arm))
    return tuple(arm for arm in arms if arm not in collapsed), collapsed


def _collapsed(records: StudyRecords, arm: str) -> bool:
    """Return whether the 95 % interval of an arm's win rate, or else of its gold reward, lies below the reference.
    Between such an arm and one at a smaller KL lies a maximum that no interpolation finds. It is judged over seeds, so
    that no seed is chosen by its scores, and by an interval, so that noise does not drop an arm at a low KL.
    """
    found = ends(records, _WIN_RATE if _WIN_RATE in records.trials.columns else GOLD, [arm])
    apart = [values - found.reference[seed] for (_, seed), (_, values) in found.trials.items() if found.reference]
    high = _estimate(apart).high if apart else None
    return high is not None and high < 0


def _estimate(rows: Sequence[Array]) -> Estimate:
    """Estimate over seeds, (P,) each."""
    table = np.stack(rows)
    return two_level.over_seeds(list(table[:, 0])) if table.shape[1] == 1 else two_level.mean(table)
