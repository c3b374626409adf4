from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from hypothesis import given
from hypothesis import strategies as st
from tinytrial import CONTROLS, FLOOR, preset, run, score_in_two, trainer

from pipeline.algorithms.kinds import PARTS
from pipeline.config.effects import content_of
from pipeline.config.train import StopRule
from pipeline.config.trial import TrialConfig
from pipeline.stopping import Watcher, counted, first_break
from pipeline.training.judging import score_rows
from pipeline.training.part import Part, Terms, parts_of
from pipeline.training.parts.brakes import LIMIT
from pipeline.training.trainer import Trainer
from pipeline.training.update import lr_schedule

ENTROPY, KL = "objective/entropy_per_token", "objective/kl"


def cfg(**knobs: Any) -> TrialConfig:
    return trial_config(**{"kl__beta": 0.1, "train__batch_size": 512, "train__steps": 1_600, **knobs})


def learned(one: Trainer, **metrics: float) -> Trainer:
    """A trial after an update whose rollout had these metrics."""
    rollout = one._rollout()
    changed = {name.replace("__", "/"): value for name, value in metrics.items()}
    one._learn(replace(rollout, metrics={**rollout.metrics, **changed}))
    return one


def series(rows: dict[int, dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows.values() if name in row]


@pytest.mark.parametrize(
    ("name", "start", "knobs", "seen"),
    [
        ("kl", "beta", {"adaptive__target": 6.0}, [6.6, 600.0, 0.0]),  # 10 % above; a hundred times; nothing
        ("entropy", "coef", {"adaptive__target": 0.8}, [0.72, 0.0, 2.4]),  # 10 % below; collapsed; three times
    ],
)
def test_an_adaptive_coefficient_by_hand(name: str, start: str, knobs: dict[str, float], seen: list[float]) -> None:
    """Errors of 0.1, 0.2 at most and -0.2 at most, times 512 episodes of 10,000."""
    knobs = {"control": "adaptive", start: 0.1, "adaptive__horizon": 10_000, **knobs}  # type: ignore[dict-item]
    part: Any = parts_of(cfg(**{f"{name}__{key}": value for key, value in knobs.items()}))[name]
    wanted = 0.1
    for value, factor in zip(seen, (1.00512, 1.01024, 0.98976), strict=True):
        part.after({KL: value, ENTROPY: value}, True)
        part.rollout(3, Terms())  # no schedule interferes
        wanted *= factor
        assert part.coef == pytest.approx(wanted)
    part.after({KL: 600.0, ENTROPY: 0.0}, False)  # the policy was held still
    assert part.coef == pytest.approx(wanted)


@pytest.mark.parametrize("section", ["kl", "entropy"])
@pytest.mark.parametrize(
    ("control", "expected"),
    [
        # From 0.1 to 0.02 at 0, 1/4, 1/2, 3/4 and 1 of the way. cos(pi/4) = 0.70711: 0.02 + 0.08 x (1 + 0.70711) / 2 =
        # 0.0882843.
        ("linear", [0.1, 0.08, 0.06, 0.04, 0.02]),
        ("cosine", [0.1, 0.0882842712, 0.06, 0.0317157288, 0.02]),
        ("fixed", [0.1] * 5),
    ],
)
def test_schedules_by_hand(section: str, control: str, expected: list[float]) -> None:
    knobs: dict[str, Any] = {"control": control, "beta" if section == "kl" else "coef": 0.1}
    knobs |= {"end": 0.02} if control in ("linear", "cosine") else {}
    own = {f"{section}__{name}": value for name, value in knobs.items()}
    part: Any = parts_of(cfg(**{"kl__beta": 0.7, **own}, train__steps=16 * 101))[section]
    reached, terms = [], Terms()
    for update in (0, 25, 50, 75, 100):
        part.rollout(update, terms)
        part.after({KL: 1e9, ENTROPY: 0.0}, True)  # a schedule does not listen
        reached.append(part.coef)
    assert reached == pytest.approx(expected)
    assert terms.kl_coef == (part.coef if section == "kl" else 0.0)


def test_the_hinge_holds_the_product_at_the_threshold() -> None:
    # Twice the threshold halves the step, ten times leaves a tenth; at it or below, and for a noisy negative KL, all of
    # it.
    part, seen = parts_of(cfg(kl__hinge=0.02))["hinge"], (-0.1, 0.0, 0.02, 0.04, 0.2)
    found = [part.step({"policy/kl_ref_per_token": kl}).factor for kl in seen]
    assert found == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.1])


