"""What adjusts beta, the entropy bonus and the size of a step: by hand, against plain models, and their laws."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers import trial_config
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.algorithms.mathematics.controllers import (
    adapted,
    adapted_bonus,
    hinge,
    lr_schedule,
    multiplier,
    out_of_reach,
    scheduled,
)
from pipeline.config.schedule import Control, Schedule
from pipeline.config.trial import TrialConfig

HELD: dict[str, Any] = {"entropy__control": "adaptive", "entropy__coef": 0.1, "entropy__target": 0.8}
kls, betas, targets = st.floats(-50, 500), st.floats(1e-4, 10), st.floats(0.1, 100)
fraction = st.floats(0, 1)


def cfg(**knobs: Any) -> TrialConfig:
    return trial_config(**{"kl__beta": 0.1, "train__batch_size": 512, "train__steps": 1_600, **knobs})


# --- adaptive beta -----------------------------------------------------------------------------------------


@given(beta=betas, target=targets, episodes=st.integers(1, 5_000))
def test_at_the_target_beta_rests(beta: float, target: float, episodes: int) -> None:
    assert adapted(beta, target, target, episodes, 10_000) == beta


@given(beta=betas, target=targets, kl=kls, episodes=st.integers(1, 5_000))
def test_a_step_of_beta_is_bounded_and_goes_the_right_way(beta: float, target: float, kl: float, episodes: int) -> None:
    after, most = adapted(beta, kl, target, episodes, 10_000), 0.2 * episodes / 10_000
    assert beta * (1 - most) * (1 - 1e-12) <= after <= beta * (1 + most) * (1 + 1e-12)
    assert after == pytest.approx(beta) or (after > beta) is (kl > target)


@given(beta=betas, target=targets, pair=st.tuples(kls, kls))
def test_more_drift_never_lowers_beta(beta: float, target: float, pair: tuple[float, float]) -> None:
    assert adapted(beta, min(pair), target, 512, 10_000) <= adapted(beta, max(pair), target, 512, 10_000)


def test_a_loop_with_adaptive_beta_settles_at_its_target() -> None:
    """A policy whose drift is 1 / beta nats: beta must find 1 / target from either side."""
    for beta in (0.01, 5.0):
        for _ in range(400):
            beta = adapted(beta, 1 / beta, 4.0, 256, 2_000)
        assert beta == pytest.approx(0.25, rel=1e-3)


def test_a_horizon_that_would_turn_beta_negative_is_refused() -> None:
    """At a horizon of a fifth of the batch, one rollout below target takes all of beta away; beyond, it would reward
    drift."""
    with pytest.raises(ValidationError, match=r"kl.horizon 12 .* 12\.8"):
        cfg(kl__control="adaptive", train__batch_size=64, kl__horizon=12)
    fine = cfg(kl__control="adaptive", train__batch_size=64, kl__horizon=13)
    assert adapted(0.1, 0.0, fine.kl.target, fine.train.batch_size, fine.kl.horizon) > 0
    cfg(train__batch_size=64, kl__horizon=12)  # nothing reads it


# --- adaptive entropy bonus --------------------------------------------------------------------------------


@given(coef=betas, target=targets, episodes=st.integers(1, 5_000))
def test_at_the_target_the_bonus_rests(coef: float, target: float, episodes: int) -> None:
    assert adapted_bonus(coef, target, target, episodes, 10_000) == coef


@given(coef=betas, target=targets, pair=st.tuples(st.floats(0, 50), st.floats(0, 50)))
def test_more_entropy_never_raises_the_bonus_and_a_step_is_bounded(
    coef: float, target: float, pair: tuple[float, float]
) -> None:
    low, high = (adapted_bonus(coef, entropy, target, 512, 10_000) for entropy in sorted(pair))
    most = 0.2 * 512 / 10_000
    assert coef * (1 - most) * (1 - 1e-12) <= high <= low <= coef * (1 + most) * (1 + 1e-12)
    assert low == pytest.approx(coef) or (low > coef) is (min(pair) < target)


def test_a_loop_with_an_adaptive_bonus_settles_at_its_target() -> None:
    """A policy whose entropy is the bonus's coefficient times 4 nats: it must find target / 4 from either side."""
    for coef in (0.01, 5.0):
        for _ in range(600):
            coef = adapted_bonus(coef, 4 * coef, 1.0, 256, 2_000)
        assert coef == pytest.approx(0.25, rel=1e-3)


def test_a_horizon_that_would_turn_the_bonus_negative_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"entropy.horizon 12 lets .* entropy.coef to 0 or below.* 12\.8"):
        cfg(**HELD, train__batch_size=64, entropy__horizon=12)
    fine = cfg(**HELD, train__batch_size=64, entropy__horizon=13)
    assert adapted_bonus(0.1, 1e9, fine.entropy.target, fine.train.batch_size, fine.entropy.horizon) > 0
    cfg(train__batch_size=64, entropy__horizon=12)  # nothing reads it


