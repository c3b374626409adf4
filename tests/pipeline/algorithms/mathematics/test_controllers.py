"""What adjusts beta, the entropy bonus and the size of a step: by hand, and their laws."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers import trial_config
from pydantic import ValidationError

from pipeline.algorithms.kl_settings import KlConfig
from pipeline.algorithms.mathematics.controllers import (
    adapted,
    doubled_or_halved,
    elapsed,
    hinge,
    lr_schedule,
    multiplier,
    scheduled,
)

HELD: dict[str, Any] = {"entropy__control": "adaptive", "entropy__coef": 0.1, "entropy__adaptive__target": 0.8}

# --- adaptive ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "knobs"),
    [("kl.adaptive.horizon", {"kl__control": "adaptive"}), ("entropy.adaptive.horizon", HELD)],
    ids=["beta", "bonus"],
)
def test_a_horizon_that_would_turn_it_negative_is_refused(key: str, knobs: dict[str, Any]) -> None:
    """At a horizon of a fifth of the batch, one rollout off target takes all of it away."""
    of = {"train__batch_size": 64, "train__steps": 1_600}
    name = key.replace(".", "__")
    with pytest.raises(ValidationError, match=rf"{key} 12 .* 12\.8"):
        trial_config(**of, **knobs, **{name: 12})
    trial_config(**of, **knobs, **{name: 13})
    trial_config(**of, **{name: 12})  # nothing reads it
    assert adapted(0.1, -1.0, 64, 13) > 0


# --- schedules ---------------------------------------------------------------------------------------------


def test_a_piecewise_schedule_changes_at_its_fraction_and_not_before() -> None:
    stages = KlConfig(control="piecewise", beta=0.1, stages=((0.25, 0.05), (0.75, 0.0)))
    places = (math.nextafter(0.25, 0), 0.25, math.nextafter(0.75, 0), 0.75)
    assert [scheduled(stages, p) for p in places] == [0.1, 0.05, 0.05, 0.0]
    assert scheduled(KlConfig(control="piecewise", beta=0.1, stages=((0.0, 0.7),)), 0.0) == 0.7


def test_the_first_update_has_the_start_and_the_last_one_the_end() -> None:
    cfg = trial_config(train__steps=64, train__num_epochs=2, train__num_mini_batches=4)
    assert [elapsed(cfg, update) for update in (0, 7)] == [0.0, 1.0]
    assert elapsed(trial_config(train__steps=8, train__num_epochs=2, train__num_mini_batches=4), 0) == 0.0


# --- the size of a step ------------------------------------------------------------------------------------


def test_the_hinge_holds_the_product_at_the_threshold() -> None:
    # Twice the threshold halves the step, ten times leaves a tenth; at it or below, and for a noisy negative KL, all of
    # it.
    assert [hinge(kl, 0.02) for kl in (-0.1, 0.0, 0.02, 0.04, 0.2)] == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.1])


def test_learning_rate_falls_to_zero_behind_the_last_step() -> None:
    knobs = trial_config(train__steps=64)
    assert [lr_schedule(knobs, place) for place in (0, 16, 32, 48, 63)] == [1.0, 0.75, 0.5, 0.25, 1 / 64]
    assert lr_schedule(trial_config(optimiser__lr_schedule="constant"), 63) == 1.0


def test_the_penalty_on_the_old_policy_doubles_halves_and_rests() -> None:
    """Target 0.01: beyond 0.015 twice, below 0.00667 half, between and at the bounds the same."""
    bounds = (1.5 * 0.01, 0.01 / 1.5)
    found = [doubled_or_halved(3.0, kl, 0.01) for kl in (0.0151, bounds[0], 0.01, bounds[1], 0.0066, 0.0, math.nan)]
    assert found == [6.0, 3.0, 3.0, 3.0, 1.5, 1.5, 3.0]


# --- the weight of a part with a floor ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "mean", "moved"), [(0.5, -2.0, 0.6), (0.5, 1.0, 0.3), (0.5, -1.0, 0.5), (0.1, 9.0, 0), (9.9, -9.0, 10)]
)
def test_the_weight_rises_below_the_floor_falls_above_it_and_stays_in_its_bounds(
    weight: float, mean: float, moved: float
) -> None:
    assert multiplier(weight, mean, floor=-1.0, lr=0.1, most=10.0) == pytest.approx(moved)