def test_a_trial_of_one_update_stays_at_the_start_of_its_schedule() -> None:
    part: Any = parts_of(cfg(kl__control="linear", train__steps=16))["kl"]
    part.rollout(0, Terms())
    assert part.coef == 0.1


def test_learning_rate_falls_to_zero_behind_the_last_step() -> None:
    knobs = trial_config(train__steps=64)
    assert [lr_schedule(knobs, place) for place in (0, 16, 32, 48, 63)] == [1.0, 0.75, 0.5, 0.25, 1 / 64]
    assert lr_schedule(trial_config(optimiser__lr_schedule="constant"), 63) == 1.0


def test_the_penalty_on_the_old_policy_doubles_halves_and_rests_and_never_leaves_floating_point() -> None:
    """Target 0.01: beyond 0.015 twice, below 0.00667 half, between and at the bounds the same."""
    part: Any = parts_of(cfg(algorithm__trust_region="kl_penalty"))["old_kl"]
    seen = {0.0151: 6.0, 1.5 * 0.01: 3.0, 0.01: 3.0, 0.01 / 1.5: 3.0, 0.0066: 1.5, 0.0: 1.5, math.nan: 3.0}
    for kl, coef in seen.items():
        part.coef = 3.0
        part.after({"policy/old_kl": kl}, True)
        assert part.coef == coef
    for kl, end in ((0.0, 1 / LIMIT), (1.0, LIMIT)):
        for _ in range(50):
            part.after({"policy/old_kl": kl}, True)
        assert part.coef == end


def test_the_weight_rises_below_the_floor_falls_above_it_and_stays_in_its_bounds() -> None:
    """By 0.05 for each standard deviation."""
    part: Any = parts_of(cfg(**FLOOR, floor__at=-1.0))["floor"]
    for weight, mean, moved in ((0.5, -2.0, 0.55), (0.5, 1.0, 0.4), (0.5, -1.0, 0.5), (0.1, 9.0, 0), (9.9, -9.0, 10)):
        part.weight = weight
        part.after({"reward/odd": mean}, True)
        assert part.weight == pytest.approx(moved)


@given(st.lists(st.one_of(st.integers(1, 150), st.sampled_from([0.0, 0.015, 0.016, 0.5])), max_size=12))
def test_the_guard_against_a_plain_model(events: list[int | float]) -> None:
    """A whole number is that many gradient steps, any other a rollout: a step is cut if fewer than 100 steps lie
    between it and an alarm, which is above the threshold of 0.015."""
    part, since_alarm = parts_of(cfg(optimiser__guard=True, optimiser__guard_kl=0.015))["guard"], 100
    for event in events:
        if isinstance(event, int):
            for _ in range(event):
                assert part.step({}).factor == (0.5 if since_alarm < 100 else 1.0)
                part.stepped()
                since_alarm += 1
        else:
            part.after({"objective/kl_per_token": event}, True)
            since_alarm = 0 if event > 0.015 else since_alarm


