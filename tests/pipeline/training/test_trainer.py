"""The loop on a real, tiny network: invariants of the first update, liveness of every knob, ways to end."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tinytrial import CONTROLS, FEW_BITS, FLOOR, LORA_CRITIC, RLOO, Killed, Killer, model, preset, run, trainer

from pipeline.config.names import TRAINING
from pipeline.config.trial import TrialConfig
from pipeline.run.metrics_log import merged
from pipeline.training import update
from pipeline.training.judging import Prompts, Scores
from pipeline.training.rollout import collect
from pipeline.training.update import accumulate, clip, train_on

# --- the first update --------------------------------------------------------------------------------------


def test_the_first_step_sees_the_behaviour_policy_itself(tmp_path: Path) -> None:
    outcome, rows, _ = run(tmp_path)
    assert (outcome.status, outcome.steps, outcome.updates, outcome.episodes) == ("complete", 24, 6, 48)
    first = rows[1]
    assert first["policy/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert first["policy/approxkl"] == pytest.approx(0.0, abs=1e-10)
    assert first["policy/pg_clipfrac"] == 0.0
    assert first["policy/kl_ref_per_token"] == pytest.approx(0.0, abs=1e-6)
    start = rows[0]
    for key in ("kl", "kl_per_token", "kl_k3_per_token", "kl_exact_per_token", "non_score_reward"):
        assert start[f"objective/{key}"] == pytest.approx(0.0, abs=1e-5), key
    assert rows[4]["objective/kl_exact_per_token"] > 0
    assert sorted(rows) == list(range(25))
    assert [step for step, row in rows.items() if "objective/kl" in row] == [0, 4, 8, 12, 16, 20]


def test_without_a_learning_rate_nothing_moves(tmp_path: Path) -> None:
    _, rows, state = run(tmp_path, optimiser__lr=0.0)
    start = model().state_dict()
    assert all(torch.equal(state[f"lm.{name}"], tensor) for name, tensor in start.items())
    assert not state["value_head.weight"].any()
    assert all(row["policy/ratio"] == pytest.approx(1.0, abs=1e-5) for row in rows.values() if "policy/ratio" in row)
    assert all(abs(row["objective/kl"]) < 1e-4 for row in rows.values() if "objective/kl" in row)


def test_it_learns_what_the_reward_asks_for(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path, train__steps=240, optimiser__lr=3e-3, kl__beta=0.0)
    series = [row["objective/scores"] for row in rows.values() if "objective/scores" in row]
    assert sum(series[-5:]) / 5 > sum(series[:5]) / 5 + 0.5


def test_entropy_and_divergences_are_never_negative(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path)
    for row in rows.values():
        for key in (
            "policy/entropy",
            "objective/entropy",
            "policy/approxkl",
            "policy/approxkl_k3",
            "objective/kl_k3_per_token",
        ):
            assert row.get(key, 0.0) >= 0.0, key


def test_the_gradient_is_that_of_the_mean_over_the_mini_batch_tokens(tmp_path: Path) -> None:
    """Against autograd on the losses as PPO.md writes them, over one mini-batch at once, without masks or
    micro-batches."""
    one = trainer(tmp_path, runtime={"micro_batch_size": 3}, kl__beta=0.3)
    actor, cfg = one.actor, one.cfg
    torch.nn.init.normal_(actor.value_head.weight, generator=torch.Generator().manual_seed(5))
    rows = torch.arange(8)
    rollout = collect(
        one.rollout_context, Prompts(one.data.queries[rows], one.data.query_mask[rows], rows.tolist()), 0, cfg.kl.beta
    )
    mini = torch.tensor([6, 1, 3, 4])
    total, tokens = torch.zeros(()), 0
    for row in mini.tolist():
        length = int(rollout.episodes.lengths[row])
        log_pi, values = actor(rollout.episodes.take(torch.tensor([row])), 1.0)
        chosen = log_pi[range(length), rollout.episodes.responses[row, :length]]
        ratio = (chosen - rollout.measured.logprobs[row, :length]).exp()
        advantages, returns = rollout.advantages[row, :length], rollout.returns[row, :length]
        surrogate = -torch.min(
            advantages * ratio, advantages * ratio.clamp(1 - cfg.algorithm.cliprange, 1 + cfg.algorithm.cliprange)
        )
        total = total + surrogate.sum() + cfg.critic.vf_coef * 0.5 * ((values - returns) ** 2).sum()
        tokens += length
    gradients = torch.autograd.grad(total / tokens, list(actor.parameters()))
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))  # type: ignore[arg-type]
    step = accumulate(rollout, mini, one.learner)
    step |= clip(one.learner)
    assert step["policy/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert step["policy/ratio"] == pytest.approx(1.0, abs=1e-6)
    shrunk = min(1.0, cfg.optimiser.max_grad_norm / norm.item())
    for parameter, gradient in zip(actor.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient * shrunk, rtol=1e-4, atol=1e-6)


def test_the_std_that_whitening_divides_by_is_measured(tmp_path: Path) -> None:
    found = {}
    for whiten in (True, False):
        one = trainer(tmp_path / str(whiten), kl__beta=0.3, algorithm__whiten_advantages=whiten)
        found[whiten] = collect(one.rollout_context, one._prompts(), 0, 0.3)
    std = found[True].metrics["objective/advantage_std"]
    assert std == found[False].metrics["objective/advantage_std"]
    mask = found[True].episodes.response_mask
    assert std == pytest.approx(found[False].advantages[mask].std(correction=0).item(), rel=1e-5)
    assert found[True].advantages[mask].std(correction=0).item() == pytest.approx(1.0, rel=1e-5)
    assert abs(std - 1) > 0.05


def first_step(folder: Path, **knobs: Any) -> tuple[dict[str, float], float, float]:
    """Metrics of the first step, and the norms of what clipping leaves of the gradients of policy and critic."""
    one = trainer(folder, critic__kind="separate", optimiser__max_grad_norm=0.1, **knobs)
    rows = torch.arange(8)
    rollout = collect(
        one.rollout_context,
        Prompts(one.data.queries[rows], one.data.query_mask[rows], rows.tolist()),
        0,
        one.cfg.kl.beta,
    )
    metrics = accumulate(rollout, torch.arange(4), one.learner)
    metrics |= clip(one.learner)
    assert one.actor.critic_trunk is not None
    critic = [*one.actor.critic_trunk.parameters(), *one.actor.value_head.parameters()]
    norms = [
        float(torch.stack([parameter.grad.norm() for parameter in part if parameter.grad is not None]).norm())
        for part in (one.actor.lm.parameters(), critic)
    ]
    return metrics, norms[0], norms[1]


def test_a_separate_critic_does_not_shrink_the_step_of_the_policy(tmp_path: Path) -> None:
    """Both gradients are longer than the bound. Clipped apart, each ends at the bound, however large the value
    error."""
    for c1 in (1.0, 100.0):
        metrics, policy, critic = first_step(tmp_path / f"apart {c1}", critic__vf_coef=c1)
        assert min(metrics["policy/grad_norm"], metrics["value/grad_norm"]) > 0.1
        assert policy == pytest.approx(0.1, rel=1e-3)
        assert critic == pytest.approx(0.1, rel=1e-3)
    metrics, policy, critic = first_step(tmp_path / "together", critic__vf_coef=100.0, optimiser__clip_norms="together")
    assert "value/grad_norm" not in metrics
    assert (policy**2 + critic**2) ** 0.5 == pytest.approx(0.1, rel=1e-3)
    assert policy < 0.05


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_a_warm_up_moves_the_critic_alone(tmp_path: Path, kind: str) -> None:
    one = trainer(tmp_path, critic__kind=kind, critic__warmup_steps=5, train__steps=8)
    before = {name: tensor.clone() for name, tensor in one.actor.state_dict().items()}
    moved: dict[int, set[str]] = {}

    def look(step: int, values: dict[str, float]) -> None:
        moved[step] = {name for name, tensor in one.actor.state_dict().items() if not torch.equal(tensor, before[name])}
        assert (values["policy/lr"] == 0.0) == (step <= 5)

    for _ in range(2):
        one._learn(one._rollout(), look)
    assert not any(name.startswith("lm.") for name in moved[5])
    assert any(name.startswith("critic_trunk." if kind == "separate" else "value_head.") for name in moved[2])
    assert any(name.startswith("lm.") for name in moved[6])


def test_a_warm_up_of_a_critic_that_is_not_there_holds_nothing_back(tmp_path: Path) -> None:
    one = trainer(tmp_path, **RLOO, critic__warmup_steps=8, train__steps=12)
    before = {name: tensor.clone() for name, tensor in one.actor.state_dict().items()}
    one._learn(one._rollout(), lambda step, values: None)
    assert any(not torch.equal(tensor, before[name]) for name, tensor in one.actor.state_dict().items())


def test_a_policy_that_is_held_still_tells_no_controller_anything(tmp_path: Path) -> None:
    knobs = {**CONTROLS["ppo_penalty"], **HELD, "kl__control": "adaptive", "critic__warmup_steps": 8}
    one = trainer(tmp_path, **knobs)
    coefficients = []
    for _ in range(3):
        one._learn(one._rollout(), lambda step, values: None)
        coefficients.append(tuple(one.parts[name].coef for name in ("old_kl", "kl", "entropy")))
    assert coefficients[0] == coefficients[1] == (1.0, one.cfg.kl.beta, one.cfg.entropy.coef)
    assert all(now != then for now, then in zip(coefficients[2], coefficients[1], strict=True))


# --- liveness ----------------------------------------------------------------------------------------------

COLD = {"train__temperature": 0.2, "train__response_length": 25, "train__min_entropy": 0.0}
"""So nearly greedy that text repeats itself."""
A_STAR_PO = preset("a_star_po")
REPLAY = {"critic__target": "replay", "replay__every": 3}
CLIPPING = {"algorithm__cliprange": 0.01, "optimiser__lr": 5e-2}
PENALTY, TRPO = CONTROLS["ppo_penalty"], CONTROLS["trpo"]
HELD = CONTROLS["adaptive bonus"]
FAR = {**preset("trpo"), "train__steps": 8}
"""With all its iterations a direction so good that the first point of the line search breaks the bound."""
ONE_PASS = {"algorithm__trust_region": "none", "train__num_epochs": 1, "train__num_mini_batches": 4}
PERTURBED: dict[str, dict[str, Any]] = {
    "floor__part": FLOOR,
    "floor__at": {**FLOOR, "floor__at": -0.4},
    "floor__lr": {**FLOOR, "floor__lr": 0.5},
    "floor__weight": {**FLOOR, "floor__weight": 2.0},
    "floor__max_weight": {**FLOOR, "floor__max_weight": 0.5},
    "algorithm__advantage": {**RLOO, "algorithm__advantage": "group_norm"},
    "algorithm__ratio": {**ONE_PASS, "algorithm__ratio": "none"},
    "algorithm__trust_region": {"algorithm__trust_region": "none"},
    "algorithm__old_kl_coef": {**PENALTY, "algorithm__old_kl_coef": 3.0},
    "algorithm__old_kl_target": {**PENALTY, "algorithm__old_kl_target": 1.0},
    "algorithm__trpo_delta": {**TRPO, "algorithm__trpo_delta": 0.02},
    "algorithm__trpo_damping": {**TRPO, "algorithm__trpo_damping": 0.2},
    "algorithm__trpo_cg_iterations": {**TRPO, "algorithm__trpo_cg_iterations": 3},
    "algorithm__trpo_line_search": {**FAR, "algorithm__trpo_line_search": 1},
    "algorithm__aggregation": {"algorithm__aggregation": "seq_mean_token_mean"},
    "algorithm__cliprange_high": {**CLIPPING, "algorithm__cliprange_high": 0.3},
    "algorithm__ratio_cap": {"algorithm__trust_region": "cispo", "algorithm__ratio_cap": 1.0},
    "algorithm__v_star_beta": {**A_STAR_PO, "algorithm__v_star_beta": 0.5},
    "algorithm__v_star_samples": {**A_STAR_PO, "algorithm__v_star_samples": 2},
    "critic__target": REPLAY,
    "critic__warmup_steps": {"critic__warmup_steps": 4},
    "algorithm__value_lambda": {"algorithm__value_lambda": 0.0},
    "replay__continuations": {**REPLAY, "replay__continuations": 2},
    "replay__every": {**REPLAY, "replay__every": 2},
    "replay__share": {**REPLAY, "replay__share": 0.5},
    "train__overlong_share": {"train__overlong_share": 0.5},
    "train__overlong_penalty": {"train__overlong_share": 0.5, "train__overlong_penalty": 3.0},
    "kl__reward_estimator": {"kl__reward_estimator": "k3"},
    "train__responses_per_prompt": {"train__responses_per_prompt": 2},
    "train__seed": {"train__seed": 1},
    "train__steps": {"train__steps": 28},
    "train__batch_size": {"train__batch_size": 4},
    "train__num_mini_batches": {"train__num_mini_batches": 4},
    "train__num_epochs": {"train__num_epochs": 3},
    "train__response_length": {"train__response_length": 7},
    "train__temperature": {"train__temperature": 0.8},
    "optimiser__lr": {"optimiser__lr": 5e-3},
    "critic__head_lr": {"critic__head_lr": 1e-1},
    "optimiser__lr_schedule": {"optimiser__lr_schedule": "constant"},
    "optimiser__adam_eps": {"optimiser__adam_eps": 1e-3},
    "optimiser__max_grad_norm": {"optimiser__max_grad_norm": 1e-3},
    "optimiser__clip_norms": {"critic__kind": "separate", "optimiser__clip_norms": "together"},
    "algorithm__cliprange": {"algorithm__cliprange": 0.01},
    "critic__cliprange": {"critic__cliprange": 0.01},
    "algorithm__gamma": {"algorithm__gamma": 0.5},
    "algorithm__gae_lambda": {"algorithm__gae_lambda": 0.5},
    "kl__beta": {"kl__beta": 1.0},
    "critic__vf_coef": {"critic__vf_coef": 1.0},
    "entropy__coef": {"entropy__coef": 0.5},
    "entropy__control": {"entropy__coef": 0.5, "entropy__control": "adaptive"},
    "entropy__coef_end": {"entropy__coef": 0.5, "entropy__control": "linear", "entropy__coef_end": 1.0},
    "entropy__coef_stages": {"entropy__control": "piecewise", "entropy__coef_stages": ((0.4, 0.5),)},
    "entropy__target": {**HELD, "entropy__target": 0.1},
    "entropy__horizon": {**HELD, "entropy__horizon": 10.0},
    "algorithm__whiten_rewards": {"algorithm__whiten_rewards": True},
    "algorithm__whiten_advantages": {"algorithm__whiten_advantages": False},
    "train__missing_eos": {"train__missing_eos": "none"},
    "train__missing_eos_penalty": {"train__missing_eos_penalty": 3.0},
    "algorithm__dual_clip": {**CLIPPING, "algorithm__dual_clip": 1.01},
    "kl__place": {"kl__place": "loss"},
    "kl__loss_estimator": {"kl__place": "loss", "kl__loss_estimator": "k3"},
    "kl__group": {"kl__group": "clause"},
    "kl__group_credit": {"kl__group": "clause", "kl__group_credit": "last"},
    "kl__control": {"kl__control": "adaptive"},
    "kl__beta_end": {"kl__control": "linear", "kl__beta_end": 0.5},
    "kl__beta_stages": {"kl__control": "piecewise", "kl__beta_stages": ((0.4, 0.5), (0.8, 0.0))},
    "kl__target": {"kl__control": "adaptive", "kl__target": 0.5},
    "kl__horizon": {"kl__control": "adaptive", "kl__horizon": 10.0},
    "optimiser__guard": {"optimiser__guard": True},
    "optimiser__guard_kl": {"optimiser__guard": True, "optimiser__guard_kl": 100.0},
    "optimiser__guard_factor": {"optimiser__guard": True, "optimiser__guard_factor": 0.1},
    "optimiser__guard_steps": {"optimiser__guard": True, "optimiser__guard_steps": 1},
    "kl__hinge": {"kl__hinge": 1e-4},
    "train__data": {**preset("online_dpo"), "train__data": "pairs"},
    "train__stop": {"train__stop": ({"metric": "policy/entropy", "op": ">", "threshold": 0.0, "consecutive": 5},)},
    "algorithm__target_kl": {"algorithm__target_kl": 1e-4},
    "critic__kind": {"critic__kind": "separate"},
    "critic__init": {"critic__kind": "separate", "critic__init": "reward"},
    "critic__lr": {"critic__kind": "separate", "critic__lr": 0.0},
    "adapter__kind": {"adapter__kind": "lora"},
    "adapter__rank": {"adapter__kind": "lora", "adapter__rank": 2},
    "adapter__alpha": {"adapter__kind": "lora", "adapter__alpha": 4.0},
    "adapter__frozen_layers": {"adapter__frozen_layers": 1},
    "adapter__quantize": {"adapter__kind": "lora", "adapter__quantize": "4bit"},
    "critic__adapter": LORA_CRITIC,
    "critic__adapter_rank": {**LORA_CRITIC, "critic__adapter_rank": 2},
    "critic__adapter_alpha": {**LORA_CRITIC, "critic__adapter_alpha": 4.0},
    "critic__quantize": {**LORA_CRITIC, "critic__quantize": "8bit"},
    "train__frozen_dtype": {"train__frozen_dtype": "bf16"},
    "train__min_entropy": {"train__min_entropy": 10.0},
    "train__max_repetition": {**COLD, "train__max_repetition": 0.4},
}
BEFOREHAND = {"critic__pretraining_steps", "critic__pretraining_lr"}
"""Of a stage of its own, `tests/pipeline/stages/test_value_pretraining.py`."""
LABELS = {"algorithm__name"}
"""What a preset was called; its settings are knobs of their own."""
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "floor": FLOOR,
    "bonus": {"entropy__coef": 0.5},
    "held": HELD,
    "falling": CONTROLS["falling bonus"],
    "adaptive": {"kl__control": "adaptive"},
    "linear": {"kl__control": "linear"},
    "stages": {"kl__control": "piecewise", "kl__beta_stages": ((0.4, 0.5),)},
    "guard": {"optimiser__guard": True},
    "in the loss": {"kl__place": "loss"},
    "clauses": {"kl__group": "clause"},
    "separate": {"critic__kind": "separate"},
    "lora": {"adapter__kind": "lora"},
    "lora critic": LORA_CRITIC,
    "few bits": FEW_BITS,
    "cold": COLD,
    "fast": CLIPPING,
    "groups": RLOO,
    "one pass": ONE_PASS,
    "capped": {"algorithm__trust_region": "cispo"},
    "overlong": {"train__overlong_share": 0.5},
    "samples": A_STAR_PO,
    "replayed": REPLAY,
    "penalty": PENALTY,
    "trpo": TRPO,
    "far": FAR,
    "pairs": preset("online_dpo"),
}
"""What a knob is compared with: the base, or the setting that it refines."""
AGAINST = {
    "floor__at": "floor", "floor__lr": "floor", "floor__weight": "floor", "floor__max_weight": "floor",
    "entropy__control": "bonus", "entropy__coef_end": "falling", "entropy__target": "held", "entropy__horizon": "held",
    "kl__target": "adaptive", "kl__horizon": "adaptive", "kl__beta_end": "linear", "kl__beta_stages": "stages",
    "optimiser__guard_kl": "guard", "optimiser__guard_factor": "guard", "optimiser__guard_steps": "guard",
    "kl__loss_estimator": "in the loss", "kl__group_credit": "clauses",
    "adapter__rank": "lora", "adapter__alpha": "lora", "adapter__quantize": "lora",
    "critic__adapter": "separate", "critic__adapter_rank": "lora critic", "critic__adapter_alpha": "lora critic",
    "critic__quantize": "lora critic",
    "critic__init": "separate", "critic__lr": "separate", "optimiser__clip_norms": "separate",
    "algorithm__dual_clip": "fast", "algorithm__cliprange_high": "fast", "algorithm__advantage": "groups",
    "algorithm__ratio": "one pass", "algorithm__ratio_cap": "capped", "train__overlong_penalty": "overlong",
    "train__max_repetition": "cold", "algorithm__v_star_beta": "samples", "algorithm__v_star_samples": "samples",
    "replay__continuations": "replayed", "replay__every": "replayed", "replay__share": "replayed",
    "algorithm__old_kl_coef": "penalty", "algorithm__old_kl_target": "penalty",
    "algorithm__trpo_delta": "trpo", "algorithm__trpo_damping": "trpo", "algorithm__trpo_cg_iterations": "trpo",
    "algorithm__trpo_line_search": "far", "train__data": "pairs",
}  # fmt: skip


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Outcome, metrics and final weights of every setting."""
    return {name: run(tmp_path_factory.mktemp("setting"), **knobs) for name, knobs in SETTINGS.items()}