# --- schedules of beta and of the entropy bonus ------------------------------------------------------------

PIECEWISE: dict[str, Any] = {"kl__control": "piecewise", "kl__beta_stages": ((0.25, 0.05), (0.75, 0.0))}


def test_a_piecewise_schedule_changes_at_its_fraction_and_not_before() -> None:
    stages = cfg(**PIECEWISE)
    just_before = math.nextafter(0.25, 0)
    assert [scheduled(stages.kl.schedule, p) for p in (just_before, 0.25, math.nextafter(0.75, 0), 0.75)] == [
        0.1,
        0.05,
        0.05,
        0.0,
    ]
    assert scheduled(cfg(kl__control="piecewise", kl__beta_stages=((0.0, 0.7),)).kl.schedule, 0.0) == 0.7


@given(start=st.floats(0, 2), end=st.floats(0, 2), pair=st.tuples(fraction, fraction))
def test_a_schedule_goes_one_way_from_its_start_to_its_end(start: float, end: float, pair: tuple[float, float]) -> None:
    controls: tuple[Control, ...] = ("linear", "cosine")
    for control in controls:
        way_there = Schedule(control, start, end, ())
        early, late = (scheduled(way_there, p) for p in sorted(pair))
        way = 1 if end >= start else -1
        assert way * (late - early) >= -1e-12
        assert min(start, end) - 1e-12 <= early <= max(start, end) + 1e-12
        assert (scheduled(way_there, 0.0), scheduled(way_there, 1.0)) == (pytest.approx(start), pytest.approx(end))
        # Symmetric about the middle: what is gained by p is what is left at 1 - p.
        assert early + scheduled(way_there, 1 - min(pair)) == pytest.approx(start + end)


# --- the size of a step ------------------------------------------------------------------------------------


def test_the_hinge_by_hand() -> None:
    # Twice the threshold halves the step, ten times leaves a tenth; at it or below, and for a noisy negative KL, all of
    # it.
    assert [hinge(kl, 0.02) for kl in (-0.1, 0.0, 0.02, 0.04, 0.2)] == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.1])


@given(kl=st.floats(-1, 1e6), threshold=st.floats(1e-4, 10))
def test_the_hinge_holds_the_product_at_the_threshold(kl: float, threshold: float) -> None:
    factor = hinge(kl, threshold)
    assert 0 < factor <= 1
    assert factor * kl <= threshold * (1 + 1e-12)
    assert factor == 1 or factor * kl == pytest.approx(threshold)
    assert hinge(kl + 1, threshold) <= factor


def test_the_target_kl_stop_leaves_half_as_much_again() -> None:
    assert [out_of_reach(kl, 0.02) for kl in (0.0, 0.02, 0.03, 0.0301)] == [False, False, False, True]


def test_learning_rate_falls_to_zero_behind_the_last_step() -> None:
    knobs = cfg(train__steps=64)
    assert [lr_schedule(knobs, place) for place in (0, 16, 32, 48)] == [1.0, 0.75, 0.5, 0.25]
    assert lr_schedule(knobs, 63) == pytest.approx(1 / 64)  # the last step still moves
    assert {lr_schedule(cfg(optimiser__lr_schedule="constant"), place) for place in (0, 1_000, 1_599)} == {1.0}


# --- the weight of a part with a floor ---------------------------------------------------------------------


def test_the_weight_rises_below_the_floor_falls_above_it_and_stays_in_its_bounds() -> None:
    assert multiplier(0.5, mean=-2.0, floor=-1.0, lr=0.1, most=10.0) == pytest.approx(0.6)
    assert multiplier(0.5, mean=1.0, floor=-1.0, lr=0.1, most=10.0) == pytest.approx(0.3)
    assert multiplier(0.5, mean=-1.0, floor=-1.0, lr=0.1, most=10.0) == 0.5
    assert multiplier(0.1, mean=9.0, floor=0.0, lr=0.1, most=10.0) == 0.0
    assert multiplier(9.9, mean=-9.0, floor=0.0, lr=0.1, most=10.0) == 10.0


@given(st.floats(0, 10), st.floats(-5, 5), st.floats(-5, 5), st.floats(1e-3, 10))
def test_the_weight_moves_as_projected_ascent_does(weight: float, mean: float, floor: float, lr: float) -> None:
    moved = multiplier(weight, mean, floor, lr, 10.0)
    assert 0 <= moved <= 10
    assert (moved - weight) * (floor - mean) >= 0


def test_the_weight_solves_a_problem_whose_answer_is_known() -> None:
    """max 2 h - h²/2 over h, with harm -h at least -1: h = 1 and λ = 1. Each round h answers the weight: 2 - λ."""
    weight = 0.0
    for _ in range(400):
        weight = multiplier(weight, mean=-(2.0 - weight), floor=-1.0, lr=0.05, most=10.0)
    assert weight == pytest.approx(1.0, abs=1e-6)