@pytest.mark.parametrize(("kind", "braked"), [("shared", [1, 1]), ("separate", [1, 0, 0])])
def test_guard_and_hinge_multiply_onto_the_schedule_and_brake_no_separate_critic(
    tmp_path: Path, kind: str, braked: list[int]
) -> None:
    one = trainer(tmp_path, critic__kind=kind, optimiser__guard=True, kl__hinge=0.01)
    guard: Any = one.parts["guard"]
    guard.after({"objective/kl_per_token": 1.0}, True)
    for parameter in one.actor.parameters():
        parameter.grad = torch.ones_like(parameter)
    planned = lr_schedule(one.cfg, 6)
    steps = [part.step({"policy/kl_ref_per_token": 0.04}) for part in one.parts.values()]
    metrics = one.learner.apply(6, planned, steps)
    assert (metrics["policy/lr_factor"], metrics["policy/kl_hinge"]) == (0.5, 0.25)
    assert metrics["policy/lr"] == pytest.approx(1e-2 * (1 - 6 / 24) / 8)
    assert guard.remaining == 99
    rates = [group["lr"] / group["base_lr"] for group in one.learner.steps.optimiser.param_groups]
    assert rates == pytest.approx([(1 - 6 / 24) * (1 / 8 if held else 1) for held in braked])


EVERYTHING: dict[str, Any] = {
    **FLOOR, "kl__control": "adaptive", "entropy__control": "adaptive", "entropy__coef": 0.1, "optimiser__guard": True,
    "kl__hinge": 0.1, "algorithm__trust_region": "kl_penalty", "algorithm__target_kl": 0.1,
    "rollout__every": 2, "critic__warmup_steps": 8,
    "train__stop": ({"metric": "policy/entropy", "op": "<", "threshold": 0.1},),
}  # fmt: skip
SEEN = {KL: 9.0, "objective/kl_per_token": 9.0, ENTROPY: 0.1, "reward/odd": -2.0, "policy/old_kl": 9.0}


def states(parts: dict[str, Part[Any]]) -> dict[str, Any]:
    return {name: part.state() for name, part in parts.items()}


ANCHOR = """
from pipeline.config.base import PartSettings
from pipeline.training.part import Part
class AnchorConfig(PartSettings):
    weight: float = 0.0
    acts = property(lambda self: self.weight > 0)
class Anchor(Part[AnchorConfig]): pass
"""
PROGRAM = """
from pipeline.algorithms.kinds import PARTS, PartKind
PARTS["anchor"] = PartKind("anchor:Anchor", "anchor:AnchorConfig")
from pipeline.config.loading import load_config
from pipeline.training.part import parts_of
print([sorted(parts_of(load_config("smoke", {"anchor.weight": weight}))) for weight in (0.0, 0.5)])
"""


def test_a_part_stands_in_one_file_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "anchor.py").write_text(ANCHOR)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[['kl'], ['anchor', 'kl']]", done.stderr


def test_a_part_that_is_not_asked_for_is_neither_made_nor_part_of_a_key() -> None:
    assert [*parts_of(cfg())] == ["kl"]
    assert [*parts_of(cfg(**EVERYTHING))] == [*PARTS]
    assert not content_of(cfg(), cfg()).keys() & {"entropy", "floor", "rollout"}
    assert cfg(floor__weight=0.5, entropy__end=0.1).digest() == cfg().digest()
    assert cfg(**FLOOR, floor__weight=0.5).digest() != cfg(**FLOOR).digest()


@pytest.mark.parametrize(
    ("moved", "changed"), [(True, {"kl", "entropy", "floor", "guard", "old_kl", "stop"}), (False, {"guard", "stop"})]
)
def test_what_parts_keep_survives_a_checkpoint_and_a_held_policy_moves_the_guard_alone(
    moved: bool, changed: set[str]
) -> None:
    one, other = parts_of(cfg(**EVERYTHING)), parts_of(cfg(**EVERYTHING))
    fresh = states(other)
    for part in one.values():
        part.recorded(16, {"policy/entropy": 0.5})
        part.after({**SEEN, "policy/update_steps": 16.0}, moved)
    found = states(one)
    assert {name for name in found if found[name] != fresh[name]} == changed
    for name, part in other.items():
        part.load(found[name])
    assert states(other) == found