def test_every_declared_knob_is_covered_below() -> None:
    sections = {section: TrialConfig.model_fields[section].annotation for section in TRAINING}
    knobs = {f"{section}__{name}" for section, model in sections.items() for name in model.model_fields}
    assert knobs == PERTURBED.keys() | BEFOREHAND | LABELS


@pytest.mark.parametrize("knob", PERTURBED)
def test_every_knob_changes_the_trajectory(knob: str, tmp_path: Path, trajectories: dict[str, Any]) -> None:
    _, rows, state = run(tmp_path, **PERTURBED[knob])
    _, base_rows, base_state = trajectories[AGAINST.get(knob, "base")]
    assert rows != base_rows
    assert state.keys() != base_state.keys() or any(not torch.equal(state[name], base_state[name]) for name in state)


# --- what must not matter ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "runtime"),
    [
        ("base", {"micro_batch_size": 1}),
        ("base", {"micro_batch_size": 3}),
        ("base", {"rollout_batch_size": 3}),
        ("held", {"micro_batch_size": 3}),
        ("few bits", {"micro_batch_size": 3}),
        pytest.param("few bits", {"micro_batch_size": 1}, marks=pytest.mark.slow),
        pytest.param("few bits", {"rollout_batch_size": 3}, marks=pytest.mark.slow),
    ],
)
def test_memory_settings_change_nothing(
    tmp_path: Path, runtime: dict[str, Any], setting: str, trajectories: dict[str, Any]
) -> None:
    _, rows, state = run(tmp_path, runtime=runtime, **SETTINGS[setting])
    _, base_rows, base_state = trajectories[setting]
    for step, row in base_rows.items():
        for key, value in row.items():
            assert rows[step][key] == pytest.approx(value, rel=2e-3, abs=2e-4), (step, key)
    for name, tensor in base_state.items():
        assert torch.allclose(state[name], tensor, atol=2e-3), name


