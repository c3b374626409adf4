"""Trials from logs: series over gradient steps and outcomes by prompt, in our names and units, checked.

What was measured on the rollout of an update (`objective/*`, `reward/*`, explained variance) stands at the gradient
steps that the policy had taken by then, all else at the last gradient step of the update.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.errors import UserError
from pipeline.intervals import last_tenth
from pipeline.run.metrics import METRICS, ON_ROLLOUT, known, measured_in
from pipeline.wording import shown
from studies.definition.trainer import Window
from studies.importing.logs import Cell, number
from studies.importing.maps import PROGRAMS, PROMPT_ID, PROMPTS, Map, Named, conversion, first

Taken = Mapping[str, tuple["pd.Series[Any]", Named]]
"""Our metric -> their column as logged, and how it is read."""
TOLERANCE = 1e-6
"""Tolerance of a bound: what float32 rounding leaves of a quantity that is 0 or 1."""


class Problem(NamedTuple):
    """One kind of fault in one column of one log."""

    kind: str
    column: str
    file: str
    words: str


@dataclass
class ImportedTrial:
    """One trial of another program: finite values of each series by gradient step; what is known of each prompt; final
    measurements; gradient steps, as far as the log is sound; and the columns that were taken, and those left."""

    arm: str
    seed: int
    origin: dict[str, str]
    series: dict[str, pd.Series[float]] = field(default_factory=dict)
    prompts: pd.DataFrame | None = None
    summary: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    diverged: str | None = None
    problems: list[Problem] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def ends(self, window: Window) -> dict[str, float]:
        """Return the end of each series: its last value, or the mean of its last tenth."""
        end = last_tenth if window == "last_tenth" else lambda values: float(values[-1])
        return {ours: end(np.asarray(series, dtype=np.float64)) for ours, series in self.series.items()}


def read_trial(cell: Cell, rows: pd.DataFrame, own: Map) -> ImportedTrial:
    """Read a trial. Raises `UserError` for rows or prompts that cannot be placed, and where no column is known."""
    digest = hashlib.sha256(rows.to_csv().encode("utf-8", "backslashreplace")).hexdigest()
    trial = ImportedTrial(*cell, {"file": ", ".join(rows.index.unique(0)), "sha256": digest})
    axis = first(own.step, rows)
    of_steps = rows.groupby(level=0)[axis].transform("count") > 0 if axis else pd.Series(False, rows.index)
    for part, x in ((rows[of_steps], axis), (rows[~of_steps], None)):
        columns = [str(name) for name in part.dropna(axis=1, how="all")]
        found = own.series(columns) if x else own.outcomes(columns)
        if columns and not found.keys() - {PROMPT_ID}:
            raise UserError(
                f"{part.index[0][0]}: the map names none of its columns: {', '.join(columns)}; give another --map"
                f" ({', '.join(PROGRAMS)}), or a .yaml file such as metrics: {{objective/scores: COLUMN}}"
            )
        used = [column for column, _ in found.values()]
        files = part[used].groupby(level=0).count().astype(bool)
        if files.sum().max() > 1:
            raise UserError(f"'{files.index[0]}' and '{files.index[1]}' are of one arm and seed; keep one of them")
        part = part[part[used].notna().any(axis=1)]
        if x and len(files) > 1:  # panels
            part = part.sort_values(x, key=lambda values: values.map(number), kind="stable")
        taken = {ours: (part[column], theirs) for ours, (column, theirs) in found.items()}
        if x:
            _read_series(part[x], own, taken, trial)
        elif columns:
            _read_prompts(own, taken, trial)
        trial.taken += [f"{column} ({ours})" for ours, (column, _) in found.items()]
        trial.left += [column for column in columns if column not in {*used, *own.step}]
    return trial


def doubts(trial: ImportedTrial, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Find series that contradict each other, above all by a unit other than the assumed one; `settings`: the arm's own
    in the study's file."""
    heads = [f"objective/{key}" for key in ("kl", "non_score_reward", "rlhf_reward", "scores", "entropy", "kl_coef")]
    table = pd.DataFrame(trial.series).reindex(columns=[*heads, "objective/kl_per_token", "policy/entropy"])  # else NaN
    kl, penalty, reward, scores, entropy, beta, kl_per_token, entropy_per_token = (table[key] for key in table)
    stated = settings.get("kl.beta")
    beta = pd.Series(stated, table.index) if isinstance(stated, int | float) else beta
    large = (kl.abs() > 1e-3) & (beta > 0)
    ratio = float((-penalty / (beta * kl))[large].median())
    guess = "KL is in bits" if abs(ratio - math.log(2)) < 0.03 else "KL is per token" if ratio > 2 else "units differ"
    off = (reward - scores - penalty).abs() > 1e-2 * (reward.abs() + scores.abs() + penalty.abs()) + 1e-6
    negative = "negative on average, which no KL is: were completions sampled from the policy as it is?"
    penalised = f"the penalty is {ratio:.3g} x kl_coef x KL: {guess}, or kl_coef was another"
    less = "less than its mean over tokens, though it is their sum: units are mixed up"
    for series, wrong, doubtful, why in (
        (kl, kl < 0, kl.mean() < -0.1, negative),
        (kl_per_token, kl_per_token < 0, kl_per_token.mean() < -0.005, negative),
        (kl, large, abs(ratio - 1) > 0.05, penalised),
        (reward, off, off.sum() > 0.1 * (reward + scores + penalty).count(), "not the score plus the KL penalty"),
        (kl, kl.notna(), 1e-3 < kl.abs().median() < 0.99 * kl_per_token.abs().median(), less),
        (entropy, entropy.notna(), 1e-3 < entropy.abs().median() < 0.99 * entropy_per_token.abs().median(), less),
    ):
        if doubtful:
            file, name, often = trial.origin["file"], str(series.name), f"{wrong.sum():,} of {series.count():,} values"
            words = f"{file}: {name} = {series[wrong].median():.4g}: {why}; drawn as logged, in doubt; {often}"
            yield Problem("doubt", name, file, words)


