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
    EntropyController,
    FloorController,
    KlController,
    LrGuard,
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

kls, betas, targets = st.floats(-50, 500), st.floats(1e-4, 10), st.floats(0.1, 100)
fraction = st.floats(0, 1)


def cfg(**knobs: Any) -> TrialConfig:
    return trial_config(**{"kl__beta": 0.1, "train__batch_size": 512, "train__steps": 1_600, **knobs})


# --- adaptive beta -----------------------------------------------------------------------------------------


def test_adaptive_beta_by_hand() -> None:
    controller = KlController.of(cfg(kl__control="adaptive", kl__target=6.0, kl__horizon=10_000))
    controller.observe(6.6)  # 10 % above: 1 + 0.1 x 512 / 10,000 = 1.00512
    assert controller.kl_coef == pytest.approx(0.1 * 1.00512)
    controller.observe(600.0)  # a hundred times: the error counts as 0.2, so 1.01024
    assert controller.kl_coef == pytest.approx(0.1 * 1.00512 * 1.01024)
    controller.start(3)  # no schedule interferes
    controller.observe(0.0)  # nothing: -0.2, so 0.98976
    assert controller.kl_coef == pytest.approx(0.1 * 1.00512 * 1.01024 * 0.98976)


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

HELD: dict[str, Any] = {"entropy__control": "adaptive", "entropy__coef": 0.1, "entropy__target": 0.8}


def test_an_adaptive_bonus_by_hand() -> None:
    controller = EntropyController.of(cfg(**HELD, entropy__horizon=10_000))
    controller.observe(0.72)  # 10 % below its target: 1 + 0.1 x 512 / 10,000 = 1.00512
    assert controller.coef == pytest.approx(0.1 * 1.00512)
    controller.observe(0.0)  # collapsed: the error counts as 0.2, so 1.01024
    assert controller.coef == pytest.approx(0.1 * 1.00512 * 1.01024)
    controller.start(3)  # no schedule interferes
    controller.observe(2.4)  # three times the target: -0.2, so 0.98976
    assert controller.coef == pytest.approx(0.1 * 1.00512 * 1.01024 * 0.98976)


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

LINEAR: dict[str, Any] = {"kl__control": "linear", "kl__beta_end": 0.02}
COSINE: dict[str, Any] = {"kl__control": "cosine", "kl__beta_end": 0.02}
PIECEWISE: dict[str, Any] = {"kl__control": "piecewise", "kl__beta_stages": ((0.25, 0.05), (0.75, 0.0))}


SCHEDULES = pytest.mark.parametrize(
    ("control", "expected"),
    [
        # From 0.1 to 0.02 at 0, 1/4, 1/2, 3/4 and 1 of the way. cos(pi/4) = 0.70711: 0.02 + 0.08 x (1 + 0.70711) / 2 =
        # 0.0882843.
        (LINEAR, [0.1, 0.08, 0.06, 0.04, 0.02]),
        (COSINE, [0.1, 0.0882842712, 0.06, 0.0317157288, 0.02]),
        (PIECEWISE, [0.1, 0.05, 0.05, 0.0, 0.0]),
        ({}, [0.1] * 5),
    ],
)


@SCHEDULES
def test_schedules_of_beta_by_hand(control: dict[str, Any], expected: list[float]) -> None:
    controller = KlController.of(cfg(**control, train__steps=16 * 101))
    reached = []
    for update in (0, 25, 50, 75, 100):
        controller.start(update)
        controller.observe(1e9)  # a schedule does not listen
        reached.append(controller.kl_coef)
    assert reached == pytest.approx(expected)


@SCHEDULES
def test_schedules_of_the_bonus_by_hand(control: dict[str, Any], expected: list[float]) -> None:
    names = {
        "kl__control": "entropy__control",
        "kl__beta_end": "entropy__coef_end",
        "kl__beta_stages": "entropy__coef_stages",
    }
    own = {names[key]: value for key, value in control.items()}
    controller = EntropyController.of(cfg(**own, entropy__coef=0.1, kl__beta=0.7, train__steps=16 * 101))
    reached = []
    for update in (0, 25, 50, 75, 100):
        controller.start(update)
        controller.observe(0.0)  # a schedule does not listen
        reached.append(controller.coef)
    assert reached == pytest.approx(expected)


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


def test_one_update_alone_is_at_the_start_of_its_schedule() -> None:
    controller = KlController.of(cfg(**LINEAR, train__steps=16))
    controller.start(0)
    assert (controller.cfg.train.updates, controller.kl_coef) == (1, 0.1)


