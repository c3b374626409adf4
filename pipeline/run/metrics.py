"""The closed list of metrics, which is `metrics.csv`; nothing else may be logged. The rows at its end are families.
The healthy bands of series are in `bands.yaml`, with their sources.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import yaml

from pipeline.config.names import nearest
from pipeline.errors import UserError

Direction = Literal["maximize", "minimize"]
ON_ROLLOUT = ("objective/", "reward/", "replay/", "value/explained_variance")
"""Heads of the series that have one record an update, measured on its rollout."""
UPDATE_STEPS = "policy/update_steps"
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
class Metric:
    """One named quantity. `low` and `high` bound what a correct trial can show, `bands` what a healthy one does."""

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

    @property
    def bands(self) -> tuple[Band, ...]:
        """Healthy bands, the gravest first; empty where the series has none."""
        return BANDS.get(self.key, ())


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
