"""By how much the arms of two versions of a study differ: paired where seeds and prompts match, else as independent
samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.findings import SMALLEST
from reports.findings.pairs import PER_PROMPT
from reports.records.versions import Version
from reports.statistics import two_level
from reports.statistics.two_level import Array, Estimate

COMPARED = ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_sequence", "eval/length")
Pairing = Literal["paired", "paired by seed", "unpaired", "none"]


@dataclass(frozen=True)
class Change:
    """One metric of one arm, old and new."""

    arm: str
    metric: str
    old: Estimate | None
    new: Estimate | None
    difference: Estimate | None
    """New minus old."""
    pairing: Pairing
    p: float | None = None
    p_holm: float | None = None
    finding: str = "not estimable"
    """`identical`, `higher`, `lower`, `equivalent` (where a smallest difference is stated), `undecided` or `not
    estimable`."""


def changes_of(old: Version, new: Version) -> list[Change]:
    """Every arm of both versions on the new objective and on `COMPARED`, Holm-corrected over the arms of a metric."""
    objective = str((new.study.get("objective") or {}).get("metric", COMPARED[0]))
    arms = [arm for arm in new.arms if arm in old.arms]
    changes = []
    for metric in dict.fromkeys((objective, *COMPARED)):
        raw = [change for arm in arms if (change := _change(old, new, arm, metric)) is not None]
        tested = two_level.verdicts([row.difference for row in raw], [SMALLEST.get(metric)] * len(raw), maximize=True)
        changes += [
            replace(row, p=one.p, p_holm=one.p_holm, finding=_finding(row, one.outcome))
            for row, one in zip(raw, tested, strict=True)
        ]
    return changes


def _finding(change: Change, found: two_level.Outcome) -> str:
    if change.difference is None:
        return "not estimable"
    if (
        change.pairing != "unpaired"
        and change.difference.value == 0.0
        and change.difference.low == change.difference.high
    ):
        return "identical"
    return {"better": "higher", "worse": "lower"}.get(found, found)


def _change(old: Version, new: Version, arm: str, metric: str) -> Change | None:
    """None where neither version measured the metric."""
    if metric not in PER_PROMPT:
        return _once(old, new, arm, metric)
    top, bottom = columns = PER_PROMPT[metric]
    tables = [
        {
            seed: table
            for seed in v.seeds(arm)
            if (table := v.prompts(arm, seed)) is not None and _whole(table, *columns)
        }
        for v in (old, new)
    ]
    if not any(tables):
        return _once(old, new, arm, metric)
    own = [_arrays(by_seed, top, bottom, _shared(list(by_seed.values()))) for by_seed in tables]
    alone = [
        two_level.mean(*arrays).clipped(METRICS[metric].low, METRICS[metric].high) if arrays else None for arrays in own
    ]
    seeds = [seed for seed in tables[0] if seed in tables[1]]
    prompts = _shared([by_seed[seed] for by_seed in tables for seed in seeds]) if seeds else pd.Index([])
    if len(prompts):
        pair = [_arrays({seed: by_seed[seed] for seed in seeds}, top, bottom, prompts) for by_seed in tables]
        assert pair[0] is not None
        assert pair[1] is not None
        (first, under_first), (second, under_second) = pair[0], pair[1]
        difference = two_level.difference(second, first, under_second, under_first)
        return Change(arm, metric, alone[0], alone[1], difference, "paired")
    return _unpaired(arm, metric, alone[0], alone[1])


def _whole(table: pd.DataFrame, top: str, bottom: str | None) -> bool:
    """Whether a table holds these columns without gaps, which imported outcomes need not, and something to divide
    by."""
    known = all(column in table and table[column].notna().all() for column in (top, bottom) if column)
    return known and (bottom is None or bool(table[bottom].any()))


def _once(old: Version, new: Version, arm: str, metric: str) -> Change | None:
    """A metric that exists once per trial."""
    values = [
        {seed: v.records[arm, seed].summary[metric] for seed in v.seeds(arm) if metric in v.records[arm, seed].summary}
        for v in (old, new)
    ]
    if not any(values):
        return None
    alone = [two_level.over_seeds(list(own.values())) if own else None for own in values]
    seeds = [seed for seed in values[0] if seed in values[1]]
    if not seeds:
        return _unpaired(arm, metric, alone[0], alone[1])
    difference = two_level.over_seeds([values[1][seed] - values[0][seed] for seed in seeds])
    return Change(arm, metric, alone[0], alone[1], difference, "paired by seed")


def _unpaired(arm: str, metric: str, old: Estimate | None, new: Estimate | None) -> Change:
    """Difference of two independent estimates: of two posteriors their convolution, else by the degrees of freedom of
    Welch (1947)."""
    if old is None or new is None:
        return Change(arm, metric, old, new, None, "none", None)
    value, size = new.value - old.value, (min(old.seeds, new.seeds), min(old.prompts, new.prompts))
    if old.posterior is not None and new.posterior is not None:
        deviation = new.posterior.and_of(old.posterior)
        half = float(deviation.half_width(two_level.LEVEL))
        difference = Estimate(value, value - half, value + half, *size, "hierarchical", posterior=deviation)
        return Change(arm, metric, old, new, difference, "unpaired")
    if not old.se or not new.se or not old.df or not new.df:
        return Change(arm, metric, old, new, Estimate(value, None, None, *size, "none"), "unpaired", None)
    from scipy.stats import t

    variances = old.se**2, new.se**2
    df = sum(variances) ** 2 / (variances[0] ** 2 / old.df + variances[1] ** 2 / new.df)
    se = math.sqrt(sum(variances))
    half = float(t.ppf((1 + two_level.LEVEL) / 2, df)) * se
    difference = Estimate(value, value - half, value + half, *size, "student", se, df)
    return Change(arm, metric, old, new, difference, "unpaired")


def _shared(tables: list[pd.DataFrame]) -> pd.Index:
    """Numbers of the prompts that all tables have with the same text."""
    if not tables:
        return pd.Index([])
    texts = pd.concat([table["prompt"] for table in tables], axis=1, join="inner")
    return texts.index[texts.nunique(axis=1) == 1].sort_values()


def _arrays(
    tables: dict[int, pd.DataFrame], top: str, bottom: str | None, prompts: pd.Index
) -> tuple[Array, Array | None] | None:
    """Numerator and denominator, (S, P) each."""
    if not tables or not len(prompts):
        return None
    numerator = np.stack([table.loc[prompts, top].to_numpy(dtype=np.float64) for table in tables.values()])
    if bottom is None:
        return numerator, None
    return numerator, np.stack([table.loc[prompts, bottom].to_numpy(dtype=np.float64) for table in tables.values()])
