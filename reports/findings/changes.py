"""By how much the arms of two versions of a study differ: paired where seeds and prompts match, else as independent
samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from pipeline.run.metrics import METRICS
from reports.findings.pairs import PER_PROMPT
from reports.records.versions import Version
from reports.statistics import two_level as stats
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
    p: float | None
    p_holm: float | None = None
    finding: str = "not estimable"
    """`identical`, `higher`, `lower`, `no detectable change` or `not estimable`."""


def changes_of(old: Version, new: Version) -> list[Change]:
    """Every arm of both versions on the new objective and on `COMPARED`, Holm-corrected over the arms of a metric."""
    objective = str((new.study.get("objective") or {}).get("metric", COMPARED[0]))
    arms = [arm for arm in new.arms if arm in old.arms]
    found = []
    for metric in dict.fromkeys((objective, *COMPARED)):
        raw = [change for arm in arms if (change := _change(old, new, arm, metric)) is not None]
        tested = [index for index, one in enumerate(raw) if one.p is not None]
        corrected = dict(zip(tested, stats.holm([p for one in raw if (p := one.p) is not None]), strict=True))
        found += [
            replace(one, p_holm=corrected.get(i), finding=_finding(one, corrected.get(i))) for i, one in enumerate(raw)
        ]
    return found


def _finding(one: Change, p: float | None) -> str:
    if one.difference is None:
        return "not estimable"
    if one.pairing != "unpaired" and one.difference.value == 0.0 and one.difference.low == one.difference.high:
        return "identical"
    words = {"better": "higher", "worse": "lower", "no detectable difference": "no detectable change"}
    return words.get(stats.verdict(one.difference, p, maximize=True), "not estimable")


def _change(old: Version, new: Version, arm: str, metric: str) -> Change | None:
    """None where neither version measured the metric."""
    if metric not in PER_PROMPT:
        return _once(old, new, arm, metric)
    top, bottom = PER_PROMPT[metric]
    tables = [
        {seed: table for seed in v.seeds(arm) if (table := v.prompts(arm, seed)) is not None and top in table}
        for v in (old, new)
    ]
    if not any(tables):
        return _once(old, new, arm, metric)
    own = [_arrays(found, top, bottom, _shared(list(found.values()))) for found in tables]
    alone = [stats.mean(*one).clipped(METRICS[metric].low, METRICS[metric].high) if one else None for one in own]
    seeds = [seed for seed in tables[0] if seed in tables[1]]
    prompts = _shared([found[seed] for found in tables for seed in seeds]) if seeds else pd.Index([])
    if len(prompts):
        pair = [_arrays({seed: found[seed] for seed in seeds}, top, bottom, prompts) for found in tables]
        assert pair[0] is not None
        assert pair[1] is not None
        (first, under_first), (second, under_second) = pair[0], pair[1]
        difference = stats.difference(second, first, under_second, under_first)
        p = _larger(stats.swap_test(second, first, under_second, under_first), stats.two_level_p(difference))
        return Change(arm, metric, alone[0], alone[1], difference, "paired", p)
    return _welch(arm, metric, alone[0], alone[1])


def _once(old: Version, new: Version, arm: str, metric: str) -> Change | None:
    """A metric that exists once per trial."""
    values = [
        {seed: v.records[arm, seed].summary[metric] for seed in v.seeds(arm) if metric in v.records[arm, seed].summary}
        for v in (old, new)
    ]
    if not any(values):
        return None
    alone = [stats.over_seeds(list(own.values())) if own else None for own in values]
    seeds = [seed for seed in values[0] if seed in values[1]]
    if not seeds:
        return _welch(arm, metric, alone[0], alone[1])
    difference = stats.over_seeds([values[1][seed] - values[0][seed] for seed in seeds])
    return Change(arm, metric, alone[0], alone[1], difference, "paired by seed", stats.two_level_p(difference))


def _welch(arm: str, metric: str, old: Estimate | None, new: Estimate | None) -> Change:
    """Difference of two independent estimates; Welch and Satterthwaite's degrees of freedom (Welch 1947)."""
    if old is None or new is None:
        return Change(arm, metric, old, new, None, "none", None)
    value, size = new.value - old.value, (min(old.seeds, new.seeds), min(old.prompts, new.prompts))
    if not old.se or not new.se or not old.df or not new.df:
        return Change(arm, metric, old, new, Estimate(value, None, None, *size, "none"), "unpaired", None)
    from scipy.stats import t

    variances = old.se**2, new.se**2
    df = sum(variances) ** 2 / (variances[0] ** 2 / old.df + variances[1] ** 2 / new.df)
    se = math.sqrt(sum(variances))
    half = float(t.ppf((1 + stats.LEVEL) / 2, df)) * se
    difference = Estimate(value, value - half, value + half, *size, "student", se, df)
    return Change(arm, metric, old, new, difference, "unpaired", stats.two_level_p(difference))


def _shared(tables: list[pd.DataFrame]) -> pd.Index:
    """Numbers of the prompts that all tables have with the same text."""
    if not tables:
        return pd.Index([])
    texts = pd.concat([table["prompt"] for table in tables], axis=1, join="inner")
    return texts.index[texts.nunique(axis=1) == 1].sort_values()


def _arrays(
    found: dict[int, pd.DataFrame], top: str, bottom: str | None, prompts: pd.Index
) -> tuple[Array, Array | None] | None:
    """Numerator and denominator, (S, P) each."""
    if not found or not len(prompts):
        return None
    numerator = np.stack([table.loc[prompts, top].to_numpy(dtype=np.float64) for table in found.values()])
    if bottom is None:
        return numerator, None
    return numerator, np.stack([table.loc[prompts, bottom].to_numpy(dtype=np.float64) for table in found.values()])


def _larger(first: float, second: float | None) -> float:
    """The larger p, as everywhere on the pages; with a single seed only the first exists."""
    return first if second is None else max(first, second)