# --- the size of a step ------------------------------------------------------------------------------------


def test_the_hinge_by_hand() -> None:
    # Twice the threshold halves the step, ten times leaves a tenth; at it or below, and for a noisy negative KL, all of
    # it.
    assert [hinge(kl, 0.02) for kl in (-0.1, 0.0, 0.02, 0.04, 0.2)] == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.1])
    assert hinge(100.0, None) == 1.0


@given(kl=st.floats(-1, 1e6), threshold=st.floats(1e-4, 10))
def test_the_hinge_holds_the_product_at_the_threshold(kl: float, threshold: float) -> None:
    factor = hinge(kl, threshold)
    assert 0 < factor <= 1
    assert factor * kl <= threshold * (1 + 1e-12)
    assert factor == 1 or factor * kl == pytest.approx(threshold)
    assert hinge(kl + 1, threshold) <= factor


def test_the_target_kl_stop_leaves_half_as_much_again() -> None:
    assert [out_of_reach(kl, 0.02) for kl in (0.0, 0.02, 0.03, 0.0301)] == [False, False, False, True]
    assert not out_of_reach(1e9, None)


def test_learning_rate_falls_to_zero_behind_the_last_step() -> None:
    knobs = cfg(train__steps=64)
    assert [lr_schedule(knobs, place) for place in (0, 16, 32, 48)] == [1.0, 0.75, 0.5, 0.25]
    assert lr_schedule(knobs, 63) == pytest.approx(1 / 64)  # the last step still moves
    assert {lr_schedule(cfg(optimiser__lr_schedule="constant"), place) for place in (0, 1_000, 1_599)} == {1.0}


def test_the_guard_cuts_for_its_time_and_no_deeper() -> None:
    guard = LrGuard(enabled=True, threshold=0.015, cut=0.5, hold=3)
    guard.observe(0.015)
    assert guard.factor == 1.0  # at the threshold is not above it
    guard.observe(0.016)
    factors = []
    for _ in range(2):
        factors.append(guard.factor)
        guard.step()
    guard.observe(0.5)  # again, while cut: the count starts anew
    for _ in range(4):
        factors.append(guard.factor)
        guard.step()
    assert factors == [0.5, 0.5, 0.5, 0.5, 0.5, 1.0]


@given(
    events=st.lists(st.one_of(st.none(), st.floats(0, 0.03)), max_size=40),
    hold=st.integers(1, 6),
    enabled=st.booleans(),
)
def test_the_guard_against_a_plain_model(events: list[float | None], hold: int, enabled: bool) -> None:
    """None is a gradient step, a number a rollout: a step is cut if fewer than `hold` steps lie between it and an
    alarm."""
    guard = LrGuard(enabled=enabled, threshold=0.015, cut=0.5, hold=hold)
    since_alarm = hold
    for event in events:
        if event is None:
            assert guard.factor == (0.5 if since_alarm < hold else 1.0)
            guard.step()
            since_alarm += 1
        else:
            guard.observe(event)
            since_alarm = 0 if enabled and event > 0.015 else since_alarm
        assert 0 <= guard.remaining <= hold


# --- all ---------------------------------------------------------------------------------------------------


def test_controllers_survive_a_checkpoint() -> None:
    knobs = cfg(kl__control="adaptive", **HELD)
    kl, guard, bonus = KlController(knobs, 0.3), LrGuard(True, 0.1, 0.5, 9, remaining=4), EntropyController(knobs, 0.4)
    kl2, guard2, bonus2 = KlController.of(knobs), LrGuard(True, 0.1, 0.5, 9), EntropyController.of(knobs)
    kl2.load(kl.state())
    guard2.load(guard.state())
    bonus2.load(bonus.state())
    assert (kl2, guard2, bonus2) == (kl, guard, bonus)


def test_the_configuration_reaches_the_guard() -> None:
    assert LrGuard.of(cfg(optimiser__guard=True)) == LrGuard(True, 0.015, 0.5, 100)
    knobs = {"optimiser__guard_kl": 0.3, "optimiser__guard_factor": 0.1, "optimiser__guard_steps": 7}
    assert LrGuard.of(cfg(**knobs)) == LrGuard(False, 0.3, 0.1, 7)


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


def test_without_a_floor_there_is_no_weight() -> None:
    assert FloorController.of(cfg()).weight is None