def test_parts_are_fed_the_numbers_that_their_thresholds_and_targets_are_of(tmp_path: Path) -> None:
    """Targets of 6 nats per sequence and 2 nats per token, horizons of 20 episodes, of which a rollout has 8; the
    guard's threshold is 0.015 nats per token."""
    adaptive = {"control": "adaptive", "adaptive__horizon": 20.0}
    knobs = {f"{section}__{key}": value for section in ("kl", "entropy") for key, value in adaptive.items()}
    knobs |= {"kl__beta": 0.1, "kl__adaptive__target": 6.0, "entropy__coef": 0.1, "entropy__adaptive__target": 2.0}
    one = trainer(tmp_path, **knobs, optimiser__guard=True)
    seen = {"objective__kl": 12.0, "objective__kl_per_token": 0.01}
    parts: Any = learned(one, **seen, objective__entropy=10.0, objective__entropy_per_token=1.0).parts
    assert (parts["kl"].coef, parts["entropy"].coef) == pytest.approx((0.1 * (1 + 0.2 * 8 / 20),) * 2)
    assert parts["guard"].remaining == 0
    learned(one, objective__kl=0.01, objective__kl_per_token=0.02)
    assert parts["guard"].remaining == 100


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_a_warm_up_moves_the_critic_alone_and_tells_no_controller_anything(tmp_path: Path, kind: str) -> None:
    knobs = {**CONTROLS["ppo_penalty"], **CONTROLS["adaptive bonus"], "kl__control": "adaptive"}
    one = trainer(tmp_path, **knobs, critic__kind=kind, critic__warmup_steps=5)
    before = {name: tensor.clone() for name, tensor in one.actor.state_dict().items()}
    moved: dict[int, set[str]] = {}

    def look(step: int, values: dict[str, float]) -> None:
        moved[step] = {name for name, tensor in one.actor.state_dict().items() if not torch.equal(tensor, before[name])}
        assert (values["policy/lr"] == 0.0) == (step <= 5)

    def coefficients() -> list[float]:
        parts: Any = one.parts
        return [parts[name].coef for name in ("old_kl", "kl", "entropy")]

    one._on_step = look  # type: ignore[method-assign]
    one._learn(one._rollout())
    assert coefficients() == [1.0, one.cfg.kl.beta, one.cfg.entropy.coef]
    one._learn(one._rollout())
    assert all(
        now != then for now, then in zip(coefficients(), [1.0, one.cfg.kl.beta, one.cfg.entropy.coef], strict=True)
    )
    assert not any(name.startswith("lm.") for name in moved[5])
    assert any(name.startswith("critic_trunk." if kind == "separate" else "value_head.") for name in moved[2])
    assert any(name.startswith("lm.") for name in moved[6])


def test_the_target_kl_stop_leaves_half_as_much_again() -> None:
    part = parts_of(cfg(algorithm__target_kl=0.02))["target_kl"]
    assert [part.step({"policy/approxkl": kl}).ends for kl in (0.0, 0.02, 0.03, 0.0301)] == [False] * 3 + [True]


def test_the_target_kl_stop_ends_the_epochs_before_the_step_it_refuses(tmp_path: Path) -> None:
    outcome, rows, _ = run(tmp_path, algorithm__target_kl=1e-3)
    assert (outcome.status, outcome.updates) == ("complete", 6)  # every rollout is made; only their steps are fewer
    taken = [int(steps) for steps in series(rows, "policy/update_steps")]
    assert len(taken) == 6
    assert sum(taken) == outcome.steps < 24
    assert all(1 <= steps <= 4 for steps in taken)
    steps = {step: row["policy/approxkl"] for step, row in rows.items() if "policy/approxkl" in row}
    assert max(steps.values()) <= 1.5e-3
    # Records stand at planned steps, and those that are left out have none; the learning rate falls with the planned.
    assert [*steps] == [4 * update + step for update, n in enumerate(taken) for step in range(1, n + 1)]
    assert [step for step, row in rows.items() if "objective/kl" in row] == [*range(0, 24, 4)]
    assert [step for step, row in rows.items() if "policy/update_steps" in row] == [*range(4, 25, 4)]
    assert all(rows[step]["policy/lr"] == pytest.approx(1e-2 * (1 - (step - 1) / 24)) for step in steps)


