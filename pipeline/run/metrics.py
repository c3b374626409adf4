"""The closed list of metrics, which is `metrics.csv`; nothing else may be logged. The rows at its end are families.

Two cadences. Series under ``objective/`` and ``reward/`` are measured on a rollout and stand at the number of gradient
steps planned before it (0 for the reference itself); series under ``policy/``, ``value/`` and ``pairs/`` stand at the
gradient step in whose mini-batch they were measured (1 for the first). Steps that the target-KL stop leaves out are
counted, and have no record. ``eval/`` and ``cost/`` are of a whole trial; of the costs in its record those are listed
here that a hypothesis can name.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from pipeline.config.names import nearest
from pipeline.errors import UserError

Direction = Literal["maximize", "minimize"]
ON_ROLLOUT = ("objective/", "reward/", "replay/", "value/explained_variance")
"""Heads of the series that have one record an update, measured on its rollout."""
UPDATE_STEPS = "policy/update_steps"


@dataclass(frozen=True)
class Metric:
    """One named quantity. `low` and `high` bound what a correct trial can show."""

    key: str
    unit: str
    formula: str
    low: float = -math.inf
    high: float = math.inf
    direction: Direction | None = None
    """The better direction in every study; None where it depends on the study's question."""
    columns: tuple[str, str | None] | None = None
    """Column of an evaluation's ``prompts.parquet`` whose mean over prompts is the metric, and the column of the
    denominator where it is a ratio of two sums."""

    @property
    def label(self) -> str:
        """Axis label with the unit."""
        return f"{self.key} [{self.unit}]"


def _rows() -> list[Metric]:
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return [
            Metric(
                row["key"],
                row["unit"],
                row["formula"],
                float(row["low"] or -math.inf),
                float(row["high"] or math.inf),
                cast(Direction | None, row["direction"] or None),
                (row["column"], row["denominator"] or None) if row["column"] else None,
            )
            for row in csv.DictReader(file)
        ]


_ROWS = _rows()
FAMILIES = tuple(row for row in _ROWS if row.key.endswith(">"))
"""Metrics of which there is one for every part of a composite reward, or for every further judge, by the names that the
user gave them."""
_PART = re.compile(r"[a-z][a-z0-9_]*")


def _head(key: str) -> str:
    return key[: key.rindex("/") + 1] if "/" in key else ""


class _Metrics(dict[str, Metric]):
    """The list; a member of a family can be looked up as well, but is not listed."""

    def __missing__(self, key: str) -> Metric:
        for metric in FAMILIES:
            if _head(metric.key) == _head(key) and _PART.fullmatch(key.removeprefix(_head(key))):
                return replace(metric, key=key)
        raise KeyError(key)


METRICS: dict[str, Metric] = _Metrics({row.key: row for row in _ROWS if row not in FAMILIES})
PER_PROMPT = {row.key: row.columns for row in METRICS.values() if row.columns}
"""Metrics that are a mean over prompts, or a ratio of two sums over prompts: numerator and denominator column of an
evaluation's ``prompts.parquet``."""
BY_FAMILY = {_head(row.key): _head(row.columns[0]) for row in FAMILIES if row.columns}
"""Heads of the members of a family that are a mean over prompts, and of their column in the same file."""


def per_prompt(key: str) -> tuple[str, str | None] | None:
    """The columns of ``prompts.parquet`` that a metric is made of, numerator and denominator; None of one that exists
    once per trial.

    >>> per_prompt("eval/gold"), per_prompt("eval/gold/harmless"), per_prompt("eval/distinct_1")
    (('policy_gold', None), ('policy_gold/harmless', None), None)
    """
    if column := BY_FAMILY.get(_head(key)):
        return column + key.removeprefix(_head(key)), None
    return PER_PROMPT.get(key)


def each_step(key: str) -> bool:
    """Return whether a series has a record at each gradient step that is taken.

    >>> each_step("policy/approxkl"), each_step("policy/old_kl"), each_step("objective/kl")
    (True, False, False)
    """
    return not key.startswith((*ON_ROLLOUT, "eval/", "cost/")) and key not in ("policy/old_kl", UPDATE_STEPS)


def known(key: str) -> bool:
    """Return whether a key is in the list or in a family."""
    try:
        return bool(METRICS[key])
    except KeyError:
        return False


def metric(key: str, origin: str = "metric") -> Metric:
    """Look a key up; an unknown one is a `UserError` with the nearest right name."""
    if not known(key):
        raise UserError(f"{origin}: no metric '{key}'{nearest(key, list(METRICS))}")
    return METRICS[key]


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys outside the list: a fault of ours, so a `KeyError`."""
    unknown = sorted(key for key in keys if not known(key))
    if unknown:
        raise KeyError(f"not in pipeline/run/metrics.csv: {', '.join(unknown)}")