@pytest.mark.parametrize("runtime", [{"micro_batch_size": 1}, {"micro_batch_size": 3}])
def test_the_cut_into_micro_batches_moves_no_penalty_on_whole_responses(
    tmp_path: Path, runtime: dict[str, Any], trajectories: dict[str, Any]
) -> None:
    _, rows, state = run(tmp_path, runtime=runtime, **A_STAR_PO)
    _, base_rows, base_state = trajectories["samples"]
    for step, row in base_rows.items():
        for key, value in row.items():
            assert rows[step][key] == pytest.approx(value, rel=2e-3, abs=2e-4), (step, key)
    assert all(torch.allclose(state[name], tensor, atol=2e-3) for name, tensor in base_state.items())


def test_same_seed_same_bytes(tmp_path: Path, trajectories: dict[str, Any]) -> None:
    _, rows, state = run(tmp_path)
    _, base_rows, base_state = trajectories["base"]
    assert rows == base_rows
    assert all(torch.equal(state[name], base_state[name]) for name in state)


# --- how a trial can end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", ["wall_clock_h", "generated_tokens", "memory_gib"])
def test_a_cap_ends_the_trial_as_budget(tmp_path: Path, cap: str) -> None:
    outcome, _, _ = run(tmp_path, caps={cap: 100 if cap == "generated_tokens" else 1e-9})
    assert outcome.status == "budget"
    assert cap in str(outcome.reason)
    assert outcome.steps < 24