def test_each_part_logs_its_own_series_and_none_where_it_is_not_asked_for(tmp_path: Path) -> None:
    knobs = {**FLOOR, "kl__place": "loss", "kl__control": "linear", "kl__hinge": 1e-2, "algorithm__target_kl": 0.1}
    knobs |= {"optimiser__guard": True, **CONTROLS["falling bonus"]}
    _, rows, _ = run(tmp_path / "all", **knobs)
    own = {"policy/kl_loss", "policy/kl_hinge", "policy/update_steps", "objective/ent_coef"}
    assert own | {"objective/floor_weight"} <= set().union(*rows.values())
    assert series(rows, "objective/kl_coef") == pytest.approx([0.05, 0.04, 0.03, 0.02, 0.01, 0])
    assert series(rows, "objective/ent_coef") == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0])
    _, rows, _ = run(tmp_path / "none")
    assert not (own | {"objective/floor_weight"}) & set().union(*rows.values())
    assert set(series(rows, "policy/lr_factor")) == {1.0}


@pytest.mark.parametrize("name", ["ppo", "rloo", "trpo", "dpo"])
def test_the_bonus_in_force_weighs_the_loss_and_not_the_first_one(tmp_path: Path, name: str) -> None:
    """Gradient at a coefficient that a controller has moved to, less that without one: proportional to it."""
    knobs = {**(preset(name) if name != "ppo" else {}), "entropy__coef": 1.0, "optimiser__max_grad_norm": 1e9}
    one = trainer(tmp_path, **knobs)
    experience, bonus = one._experience(one._rollout()), one.parts["entropy"]
    gradients = {}
    for coef in (0.0, 1.0, 3.0):
        bonus.coef = coef  # type: ignore[attr-defined]
        one.learner.accumulate(experience, torch.arange(8))
        gradients[coef] = torch.cat([p.grad.flatten() for p in one.actor.lm.parameters() if p.grad is not None])
    once, thrice = (gradients[coef] - gradients[0.0] for coef in (1.0, 3.0))
    assert float(once.norm()) > 1e-3
    torch.testing.assert_close(thrice, 3 * once, rtol=1e-3, atol=1e-4)


def test_the_penalty_on_the_old_policy_follows_the_kl_that_an_update_ends_at(tmp_path: Path) -> None:
    """The KL is that of the whole rollout, after its last step; at a temperature, and 0 before any step."""
    one = trainer(tmp_path, **preset("ppo_penalty"), algorithm__kl_penalty__target=0.02, train__temperature=0.5)
    rollout = one._rollout()
    assert one.learner.moved_kl(rollout) == pytest.approx(0.0, abs=1e-9)
    moved = one._learn(rollout)["policy/old_kl"]
    mask, labels = rollout.episodes.response_mask, rollout.episodes.labels.unsqueeze(1)
    with torch.no_grad():
        log_pi, _ = one.actor(rollout.episodes, 0.5)
    log_ratio = log_pi.gather(1, labels).squeeze(1) - rollout.measured.logprobs[mask]
    assert moved == pytest.approx((log_ratio.exp() - 1 - log_ratio).mean().item(), rel=1e-4)
    assert moved > 0.03
    assert one.parts["old_kl"].coef == 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows_at_once", [1, 3, 8])
