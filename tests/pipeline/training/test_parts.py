"""The parts, each alone: by hand, against plain models, and over a checkpoint."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import trial_config
from hypothesis import given
from hypothesis import strategies as st
from tinytrial import FLOOR

from pipeline.algorithms.mathematics.controllers import doubled_or_halved
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Step, Terms, TokenLosses
from pipeline.training.parts import PARTS, parts_of
from pipeline.training.parts.entropy_bonus import EntropyBonus
from pipeline.training.parts.guard import Guard
from pipeline.training.parts.kl_coefficient import KlCoefficient
from pipeline.training.parts.old_kl import LIMIT, OldKl

ENTROPY, KL = "objective/entropy_per_token", "objective/kl"


def cfg(**knobs: Any) -> TrialConfig:
    return trial_config(**{"kl__beta": 0.1, "train__batch_size": 512, "train__steps": 1_600, **knobs})


def adaptive(section: str, **knobs: Any) -> TrialConfig:
    return cfg(**{f"{section}__{name}": value for name, value in {"control": "adaptive", **knobs}.items()})


# --- coefficients ------------------------------------------------------------------------------------------


def test_adaptive_beta_by_hand() -> None:
    part = KlCoefficient(adaptive("kl", target=6.0, horizon=10_000))
    part.after({KL: 6.6}, True)  # 10 % above: 1 + 0.1 x 512 / 10,000 = 1.00512
    assert part.coef == pytest.approx(0.1 * 1.00512)
    part.after({KL: 600.0}, True)  # a hundred times: the error counts as 0.2, so 1.01024
    assert part.coef == pytest.approx(0.1 * 1.00512 * 1.01024)
    part.rollout(3, Terms())  # no schedule interferes
    part.after({KL: 0.0}, True)  # nothing: -0.2, so 0.98976
    assert part.coef == pytest.approx(0.1 * 1.00512 * 1.01024 * 0.98976)
    part.after({KL: 600.0}, False)
    assert part.coef == pytest.approx(0.1 * 1.00512 * 1.01024 * 0.98976)


def test_an_adaptive_bonus_by_hand() -> None:
    part = EntropyBonus(adaptive("entropy", coef=0.1, target=0.8, horizon=10_000))
    part.after({ENTROPY: 0.72}, True)  # 10 % below its target: 1 + 0.1 x 512 / 10,000 = 1.00512
    assert part.coef == pytest.approx(0.1 * 1.00512)
    part.after({ENTROPY: 0.0}, True)  # collapsed: the error counts as 0.2, so 1.01024
    part.rollout(3, Terms())  # no schedule interferes
    part.after({ENTROPY: 2.4}, True)  # three times the target: -0.2, so 0.98976
    assert part.coef == pytest.approx(0.1 * 1.00512 * 1.01024 * 0.98976)
    part.after({ENTROPY: 0.0}, False)
    assert part.coef == pytest.approx(0.1 * 1.00512 * 1.01024 * 0.98976)


@pytest.mark.parametrize(
    ("section", "end", "stages"), [("kl", "beta_end", "beta_stages"), ("entropy", "coef_end", "coef_stages")]
)
@pytest.mark.parametrize(
    ("control", "expected"),
    [
        # From 0.1 to 0.02 at 0, 1/4, 1/2, 3/4 and 1 of the way. cos(pi/4) = 0.70711: 0.02 + 0.08 x (1 + 0.70711) / 2 =
        # 0.0882843.
        ("linear", [0.1, 0.08, 0.06, 0.04, 0.02]),
        ("cosine", [0.1, 0.0882842712, 0.06, 0.0317157288, 0.02]),
        ("piecewise", [0.1, 0.05, 0.05, 0.0, 0.0]),
        ("fixed", [0.1] * 5),
    ],
)
def test_schedules_by_hand(section: str, end: str, stages: str, control: str, expected: list[float]) -> None:
    knobs: dict[str, Any] = {"control": control, "beta" if section == "kl" else "coef": 0.1}
    knobs |= {end: 0.02} if control in ("linear", "cosine") else {}
    knobs |= {stages: ((0.25, 0.05), (0.75, 0.0))} if control == "piecewise" else {}
    own = {f"{section}__{name}": value for name, value in knobs.items()}
    part = parts_of(cfg(**{"kl__beta": 0.7, **own}, train__steps=16 * 101))[section]
    reached = []
    for update in (0, 25, 50, 75, 100):
        terms = Terms()
        part.rollout(update, terms)
        part.after({KL: 1e9, ENTROPY: 0.0}, True)  # a schedule does not listen
        reached.append(terms.kl_coef if section == "kl" else terms.metrics["objective/ent_coef"])
    assert reached == pytest.approx(expected)


def test_one_update_alone_is_at_the_start_of_its_schedule() -> None:
    config = cfg(kl__control="linear", kl__beta_end=0.02, train__steps=16)
    assert (config.train.updates, parts_of(config).rollout(0).kl_coef) == (1, 0.1)


def test_the_coefficient_of_the_old_kl_never_leaves_floating_point() -> None:
    for kl, end in ((0.0, 0.5 / LIMIT), (1.0, 0.5 * LIMIT)):
        part = OldKl(cfg(algorithm__old_kl_coef=0.5, algorithm__old_kl_target=0.01))
        for _ in range(30):
            part.after({"policy/old_kl": kl}, True)
        assert part.coef == end
    part.after({"policy/old_kl": 0.0}, True)
    assert part.coef == doubled_or_halved(0.5 * LIMIT, 0.0, 0.01)


# --- the size of a step ------------------------------------------------------------------------------------


def guard(**knobs: Any) -> Guard:
    given = {"guard_kl": 0.015, "guard_factor": 0.5, **knobs}
    return Guard(cfg(optimiser__guard=True, **{f"optimiser__{name}": value for name, value in given.items()}))


def test_the_guard_cuts_for_its_time_and_no_deeper() -> None:
    part = guard(guard_steps=3)
    factors = []

    def see(kl: float, steps: int) -> None:
        part.after({"objective/kl_per_token": kl}, False)
        for _ in range(steps):
            factors.append(part.step({}).factor)
            part.stepped()

    see(0.015, 1)  # at the threshold is not above it
    see(0.016, 2)
    see(0.5, 4)  # again, while cut: the count starts anew
    assert factors == [1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0]


@given(events=st.lists(st.one_of(st.none(), st.floats(0, 0.03)), max_size=40), hold=st.integers(1, 6))
def test_the_guard_against_a_plain_model(events: list[float | None], hold: int) -> None:
    """None is a gradient step, a number a rollout: a step is cut if fewer than `hold` steps lie between it and an
    alarm."""
    part, since_alarm = guard(guard_steps=hold), hold
    for event in events:
        if event is None:
            assert part.step({}).factor == (0.5 if since_alarm < hold else 1.0)
            part.stepped()
            since_alarm += 1
        else:
            part.after({"objective/kl_per_token": event}, True)
            since_alarm = 0 if event > 0.015 else since_alarm


def test_factors_are_multiplied_onto_the_schedule_in_order() -> None:
    parts = parts_of(cfg(optimiser__guard=True, optimiser__guard_kl=0.1, optimiser__guard_factor=0.3, kl__hinge=0.02))
    parts.after({"objective/kl_per_token": 1.0}, True)
    step = parts.step({"policy/kl_ref_per_token": 0.14}, 0.7)
    assert step == Step(0.7 * 0.3 * (0.02 / 0.14), False, {"policy/lr_factor": 0.3, "policy/kl_hinge": 0.02 / 0.14})


# --- all ---------------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    **FLOOR, "kl__control": "adaptive", "entropy__control": "adaptive", "entropy__coef": 0.1, "optimiser__guard": True,
    "kl__hinge": 0.1, "algorithm__trust_region": "kl_penalty", "algorithm__target_kl": 0.1,
    "critic__warmup_steps": 8, "train__stop": ({"metric": "policy/entropy", "op": "<", "threshold": 0.1},),
}  # fmt: skip
SEEN = {KL: 9.0, "objective/kl_per_token": 9.0, ENTROPY: 0.1, "reward/odd": -2.0, "policy/old_kl": 9.0}


def test_a_plain_trial_has_a_kl_coefficient_alone() -> None:
    assert [part.name for part in parts_of(cfg())] == ["kl"]


def test_what_parts_keep_survives_a_checkpoint() -> None:
    one, other = parts_of(cfg(**EVERYTHING)), parts_of(cfg(**EVERYTHING))
    assert len([*one]) == len(PARTS)
    fresh = other.state()
    one.recorded(16, {"policy/entropy": 0.5})
    one.after({**SEEN, "policy/update_steps": 16.0}, True)
    moved = one.state()
    assert {name for name in moved if moved[name] != fresh[name]} == {
        "kl",
        "entropy",
        "floor",
        "guard",
        "old_kl",
        "stop",
    }
    other.load(moved)
    assert other.state() == moved


def test_a_policy_that_was_held_still_moves_the_guard_alone() -> None:
    parts = parts_of(cfg(**EVERYTHING))
    before = parts.state()
    parts.after({**SEEN, "policy/update_steps": 16.0}, False)
    after = parts.state()
    assert {name for name in after if after[name] != before[name]} == {"guard"}


def test_terms_of_the_loss_have_their_sign_and_the_weight_of_a_token() -> None:
    """The bonus lowers the loss by a token's entropy. The penalty is k3 at a ratio of 1/2, which is 1/2 - 1 + log 2."""
    old, ones = torch.zeros(2), torch.ones(2)
    tokens = TokenLosses(old, old, old - math.log(2), lambda: ones, lambda losses: 3 * losses)
    bonus, penalty = EntropyBonus(cfg(entropy__coef=0.1)), OldKl(cfg(algorithm__old_kl_coef=0.1))
    assert bonus.loss(tokens).tolist() == pytest.approx([-0.3] * 2)
    assert penalty.loss(tokens).tolist() == pytest.approx([0.3 * (math.log(2) - 0.5)] * 2)


@pytest.mark.parametrize("kind", PARTS)
def test_every_part_has_a_name_of_its_own(kind: type[Part]) -> None:
    assert [one.name for one in PARTS].count(kind.name) == 1