def test_numbers_that_are_not_finite_end_the_trial_as_diverged(tmp_path: Path) -> None:
    # lr 1e12 sends the weights beyond fp32 within a step or two.
    outcome, rows, state = run(tmp_path, optimiser__lr=1e12, optimiser__max_grad_norm=1e12)
    assert outcome.status == "diverged"
    assert "not finite" in str(outcome.reason)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())
    assert rows  # the evidence up to there stays


@pytest.mark.parametrize("checkpoint_updates", [1, 4])
def test_a_divergence_in_the_last_step_of_an_update_is_found_and_keeps_good_weights(
    tmp_path: Path, checkpoint_updates: int
) -> None:
    """One step an update: nothing after it in the update could notice. What is kept does not depend on the
    checkpoints."""
    one_step = {
        "train__num_mini_batches": 1,
        "train__num_epochs": 1,
        "optimiser__lr": 1e12,
        "optimiser__max_grad_norm": 1e12,
    }
    outcome, _, state = run(tmp_path, runtime={"checkpoint_updates": checkpoint_updates}, **one_step)
    assert (outcome.status, outcome.steps) == ("diverged", 1)
    assert str(outcome.reason).endswith("the policy kept is that of step 0")
    assert all(torch.equal(state[f"lm.{name}"], tensor) for name, tensor in model().state_dict().items())


