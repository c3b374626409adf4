"""Controllers of the step size, and of the weights of penalties, by hand. Coefficients: test_parts.py."""

from __future__ import annotations

import math

import pytest
from helpers import trial_config

from pipeline.algorithms.mathematics.controllers import (
    doubled_or_halved,
    elapsed,
    hinge,
    lr_schedule,
    multiplier,
)


def test_the_hinge_holds_the_product_at_the_threshold() -> None:
    # Twice the threshold halves the step, ten times leaves a tenth; at it or below, and for a noisy negative KL, all of
    # it.
    assert [hinge(kl, 0.02) for kl in (-0.1, 0.0, 0.02, 0.04, 0.2)] == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.1])


def test_a_trial_of_one_update_stays_at_the_start_of_its_schedule() -> None:
    assert elapsed(trial_config(train__steps=8, train__num_epochs=2, train__num_mini_batches=4), 0) == 0.0


def test_learning_rate_falls_to_zero_behind_the_last_step() -> None:
    knobs = trial_config(train__steps=64)
    assert [lr_schedule(knobs, place) for place in (0, 16, 32, 48, 63)] == [1.0, 0.75, 0.5, 0.25, 1 / 64]
    assert lr_schedule(trial_config(optimiser__lr_schedule="constant"), 63) == 1.0


def test_the_penalty_on_the_old_policy_doubles_halves_and_rests() -> None:
    """Target 0.01: beyond 0.015 twice, below 0.00667 half, between and at the bounds the same."""
    bounds = (1.5 * 0.01, 0.01 / 1.5)
    found = [doubled_or_halved(3.0, kl, 0.01) for kl in (0.0151, bounds[0], 0.01, bounds[1], 0.0066, 0.0, math.nan)]
    assert found == [6.0, 3.0, 3.0, 3.0, 1.5, 1.5, 3.0]


@pytest.mark.parametrize(
    ("weight", "mean", "moved"), [(0.5, -2.0, 0.6), (0.5, 1.0, 0.3), (0.5, -1.0, 0.5), (0.1, 9.0, 0), (9.9, -9.0, 10)]
)
def test_the_weight_rises_below_the_floor_falls_above_it_and_stays_in_its_bounds(
    weight: float, mean: float, moved: float
) -> None:
    assert multiplier(weight, mean, floor=-1.0, lr=0.1, most=10.0) == pytest.approx(moved)