def test_scores_with_a_weight_do_not_depend_on_how_many_are_scored_at_once(tmp_path: Path, rows_at_once: int) -> None:
    one = trainer(tmp_path, runtime__rollout_batch_size=rows_at_once, **FLOOR)
    episodes, rows = one._rollout().episodes, list(range(8))
    plain = score_in_two(episodes, rows)
    scores = score_rows(replace(one.rollout_context, terms=Terms(floor=("odd", 3.0))), episodes, rows)
    assert scores.proxy == pytest.approx((plain.proxy + 3 * plain.parts["odd"]) / 4)
    assert (scores.prompts, scores.texts) == (plain.prompts, plain.texts)
    assert torch.equal(scores.parts["odd"], plain.parts["odd"])
    assert torch.equal(scores.gold, plain.gold)


KL_PER_TOKEN = "objective/kl_per_token"
RULE = {"metric": KL_PER_TOKEN, "op": ">", "threshold": 0.002}


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4), st.integers(1, 4), st.integers(1, 40))
def test_a_watcher_stops_at_the_record_that_completes_the_evidence(
    broken: list[bool], consecutive: int, every: int, before: int
) -> None:
    """Record by record it gives the same result as the whole series."""
    one = Watcher((StopRule(metric=KL_PER_TOKEN, op=">", threshold=0.5, consecutive=consecutive, before_step=before),))
    for index, bad in enumerate(broken):
        one.observe(index * every, {KL_PER_TOKEN: 0.9 if bad else 0.1, "policy/entropy": 1.0})
        seen = [(place * every, 0.9 if flag else 0.1) for place, flag in enumerate(broken[: index + 1])]
        evidence = first_break(">", 0.5, consecutive, counted(seen, before))
        assert (one.broken() is not None) == bool(evidence)
        if evidence:
            assert f"at step {evidence[-1][0]}" in str(one.broken())
            assert all(value > 0.5 for _, value in evidence)
            assert len(evidence) == consecutive


def test_a_stopped_trial_ends_at_once_and_says_why(tmp_path: Path) -> None:
    whole, rows, _ = run(tmp_path / "whole", optimiser__lr=3e-2)
    kls = {step: row[KL_PER_TOKEN] for step, row in rows.items() if KL_PER_TOKEN in row}
    at = next(step for step, value in kls.items() if value > RULE["threshold"])
    assert 0 < at < 20, "the test needs a trial that breaks the rule in its middle"
    outcome, stopped, _ = run(tmp_path / "stopped", optimiser__lr=3e-2, train__stop=(RULE,))
    assert (outcome.status, outcome.steps) == ("pruned", at + 4), (
        "the update whose rollout broke the rule is the last one"
    )
    assert outcome.reason == f"stopped by rule: {KL_PER_TOKEN} = {kls[at]:.4g} > 0.002 at step {at}"
    assert stopped == {step: row for step, row in rows.items() if step < at + 4} | {at + 4: stopped[at + 4]}
    assert whole.status == "complete"
    late, _, _ = run(tmp_path / "late", optimiser__lr=3e-2, train__stop=({**RULE, "before_step": at},))
    assert late == whole


def test_a_rule_that_only_the_last_update_breaks_stops_nothing(tmp_path: Path) -> None:
    """It has taken all its steps: there is nothing left to save."""
    _, rows, _ = run(tmp_path / "whole")
    rates = [rows[step]["policy/lr"] for step in (20, 21)]
    rule = {"metric": "policy/lr", "op": "<", "threshold": sum(rates) / 2}
    outcome, ruled, _ = run(tmp_path / "ruled", train__stop=(rule,))
    assert rates[1] < rule["threshold"] < rates[0]
    assert (outcome.status, outcome.steps) == ("complete", 24)
    assert ruled == rows
    earlier = {**rule, "threshold": rates[0] * 1.001}
    assert run(tmp_path / "earlier", train__stop=(earlier,))[0].steps == 20