def test_a_rollout_that_is_not_finite_ends_the_trial_as_diverged(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    nan = Scores(torch.full((8,), float("nan")), torch.zeros(8), ["p"] * 8, ["t"] * 8)
    one.rollout_context = replace(one.rollout_context, score=lambda episodes, rows: nan)
    outcome = one.run()
    assert outcome.status == "diverged"
    assert "objective/scores" in str(outcome.reason)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"train__min_entropy": 3.0, "optimiser__lr": 3e-2}, "entropy collapsed"),
        ({**COLD, "train__max_repetition": 0.6}, "repeated text"),
    ],
)
@pytest.mark.parametrize("checkpoint_updates", [1, 4])
def test_a_collapse_ends_the_trial_with_the_weights_before_it(
    tmp_path: Path, knobs: dict[str, Any], words: str, checkpoint_updates: int
) -> None:
    outcome, rows, state = run(tmp_path / "whole", runtime={"checkpoint_updates": checkpoint_updates}, **knobs)
    assert outcome.status == "diverged"
    assert words in str(outcome.reason)
    assert 0 < outcome.steps < 24
    assert max(rows) == outcome.steps
    kept = int(str(outcome.reason).rpartition(" ")[2])
    assert kept == outcome.steps - 4
    _, _, shorter = run(tmp_path / "again", runtime={"checkpoint_updates": checkpoint_updates}, **knobs)
    assert all(torch.equal(state[name], shorter[name]) for name in state)