def _read_series(x: pd.Series[Any], own: Map, taken: Taken, trial: ImportedTrial) -> None:
    rollout, trained = _places(x, own, taken)
    values = _values(taken, own.length)
    broken = values == np.inf
    if broken.any(axis=None):
        end = int(np.argmax(broken.any(axis=1)))
        ours = str(broken.iloc[end].idxmax())
        why = f"not finite; the trial counts as diverged there, and {len(values) - end:,} rows from it on are left out"
        trial.problems.append(_problem("diverged", ours, taken[ours][0], broken[ours], why))
        trial.diverged = "not finite from {1} of {0}".format(*values.index[end])
        values, rollout, trained = values[:end], rollout[:end], trained[:end]
    trial.steps = int(trained.max(initial=0))
    for ours, column in _possible(taken, values, trial):
        places = pd.Series(trained, column.index, dtype=float).where(column.notna())
        wrong = places <= places.cummax().ffill().shift()
        if wrong.any() and not any(problem.kind == "repeated" for problem in trial.problems):  # one column suffices
            why = "no later than a row before, as after a resume; of two values at one step the last counts"
            trial.problems.append(_problem("repeated", ours, taken[ours][0], wrong, why))
        series = column.set_axis(rollout if ours.startswith(ON_ROLLOUT) else trained).dropna()
        series = series[~series.index.duplicated(keep="last")].sort_index()
        if ours.startswith("eval/") and len(series):
            trial.summary[ours] = float(series.iloc[-1])
        elif len(series):
            trial.series[ours] = series


