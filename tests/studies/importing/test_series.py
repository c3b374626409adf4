"""Rows become series over gradient steps in our units; other rows are named with their place and never drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trl_logs import Rows, rows

from pipeline.errors import UserError
from studies.importing.maps import load_map
from studies.importing.run import lines
from studies.importing.trials import ImportedTrial, doubts

Read = Callable[..., ImportedTrial]
Edit = Callable[[dict[str, Any]], dict[str, Any]]


def changed(key: str, values: dict[int, Any] | float) -> Rows:
    """The usual log with other values of a column, on single lines or on all."""
    made = rows()
    for line in values if isinstance(values, dict) else range(1, len(made) + 1):
        made[line - 1][key] = values[line] if isinstance(values, dict) else values
    return made


@pytest.mark.parametrize(
    ("edit", "entries", "rollout", "trained"),
    [
        (lambda row: row, {}, [0, 16, 32], [16, 32, 48]),
        (lambda row: {**row, "step": row["step"] - 1}, {"first_update": 0}, [0, 16, 32], [16, 32, 48]),
        (lambda row: {**row, "step": row["step"] * 16}, {"counts": "gradient_steps"}, [0, 16, 32], [16, 32, 48]),
        (lambda row: row, {"counts": "gradient_steps", "steps_per_update": None}, [1, 2, 3], [1, 2, 3]),
        (lambda row: {**row, "t": row["step"] + 7}, {"step": "t"}, [112, 128, 144], [128, 144, 160]),
        (lambda row: {f"train/{key}": value for key, value in row.items()}, {}, [0, 16, 32], [16, 32, 48]),
    ],
)
def test_an_update_stands_at_two_places(
    read: Read, edit: Edit, entries: dict[str, Any], rollout: list[int], trained: list[int]
) -> None:
    found = read([edit(row) for row in rows(updates=3)], **entries)
    assert found.series["objective/kl"].index.tolist() == rollout, "what the policy had taken when it sampled"
    assert found.series["policy/approxkl"].index.tolist() == trained, "the last gradient step of the update"
    assert found.steps == trained[-1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "line 1: step = 0: updates count from 1; if the first is 0, say `first_update: 0` in a map"),
        *((value, f"line 1: step = {value}: a whole number is expected") for value in (1.5, None, "x")),
    ],
)
def test_rows_without_a_place(read: Read, value: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"a-seed0.jsonl, {words}".replace("None", "(None|nan)")):
        read([{**rows(updates=1)[0], "step": value}, *rows(updates=2)[1:]])


@pytest.mark.parametrize(
    ("key", "ours", "value", "bounds"),
    [
        ("objective/entropy", "objective/entropy", -3.25, "0 to inf nats per sequence"),
    ],
)
def test_an_impossible_value_takes_its_series_out(read: Read, key: str, ours: str, value: Any, bounds: str) -> None:
    found = read(changed(key, {4: value, 9: value}))
    (problem,) = found.problems
    assert problem[:3] == ("range", key, "a-seed0.jsonl")
    why = f"no number from {bounds}; its name or unit must be wrong, so all of it is left out; 2 of 12 values"
    assert lines([problem]) == [f"a-seed0.jsonl, line 4: {key} = {value}: {why}"]
    assert set(found.series) == set(load_map("trl-ppo")[0].metrics) - {ours}
    assert found.diverged is None


@pytest.mark.parametrize("value", [-math.inf, "NaN"])
def test_not_finite_is_divergence_and_ends_the_trial_there(read: Read, value: Any) -> None:
    found = read(changed("objective/kl", {8: value, 11: value}))
    assert found.diverged == "not finite from line 8 of a-seed0.jsonl"
    assert found.steps == 7 * 16, "no claim about later steps can survive on rows that came before"
    assert all(len(series) == 7 for series in found.series.values())
    (problem,) = found.problems
    assert (problem.kind, problem.words.count(", line 8: "), problem.words.count("; 2 of ")) == ("diverged", 1, 1)
    assert "5 rows from it on are left out" in problem.words


@pytest.mark.parametrize("more", [rows(updates=5)[3:], rows(updates=6)[5:]])
def test_of_two_values_at_one_step_the_last_counts(read: Read, more: Rows) -> None:
    found = read(rows(updates=6) + [{**row, "objective/kl": 99.0} for row in more])
    (problem,) = found.problems
    assert problem.kind == "repeated"
    assert re.search(f", line 7: .*; {len(more)} of ", problem.words)
    assert found.series["objective/kl"].index.tolist() == [0, 16, 32, 48, 64, 80]
    assert (found.series["objective/kl"] == 99.0).sum() == len(more)


@pytest.mark.parametrize(
    ("ours", "named", "theirs", "value"),
    [
        ("objective/kl", {"unit": "bits per sequence"}, 1.0, math.log(2)),
        ("objective/kl", {"unit": "nats per token"}, 2.0, 48.0),
        ("policy/pg_clipfrac", {"unit": "percent"}, 7.5, 0.075),
        ("objective/scores", {"subtract": 0.5, "factor": 2.0}, 1.25, 1.5),
    ],
)
@pytest.mark.parametrize("column", [True, False])
def test_units(read: Read, ours: str, named: dict[str, Any], theirs: float, value: float, column: bool) -> None:
    metrics = {ours: {"key": "x", **named}, **({"objective/length": "n"} if column else {})}
    found = read([{**row, "n": 24} for row in changed("x", theirs)], metrics=metrics, length=None if column else 24)
    np.testing.assert_allclose(found.series[ours], value, rtol=1e-12)
    np.testing.assert_allclose(found.series["objective/kl_per_token"], found.series["objective/kl"] / 24, rtol=1e-12)
    assert ("objective/length" in found.series) == column, "a stated length was not measured"


def edited(**edits: tuple[float, float]) -> Rows:
    """The usual log with ``value x factor + offset`` in some columns; ``__`` stands for a slash."""
    named = {key.replace("__", "/"): edit for key, edit in edits.items()}
    return [{**row, **{key: row.get(key, 0) * times + plus for key, (times, plus) in named.items()}} for row in rows()]


BITS, TOKENS = (1 / math.log(2), 0), (1 / 24, 0)


@pytest.mark.parametrize(
    ("made", "settings", "words"),
    [
        (rows(), {"kl.beta": 0.05}, ""),
        (edited(objective__kl_coef=(0, 0.05)), {}, ""),
        (edited(objective__kl=BITS), {"kl.beta": 0.05}, "KL is in bits"),
        (edited(objective__kl=TOKENS), {"kl.beta": 0.05}, "the penalty is 24 x kl_coef x KL: KL is per token"),
        (edited(objective__scores=(3, 0)), {}, "not the score plus the KL penalty"),
    ],
)
def test_series_that_contradict_each_other(read: Read, made: Rows, settings: dict[str, Any], words: str) -> None:
    found = [*doubts(read(made), settings)]
    assert [one.kind for one in found] == ["doubt"] * bool(words)
    assert all(words in one.words for one in found)