def test_a_trial_killed_before_it_collapsed_keeps_the_same_weights(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"train__min_entropy": 3.0, "optimiser__lr": 3e-2, "runtime": {"checkpoint_updates": 1}}
    whole, _, state = run(tmp_path / "whole", **knobs)
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", reporter=Killer(whole.updates), **knobs).run()
    again, _, resumed = run(tmp_path / "cut", **knobs)
    assert again == whole
    assert all(torch.equal(state[name], resumed[name]) for name in state)


def test_the_target_kl_stop_ends_the_epochs_before_the_step_it_refuses(tmp_path: Path) -> None:
    outcome, rows, _ = run(tmp_path, algorithm__target_kl=1e-3)
    assert outcome.status == "complete"
    assert outcome.updates == 6  # every rollout is made; only their steps are fewer
    taken = [int(row["policy/update_steps"]) for row in rows.values() if "policy/update_steps" in row]
    assert len(taken) == 6
    assert sum(taken) == outcome.steps < 24
    assert all(1 <= steps <= 4 for steps in taken)
    steps = {step: row["policy/approxkl"] for step, row in rows.items() if "policy/approxkl" in row}
    assert max(steps.values()) <= 1.5e-3
    # Records stand at planned steps, and those that are left out have none.
    assert [*steps] == [4 * update + step for update, n in enumerate(taken) for step in range(1, n + 1)]
    assert [step for step, row in rows.items() if "objective/kl" in row] == [*range(0, 24, 4)]
    assert [step for step, row in rows.items() if "policy/update_steps" in row] == [*range(4, 25, 4)]


