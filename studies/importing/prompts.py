"""Outcomes by prompt that another program published: the columns of an evaluation, as far as they are there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.errors import UserError
from pipeline.intervals import grouped
from pipeline.run.metrics import METRICS, PER_PROMPT
from studies.importing.mapping import PROMPT_NAMES, MappingFile, Misfit, Named, conversion, require
from studies.importing.naming import plain
from studies.importing.problems import Problem
from studies.importing.rows import LogRow, number

WORDS = {
    "prompt_id": ("prompt_id", "prompt_index", "question_id", "prompt", "id"),
    "win": ("win", "wins", "win_rate", "won"),
    "tie": ("tie", "ties", "tie_rate"),
    "policy_gold": ("policy_gold", "gold", "gold_reward", "gold_score"),
    "reference_gold": ("reference_gold", "gold_reference"),
    "policy_proxy": ("policy_proxy", "proxy", "proxy_reward", "reward", "score"),
    "reference_proxy": ("reference_proxy", "proxy_reference"),
    "kl": ("kl", "kl_per_sequence"),
    "entropy": ("entropy", "entropy_per_sequence"),
    "policy_length": ("policy_length", "length", "response_length", "completion_length"),
    "policy_eos": ("policy_eos", "eos"),
}
"""Ours -> what a column of that meaning is usually called; of several the first that is there is taken."""
_UNITS = {"kl": "eval/kl_per_sequence", "entropy": "objective/entropy"}
"""Columns with a unit that can be converted, and a metric of the unit that they have here."""
_BOUNDS = {"win": (0.0, 1.0), "tie": (0.0, 1.0), "policy_eos": (0.0, 1.0), "policy_length": (1.0, math.inf)}


@dataclass(frozen=True)
class Outcomes:
    """The prompts of one trial."""

    table: pd.DataFrame
    """prompt_id (whole numbers, the same for the same prompt in every trial), prompt (its id as it was given), and
    those of `PROMPT_NAMES` that are known; NaN where a prompt has no value."""
    summary: dict[str, float]
    """`eval/*` metrics that follow from these columns."""
    named: dict[str, Named]
    """Ours -> theirs."""
    ignored: dict[str, str]
    """Their column -> why it is not taken."""
    problems: tuple[Problem, ...]


def id_column(mapping: MappingFile, keys: Iterable[str]) -> str | None:
    """The column that tells prompts apart; None in a log of something else."""
    present = list(keys)
    if "prompt_id" in mapping.prompts:
        stated = mapping.prompts["prompt_id"].key
        return stated if stated in present else None
    return next((key for word in WORDS["prompt_id"] for key in present if plain(key) == word), None)


def outcomes(rows: Sequence[LogRow], mapping: MappingFile, name: str) -> Outcomes:
    """The columns of a table of prompts in our names and units. Raises `Misfit` where none is known, and `UserError`
    for a prompt that stands twice."""
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    require([(f"prompts.{ours}", named.key) for ours, named in mapping.prompts.items()], keys)
    named, ignored = _named(mapping, keys)
    if len(named) < 2:
        raise Misfit(
            f"{name}: no column but the prompts' own is known ({', '.join(keys[:12])}); name them under `prompts` in"
            f" the mapping; there are: {', '.join(PROMPT_NAMES)}"
        )
    ids = _ids(rows, named["prompt_id"].key, name)
    columns: dict[str, NDArray[np.float64]] = {}
    problems: list[Problem] = []
    for ours in PROMPT_NAMES[1:]:
        if ours not in named:
            continue
        values, problem = _column(rows, ours, named[ours], name)
        if problem is not None:
            problems.append(problem)
            ignored[named[ours].key] = problem.why
        elif np.isfinite(values).any():
            columns[ours] = values
        else:
            ignored[named[ours].key] = "no value of it in the table"
    for ours in [*_UNITS]:
        if ours in columns:
            _in_our_unit(columns, ours, named[ours])
    table = pd.DataFrame({"prompt_id": ids, "prompt": [str(row.values[named["prompt_id"].key]) for row in rows]})
    kept = {ours: named[ours] for ours in named if ours == "prompt_id" or ours in columns}
    return Outcomes(table.assign(**columns), summary(columns), kept, ignored, tuple(problems))


def summary(columns: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    """The ``eval/*`` metrics that are means over prompts, or ratios of two sums, over the prompts that have them."""
    found: dict[str, float] = {}
    for metric, (top, bottom) in PER_PROMPT.items():
        if top not in columns or (bottom is not None and bottom not in columns):
            continue
        numerator = columns[top]
        denominator = columns[bottom] if bottom else np.ones_like(numerator)
        both = np.isfinite(numerator) & np.isfinite(denominator)
        if both.any():
            found[metric] = float(numerator[both].sum() / denominator[both].sum())
    if "win" in columns:
        wins = columns["win"][np.isfinite(columns["win"])]
        _, found["eval/win_rate_low"], found["eval/win_rate_high"] = grouped(wins, np.ones(len(wins), dtype=np.int64))
    return found


def _named(mapping: MappingFile, keys: list[str]) -> tuple[dict[str, Named], dict[str, str]]:
    named = dict(mapping.prompts)
    taken = {one.key for one in named.values()}
    for ours, words in WORDS.items():
        free = [key for word in words for key in keys if plain(key) == word and key not in taken]
        if ours not in named and free:
            named[ours] = Named(key=free[0])
            taken.add(free[0])
    known = ", ".join(PROMPT_NAMES)
    return named, {key: f"no column of a prompt's outcome; there are: {known}" for key in keys if key not in taken}


def _ids(rows: Sequence[LogRow], key: str, name: str) -> list[int]:
    """A whole number for every prompt: its id where that is one, else a digest of it, which is the same in every
    import."""
    first: dict[int, int] = {}
    for row in rows:
        value = row.values.get(key)
        if value is None:
            raise UserError(f"{name}, line {row.line}: no {key}, so the prompt cannot be paired with itself elsewhere")
        found = _id(value)
        if found in first:
            raise UserError(
                f"{name}, line {row.line}: prompt {value} stands a second time (first on line {first[found]}); give one"
                " row per trial and prompt, with the mean over its answers"
            )
        first[found] = row.line
    return list(first)


def _id(value: Any) -> int:
    exact = number(value)
    if exact is not None and math.isfinite(exact) and exact == int(exact) and 0 <= exact < 2**53:
        return int(exact)
    return int(hashlib.sha256(str(value).encode()).hexdigest()[:13], 16)


def _column(rows: Sequence[LogRow], ours: str, theirs: Named, name: str) -> tuple[NDArray[np.float64], Problem | None]:
    """Values of a column, NaN where a prompt has none; a column with an impossible value is left out as a whole."""
    raw = [row.values.get(theirs.key) for row in rows]
    found = [float(value) if isinstance(value, bool) else number(value) for value in raw]
    values = np.array([np.nan if value is None else value for value in found], dtype=np.float64)
    values = (values - theirs.subtract) * theirs.factor if not theirs.unit else values
    text = np.array([value is not None and at is None for value, at in zip(raw, found, strict=True)])
    low, high = _BOUNDS.get(ours, (-math.inf, math.inf))
    beyond = (values < low) | (values > high)
    for kind, wrong, why in (
        ("text", text, "no number"),
        ("range", beyond | np.isinf(values), f"outside {low:g} to {high:g}, which cannot be"),
    ):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            effect = "the whole column is left out, since its name or unit must be wrong"
            counts = int(wrong.sum()), sum(value is not None for value in raw)
            shown = repr(raw[at])[:40]
            return values, Problem(kind, name, rows[at].line, theirs.key, ours, shown, why, *counts, effect)  # type: ignore[arg-type]
    return values, None


def _in_our_unit(columns: dict[str, NDArray[np.float64]], ours: str, theirs: Named) -> None:
    if theirs.unit is None:
        return
    factor, power = conversion(theirs.unit, METRICS[_UNITS[ours]], "policy_length" in columns)
    scale = columns["policy_length"] ** power if power else 1.0
    columns[ours] = (columns[ours] * factor * scale - theirs.subtract) * theirs.factor
