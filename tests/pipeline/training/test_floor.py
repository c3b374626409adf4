"""A part of the reward with a floor: its weight in a trial, in the scores, and on every way to a score."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tinytrial import FLOOR, run, score_in_two, trainer

from pipeline.algorithms.mathematics.controllers import multiplier
from pipeline.training.judging import score_in_parts


def weights(rows: dict[int, dict[str, float]]) -> list[tuple[float, float]]:
    """Weight and mean of the part, rollout by rollout."""
    found = [(row["objective/floor_weight"], row["reward/odd"]) for row in rows.values() if "reward/odd" in row]
    assert len(found) > 4
    return found


def test_the_weight_follows_the_part_from_rollout_to_rollout(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path, **FLOOR)
    found = weights(rows)
    assert found[0][0] == 0.0
    for (before, mean), (after, _) in pairwise(found):
        assert after == pytest.approx(multiplier(before, mean, 0.0, 2.0, 10.0), abs=1e-6)
    assert found[-1][0] > 1.0, "the part is below its floor throughout"


@pytest.mark.parametrize(("knob", "value"), [("at", -0.4), ("lr", 0.5), ("weight", 2.0), ("max_weight", 1.5)])
def test_every_knob_of_the_floor_changes_the_trial(tmp_path: Path, knob: str, value: float) -> None:
    _, whole, _ = run(tmp_path / "one", **FLOOR)
    _, other, _ = run(tmp_path / "two", **{**FLOOR, f"floor__{knob}": value})
    assert weights(whole) != weights(other)


def test_the_policy_is_trained_on_the_weighted_sum(tmp_path: Path) -> None:
    _, _, free = run(tmp_path / "free", **FLOOR)
    _, _, held = run(tmp_path / "held", **{**FLOOR, "floor__weight": 5.0})
    assert not all(torch.equal(free[name], held[name]) for name in free)


@pytest.mark.parametrize("rows_at_once", [1, 3, 8])
def test_scores_with_a_weight_do_not_depend_on_how_many_are_scored_at_once(tmp_path: Path, rows_at_once: int) -> None:
    one = trainer(tmp_path, runtime={"rollout_batch_size": rows_at_once}, **FLOOR)
    rollout = one._rollout()
    context = replace(one.rollout_context, floor_weight=3.0)
    rows = list(range(8))
    plain = score_in_two(rollout.episodes, rows)
    scores = score_in_parts(context, rollout.episodes, rows)
    assert scores.proxy == pytest.approx((plain.proxy + 3 * plain.parts["odd"]) / 4)
    assert torch.equal(scores.parts["odd"], plain.parts["odd"])
    assert torch.equal(scores.gold, plain.gold)
    free = score_in_parts(replace(context, floor_weight=None), rollout.episodes, rows)
    assert torch.equal(free.proxy, plain.proxy)


def test_without_a_floor_nothing_is_logged_of_one(tmp_path: Path) -> None:
    two: dict[str, Any] = {name: value for name, value in FLOOR.items() if name.startswith("reward")}
    _, rows, _ = run(tmp_path, **two)
    assert not any("objective/floor_weight" in row for row in rows.values())