@pytest.mark.parametrize(("high", "taken"), [("policy/approxkl", 0), ("policy/approxkl_k3", 4)])
def test_the_target_kl_stop_is_on_approxkl_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, high: str, taken: int
) -> None:
    one = trainer(tmp_path, algorithm__target_kl=1e-3)
    rollout = collect(one.rollout_context, one._prompts(), 0, one.cfg.kl.beta)
    measured = {"policy/approxkl": 0.0, "policy/approxkl_k3": 0.0, high: 1.0}
    monkeypatch.setattr(update, "accumulate", lambda *args: accumulate(*args) | measured)
    assert train_on(rollout, one.learner, 1, lambda step, values: None) == taken


def test_the_learning_rate_falls_with_the_planned_steps_whatever_a_stop_leaves_out(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path, algorithm__target_kl=1e-9)
    rates = [row["policy/lr"] for row in rows.values() if "policy/lr" in row]
    assert rates == pytest.approx([1e-2 * (1 - update * 4 / 24) for update in range(6)])


def test_the_hinge_holds_the_drift_back(tmp_path: Path) -> None:
    far = [run(tmp_path / str(hinge), kl__beta=0.0, kl__hinge=hinge)[1] for hinge in (None, 1e-2)]
    free, held = (
        [row["objective/kl_exact_per_token"] for row in rows.values() if "objective/kl" in row][-1] for rows in far
    )
    assert held < free / 2
    for row in far[1].values():
        if "policy/kl_hinge" in row:
            assert row["policy/kl_hinge"] == pytest.approx(min(1.0, 1e-2 / max(row["policy/kl_ref_per_token"], 1e-9)))


@pytest.mark.parametrize("estimator", ["k2", pytest.param("k3", marks=pytest.mark.slow)])
def test_a_penalty_in_the_loss_holds_the_policy_back_too(tmp_path: Path, estimator: str) -> None:
    knobs = {"kl__place": "loss", "kl__loss_estimator": estimator, "train__steps": 80}
    ends = []
    for beta in (0.0, 3.0):
        _, rows, _ = run(tmp_path / str(beta), kl__beta=beta, **knobs)
        assert all(
            row["objective/non_score_reward"] == 0 for row in rows.values() if "objective/non_score_reward" in row
        )
        ends.append([row["objective/kl_exact_per_token"] for row in rows.values() if "objective/kl" in row][-1])
    assert ends[1] < ends[0] / 2


@pytest.mark.parametrize("control", [*CONTROLS, "critic from the reward"])
def test_the_first_step_is_the_behaviour_policy_whatever_the_settings(tmp_path: Path, control: str) -> None:
    knobs = CONTROLS.get(control, {"critic__kind": "separate", "critic__init": "reward"})
    _, rows, _ = run(tmp_path / "a", **knobs)
    assert rows[1]["policy/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert rows[1].get("policy/pg_clipfrac", 0.0) == 0.0
    if knobs.get("algorithm__trust_region") == "trpo":  # no learning rate has a part in the policy's step
        return
    _, _, state = run(tmp_path / "b", **{**knobs, "optimiser__lr": 0.0})
    start = trainer(tmp_path / "c", **knobs).actor.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in start.items() if name.startswith("lm."))


def test_each_controller_logs_its_own_series(tmp_path: Path) -> None:
    knobs = {
        "kl__place": "loss",
        "kl__control": "linear",
        "kl__hinge": 1e-2,
        "algorithm__target_kl": 0.1,
        "optimiser__guard": True,
        "algorithm__dual_clip": 2.0,
    }
    _, rows, _ = run(tmp_path, **knobs)
    keys = set().union(*rows.values())
    own = {
        "policy/kl_loss",
        "policy/kl_hinge",
        "policy/update_steps",
        "policy/lr_factor",
        "policy/dual_clipfrac",
        "objective/kl_coef",
    }
    assert own <= keys
    assert [row["objective/kl_coef"] for row in rows.values() if "objective/kl_coef" in row] == pytest.approx(
        [0.05, 0.04, 0.03, 0.02, 0.01, 0]
    )