def _places(x: pd.Series[Any], own: Map, taken: Taken) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The gradient steps at which the rollout of each row was sampled, and at which its update ended."""
    at, per = x.map(number), own.steps_per_update
    _refuse(x, ~((at >= 0) & (at < 2**53) & (at % 1 == 0)), "a whole number is expected on the x-axis")
    steps = at.to_numpy(dtype=np.int64)
    if (own.counts or ("updates" if per else "gradient_steps")) == "gradient_steps":
        # An update began no earlier than the rollout that was logged before it: GRPO logs every gradient step.
        on_rollout = [column.notna() for ours, (column, _) in taken.items() if ours.startswith(ON_ROLLOUT)]
        sampled = np.sort(steps[np.any(on_rollout, axis=0)]) if on_rollout else steps[:0]
        return np.maximum(steps - (per or 0), np.append(0, sampled)[np.searchsorted(sampled, steps)]), steps
    if per is None:
        ways = "--steps-per-update N (epochs x mini-batches), or `counts: gradient_steps` in a map"
        raise UserError(f"{x.index[0][0]}: '{x.name}' counts updates; say how many gradient steps one takes: {ways}")
    _refuse(x, at < own.first_update, "updates count from 1; if the first is 0, say `first_update: 0` in a map")
    return (steps - own.first_update) * per, (steps - own.first_update + 1) * per


def _read_prompts(own: Map, taken: Taken, trial: ImportedTrial) -> None:
    prompts, outcomes = taken[PROMPT_ID][0], {ours: one for ours, one in taken.items() if ours != PROMPT_ID}
    ids = prompts.map(lambda one: int(hashlib.sha256(str(one).encode()).hexdigest()[:13], 16))  # the same in any import
    _refuse(prompts, prompts.isna(), "without it a prompt cannot be paired with itself elsewhere")
    _refuse(prompts, ids.duplicated(), "stands a second time; give the mean over a prompt's answers")
    possible = _possible(outcomes, _values(outcomes, own.length), trial)
    columns = {ours: column for ours, column in possible if column.notna().any()}
    trial.prompts = pd.DataFrame({PROMPT_ID: ids, "prompt": prompts.astype(str), **columns})
    for metric, (top, bottom) in measured_in(columns).items():
        if (bottom or top) in columns:
            both = trial.prompts.assign(one=1.0)[[top, bottom or "one"]].dropna().sum()
            trial.summary |= {metric: float(both.iloc[0] / both.iloc[1])} if both.iloc[1] else {}


def _values(taken: Taken, length: float | None) -> pd.DataFrame:
    """Columns in our units, with the marks of `number`; `length` is that of a response where no column holds it."""
    values = pd.DataFrame({ours: column.map(number) for ours, (column, _) in taken.items()}, dtype=float)
    lengths = values.get("objective/length", values.get("policy_length"))
    tokens = pd.Series(length, values.index, dtype=float) if lengths is None else lengths.where(lengths.between(1, 1e9))
    for ours, (column, theirs) in taken.items():
        logged, (factor, power) = values[ours], conversion(theirs.unit, ours) if theirs.unit else (1.0, 0)
        if power and tokens.isna().all():
            raise UserError(f"{column.index[0][0]}: {ours} in '{theirs.unit}' needs a column of lengths, or `length`")
        scaled = logged * factor * tokens**power if power else logged * factor
        values[ours] = ((scaled - theirs.subtract) * theirs.factor).mask(np.isinf(logged), logged)
    return values


def _possible(taken: Taken, values: pd.DataFrame, trial: ImportedTrial) -> Iterator[tuple[str, pd.Series[float]]]:
    """The columns whose values fit their names; the faults of others are noted."""
    for ours in taken:
        column, raw = values[ours], taken[ours][0][: len(values)]
        metric = METRICS[ours if known(ours) else PROMPTS.get(ours, "eval/gold")]
        kl = ours.startswith(("objective/kl", "eval/kl_")) and ours != "objective/kl_coef"
        wrong = (column < metric.low - TOLERANCE) | (column > metric.high + TOLERANCE) | np.isinf(column)
        if wrong.any():
            bounds = f"{metric.low:g} to {metric.high:g} {metric.unit}"
            why = f"no number from {bounds}; its name or unit must be wrong, so all of it is left out"
            trial.problems.append(_problem("range", ours, raw, wrong, why))
        elif kl and column.count() > 1 and not column.fillna(0).any():
            why = "0 in all rows, as a program writes that does not measure it; left out"
            trial.problems.append(_problem("unmeasured", ours, raw, column.notna(), why))
        else:
            yield ours, column


def _refuse(column: pd.Series[Any], wrong: pd.Series[bool], why: str) -> None:
    """Refuse a column with a wrong row. Raises `UserError`."""
    if wrong.any():
        raise UserError(_problem("", "", column, wrong, why).words)


def _problem(kind: str, metric: str, column: pd.Series[Any], wrong: pd.Series[bool], why: str) -> Problem:
    """A problem in the `wrong` rows of a column: place and value of the first, and how many there are."""
    first_wrong = int(np.argmax(wrong))
    (file, place), value, name = column.index[first_wrong], shown(column.iloc[first_wrong], 40), str(column.name)
    ours = f" ({metric})" if metric not in ("", name) else ""
    often = f"{wrong.sum():,} of {column.count():,} values"
    return Problem(kind, name, file, f"{file}, {place}: {name}{ours} = {value}: {why}; {often}")