def test_the_bonus_in_force_is_logged_where_one_can_act(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path / "falling", **CONTROLS["falling bonus"])
    logged = {step: row["objective/ent_coef"] for step, row in rows.items() if "objective/ent_coef" in row}
    assert logged == {0: 0.5, 4: pytest.approx(0.4), 8: pytest.approx(0.3), 12: pytest.approx(0.2),
                      16: pytest.approx(0.1), 20: 0.0}  # fmt: skip
    _, rows, _ = run(tmp_path / "none")
    assert not any("objective/ent_coef" in row for row in rows.values())


def test_an_adaptive_bonus_follows_the_entropy_of_the_rollouts(tmp_path: Path) -> None:
    """From one rollout to the next, by the rule: clip(1 - H / 3, ±0.2) x 8 episodes / 20."""
    _, rows, _ = run(tmp_path, **HELD)
    rollouts = [row for row in rows.values() if "objective/ent_coef" in row]
    assert len(rollouts) == 6
    assert rollouts[0]["objective/ent_coef"] == 0.1
    for now, then in itertools.pairwise(rollouts):
        error = min(max(1 - now["objective/entropy_per_token"] / 3.0, -0.2), 0.2)
        assert then["objective/ent_coef"] == pytest.approx(now["objective/ent_coef"] * (1 + error * 8 / 20))
        assert error != 0


def test_the_entropy_of_a_rollout_is_that_of_the_network_over_the_whole_vocabulary(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    rollout = one._rollout()
    with torch.no_grad():
        log_pi, _ = one.actor(rollout.episodes, 1.0)
    exact = -(log_pi.exp() * log_pi).sum(1).mean()
    assert rollout.metrics["objective/entropy_per_token"] == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize(
    "name", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rloo", "trpo", "online_dpo"))]
)
def test_schedules_that_stand_still_are_a_fixed_bonus_bit_for_bit(tmp_path: Path, name: str) -> None:
    knobs = {**preset(name), "train__steps": 12} if name != "ppo" else {}
    still: list[dict[str, Any]] = [
        {"entropy__coef": 0.05},
        {"entropy__coef": 0.05, "entropy__control": "linear", "entropy__coef_end": 0.05},
        {"entropy__control": "piecewise", "entropy__coef_stages": ((0.0, 0.05),)},
    ]
    ends = [run(tmp_path / str(place), **knobs, **bonus) for place, bonus in enumerate(still)]
    plain = run(tmp_path / "plain", **knobs)
    for _, rows, state in ends[1:]:
        assert rows == ends[0][1]
        assert all(torch.equal(state[key], tensor) for key, tensor in ends[0][2].items())
    assert any(not torch.equal(plain[2][key], tensor) for key, tensor in ends[0][2].items())


@pytest.mark.parametrize("name", ["ppo", "rloo", "trpo", "dpo"])
def test_the_bonus_in_force_weighs_the_loss_and_not_the_first_one(tmp_path: Path, name: str) -> None:
    """Gradient at a coefficient that a controller has moved to, less that without one: proportional to it."""
    knobs = {**(preset(name) if name != "ppo" else {}), "entropy__coef": 1.0, "optimiser__max_grad_norm": 1e9}
    one = trainer(tmp_path, **knobs)
    experience = one._experience(one._rollout())
    gradients = {}
    for coef in (0.0, 1.0, 3.0):
        one.parts["entropy"].coef = coef
        accumulate(experience, torch.arange(8), one.learner)
        gradients[coef] = torch.cat([p.grad.flatten() for p in one.actor.lm.parameters() if p.grad is not None])
    once, thrice = (gradients[coef] - gradients[0.0] for coef in (1.0, 3.0))
    assert float(once.norm()) > 1e-3
    torch.testing.assert_close(thrice, 3 * once, rtol=1e-3, atol=1e-4)


def test_a_bonus_keeps_the_policy_undecided(tmp_path: Path) -> None:
    ends = []
    for coef in (0.0, 0.3):
        _, rows, _ = run(tmp_path / str(coef), train__steps=120, optimiser__lr=3e-3, kl__beta=0.0, entropy__coef=coef)
        series = [row["objective/entropy_per_token"] for row in rows.values() if "objective/kl" in row]
        ends.append(sum(series[-5:]) / 5)
    assert ends[1] > ends[0] + 0.3


def test_the_ledger_counts_what_was_sampled(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    outcome = one.run()
    rows = merged(tmp_path / "metrics.jsonl")
    sampled = sum(row["objective/length"] * 8 for row in rows.values() if "objective/length" in row)
    assert outcome.tokens == one.ledger.generated_tokens == pytest.approx(sampled)
    cost = one.ledger.cost()
    assert cost["wall_s"] > 0
    assert cost["tflop"] > 0
