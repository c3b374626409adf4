from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import smoke
from tinytrial import CONTROLS, DENSE, FEW_BITS, FLOOR, LORA_CRITIC, RLOO, model, preset, run, trainer

from pipeline.config.loading import dotted_keys
from pipeline.config.names import TRAINING
from pipeline.run.metrics import merged
from pipeline.stages.graph import STAGES
from pipeline.training import health
from pipeline.training.checkpoint import load_latest


def test_the_first_step_sees_the_behaviour_policy_itself(tmp_path: Path) -> None:
    outcome, rows, _ = run(tmp_path)
    assert (outcome.status, outcome.steps, outcome.updates, outcome.episodes) == ("complete", 24, 6, 48)
    first, start = rows[1], rows[0]
    assert first["policy/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert first["policy/approxkl"] == pytest.approx(0.0, abs=1e-10)
    assert first["policy/pg_clipfrac"] == 0.0
    assert first["policy/kl_ref_per_token"] == pytest.approx(0.0, abs=1e-6)
    for key in ("kl", "kl_per_token", "kl_k3_per_token", "kl_exact_per_token", "non_score_reward"):
        assert start[f"objective/{key}"] == pytest.approx(0.0, abs=1e-5), key
    assert rows[4]["objective/kl_exact_per_token"] > 0
    assert sorted(rows) == list(range(25))
    assert [step for step, row in rows.items() if "objective/kl" in row] == [0, 4, 8, 12, 16, 20]
    never_negative = (
        "policy/entropy", "objective/entropy", "policy/approxkl", "policy/approxkl_k3", "objective/kl_k3_per_token"
    )  # fmt: skip
    assert all(row.get(key, 0.0) >= 0.0 for row in rows.values() for key in never_negative)


@pytest.mark.parametrize(
    "control", ["fixed", "separate", "critic from the reward", "lora", "in the loss", "remax", "gspo", "dpo", "trpo"]
)
def test_without_a_learning_rate_nothing_moves_whatever_the_settings(tmp_path: Path, control: str) -> None:
    knobs = CONTROLS.get(control, {"critic__kind": "separate", "critic__init": "reward"})
    one = trainer(tmp_path, **{**knobs, "optimiser__lr": 0.0})
    start = {name: tensor.clone() for name, tensor in one.actor.state_dict().items()}
    one.run()
    rows = merged(tmp_path / "metrics.jsonl")
    assert rows[1]["policy/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert rows[1].get("policy/pg_clipfrac", 0.0) == 0.0
    if knobs.get("algorithm__trust_region") != "trpo":  # no learning rate has a part in the policy's step
        assert all(
            row["policy/ratio"] == pytest.approx(1.0, abs=1e-5) for row in rows.values() if "policy/ratio" in row
        )
        assert all(torch.equal(tensor, start[name]) for name, tensor in one.actor.state_dict().items())


def test_it_learns_what_the_reward_asks_for(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path, train__steps=240, optimiser__lr=3e-3, kl__beta=0.0)
    series = [row["objective/scores"] for row in rows.values() if "objective/scores" in row]
    assert sum(series[-5:]) / 5 > sum(series[:5]) / 5 + 0.5


@pytest.mark.parametrize(("how", "c1"), [("apart", 1.0), ("apart", 100.0), ("together", 100.0)])
def test_a_separate_critic_does_not_shrink_the_step_of_the_policy(tmp_path: Path, how: str, c1: float) -> None:
    """Both gradients are longer than the bound. Clipped apart, each ends at the bound, however large the value
    error."""
    knobs = {"critic__kind": "separate", "optimiser__max_grad_norm": 0.1, "optimiser__clip_norms": how}
    one = trainer(tmp_path, **knobs, critic__vf_coef=c1)
    metrics = one.learner.accumulate(one._rollout(), torch.arange(4)) | one.learner.clip()
    policy, critic = (
        float(torch.stack([parameter.grad.norm() for parameter in part if parameter.grad is not None]).norm())
        for part in (one.actor.lm.parameters(), one.learner.separate_critic)
    )
    if how == "apart":
        assert min(metrics["policy/grad_norm"], metrics["value/grad_norm"]) > 0.1
        assert (policy, critic) == (pytest.approx(0.1, rel=1e-3), pytest.approx(0.1, rel=1e-3))
    else:
        assert "value/grad_norm" not in metrics
        assert (policy**2 + critic**2) ** 0.5 == pytest.approx(0.1, rel=1e-3)
        assert policy < 0.05


COLD = {"train__temperature": 0.2, "train__response_length": 25}
"""Settings so nearly greedy that text repeats itself."""
HELD = CONTROLS["adaptive bonus"]
RULE = {"metric": "policy/entropy", "op": ">", "threshold": 0.0, "consecutive": 5}
PERTURBED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {
        "algorithm__trust_region": "none", "algorithm__aggregation": "seq_mean_token_mean",
        "algorithm__clip__epsilon": 0.01,
        "algorithm__value_lambda": 0.0, "algorithm__gamma": 0.5, "algorithm__gae_lambda": 0.5,
        "algorithm__whiten_advantages": False, "algorithm__target_kl": 1e-4,
        "critic__target": "replay", "critic__warmup_steps": 4, "critic__head_lr": 1e-1, "critic__cliprange": 0.01,
        "critic__vf_coef": 1.0, "critic__kind": "separate", "entropy__coef": 0.5,
        "train__overlong_share": 0.5, "train__responses_per_prompt": 2, "train__seed": 1, "train__steps": 16,
        "train__batch_size": 4, "train__num_epochs": 3, "train__response_length": 7,
        "train__temperature": 0.8, "train__missing_eos": "none", "train__missing_eos_penalty": 3.0,
        "train__stop": (RULE,),
        "optimiser__lr": 5e-3, "optimiser__lr_schedule": "constant", "optimiser__adam_eps": 1e-3,
        "optimiser__max_grad_norm": 1e-3, "optimiser__guard": True,
        "kl__beta": 1.0, "kl__place": "loss", "kl__group": "clause",
        "kl__control": "adaptive", "kl__hinge": 1e-4, "adapter__kind": "lora",
    }),
    ({"train__steps": 16}, {"train__num_mini_batches": 4}),
    ({"reward__kind": "composite", "reward__parts": FLOOR["reward__parts"]}, {"floor__part": "odd"}),
    (FLOOR, {"floor__at": -0.4, "floor__weight": 2.0}),
    (RLOO, {"algorithm__advantage": "group_norm"}),
    ({"algorithm__trust_region": "none", "train__num_epochs": 1, "train__num_mini_batches": 4},
     {"algorithm__ratio": "none"}),
    (CONTROLS["ppo_penalty"], {"algorithm__kl_penalty__target": 1.0}),
    (CONTROLS["trpo"], {"algorithm__trpo__delta": 0.02}),
    ({"algorithm__clip__epsilon": 0.01, "optimiser__lr": 5e-2},
     {"algorithm__clip__epsilon_high": 0.3}),
    (preset("a_star_po"), {"algorithm__v_star__beta": 0.5}),
    ({"critic__target": "replay", "replay__every": 3},
     {"replay__continuations": 2, "replay__every": 2, "replay__share": 0.5}),
    ({"train__overlong_share": 0.5}, {"train__overlong_penalty": 3.0}),
    ({"critic__kind": "separate"},
     {"optimiser__clip_norms": "together", "critic__init": "reward", "critic__lr": 0.0, "critic__adapter": "lora"}),
    ({"entropy__coef": 0.5}, {"entropy__control": "adaptive"}),
    (CONTROLS["falling bonus"], {"entropy__end": 1.0}),
    (HELD, {"entropy__adaptive__target": 0.1, "entropy__adaptive__horizon": 10.0}),
    ({"kl__place": "loss"}, {"kl__loss_estimator": "k3"}),
    ({"kl__group": "clause"}, {"kl__group_credit": "last"}),
    ({"kl__control": "linear"}, {"kl__end": 0.5}),
    ({"kl__control": "adaptive"}, {"kl__adaptive__target": 0.5, "kl__adaptive__horizon": 10.0}),
    ({"optimiser__guard": True}, {"optimiser__guard_kl": 100.0}),
    (preset("online_dpo"), {"train__data": "pairs"}),
    ({}, {"rollout__every": 3, "rollout__dtype": "bfloat16"}),
    ({"rollout__every": 3}, {"rollout__correction": "masked"}),
    ({"rollout__every": 3, "rollout__correction": "truncated"}, {"rollout__level": "sequence", "rollout__most": 1.0}),
    ({}, {"algorithm__tokens": "random", "algorithm__signs": "negative"}),
    ({"algorithm__tokens": "high_entropy"}, {"algorithm__token_share": 0.6}),
    ({"adapter__kind": "lora"}, {"adapter__rank": 2, "adapter__alpha": 4.0, "adapter__quantize": "4bit"}),
    (LORA_CRITIC, {"adapter__rank": 2, "adapter__alpha": 4.0, "critic__quantize": "8bit"}),
]  # fmt: skip
"""Settings, and one knob at a time that is changed beside them."""
SHORT = {"train__steps": 12}
"""Three updates: no knob acts later."""
CHANGES = [(settings, knob, value) for settings, knobs in PERTURBED for knob, value in knobs.items()]
ELSEWHERE = {"critic__pretraining_steps", "algorithm__name"}
"""A knob of another stage (`tests/pipeline/stages/test_values.py`); and a preset's name."""
Trajectory = tuple[Any, dict[int, dict[str, float]], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found: dict[str, Trajectory] = {}

    def of(**knobs: Any) -> Trajectory:
        return found.setdefault(str(knobs), found.get(str(knobs)) or run(tmp_path_factory.mktemp("setting"), **knobs))

    return of


@pytest.mark.parametrize("settings", [{}, RLOO])
def test_each_sign_keeps_its_advantages(tmp_path: Path, settings: dict[str, Any]) -> None:
    kept = [
        trainer(tmp_path / signs, **settings, algorithm__signs=signs)._rollout().advantages
        for signs in ("both", "positive", "negative")
    ]
    both, positive, negative = kept
    assert torch.equal(positive, both.clamp(min=0))
    assert torch.equal(negative, both.clamp(max=0))
    assert positive.any()
    assert negative.any()


def test_every_declared_knob_is_covered_below() -> None:
    knobs = {key.replace(".", "__") for key in dotted_keys() if key.partition(".")[0] in TRAINING}
    assert knobs == {knob for _, knob, _ in CHANGES} | ELSEWHERE


@pytest.mark.parametrize(("settings", "knob", "value"), CHANGES, ids=[knob for _, knob, _ in CHANGES])
def test_every_knob_changes_the_trajectory(
    settings: dict[str, Any], knob: str, value: Any, tmp_path: Path, trajectories: Any
) -> None:
    settings = {**SHORT, **settings}
    _, rows, state = run(tmp_path, **{**settings, knob: value})
    _, base_rows, base_state = trajectories(**settings)
    assert rows != base_rows
    assert state.keys() != base_state.keys() or any(not torch.equal(state[name], base_state[name]) for name in state)


@pytest.mark.parametrize(
    ("settings", "runtime"),
    [
        ({}, {"runtime__micro_batch_size": 1}),
        ({}, {"runtime__micro_batch_size": 3}),
        ({}, {"runtime__rollout_batch_size": 3}),
        (DENSE, {"runtime__rollout_batch_size": 3}),
        (HELD, {"runtime__micro_batch_size": 3}),
        (preset("a_star_po"), {"runtime__micro_batch_size": 3}),
        (FEW_BITS, {"runtime__micro_batch_size": 3}),
        # The last two sample beside the rollout.
        *((CONTROLS[name], {"runtime__sampler": "static"}) for name in ("fixed", "lora", "remax", "vine_ppo")),
        pytest.param(FEW_BITS, {"runtime__micro_batch_size": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_memory_settings_and_the_static_sampler_change_nothing(
    tmp_path: Path, runtime: dict[str, Any], settings: dict[str, Any], trajectories: Any
) -> None:
    outcome, rows, state = run(tmp_path, **runtime, **SHORT, **settings)
    base, base_rows, base_state = trajectories(**SHORT, **settings)
    assert (outcome.status, outcome.tokens) == (base.status, base.tokens)
    for step, row in base_rows.items():
        assert rows[step] == pytest.approx(row, rel=2e-3, abs=2e-4), step
    assert all(torch.allclose(state[name], tensor, atol=2e-3) for name, tensor in base_state.items())


def test_the_sampler_is_part_of_the_identity_of_training_alone() -> None:
    def precisions(**changes: Any) -> dict[str, str]:
        config = smoke(**changes)
        return {stage.name: stage.precision(config) for stage in STAGES if stage.precision}

    eager, static = precisions(), precisions(runtime__sampler="static")
    assert set(eager.values()) == {"fp32"}
    assert precisions(runtime__sampler="eager") == eager
    assert {name for name in eager if eager[name] != static[name]} == {"train"}
    assert static["train"] == "fp32, static sampler"


@pytest.mark.parametrize("cap", ["wall_clock_h", "generated_tokens", "memory_gib"])
def test_a_cap_ends_the_trial_as_budget(tmp_path: Path, cap: str) -> None:
    outcome, _, _ = run(tmp_path, **{f"caps__{cap}": 100 if cap == "generated_tokens" else 1e-9})
    assert outcome.status == "budget"
    assert cap in str(outcome.reason)
    assert outcome.steps < 24


ONE_STEP = {"train__num_mini_batches": 1, "train__num_epochs": 1}
"""An update: nothing after it in the update could notice a divergence."""


@pytest.mark.parametrize("checkpoint_updates", [1, 4])
@pytest.mark.parametrize("knobs", [{}, ONE_STEP])
def test_numbers_that_are_not_finite_end_the_trial_as_diverged_with_good_weights(
    tmp_path: Path, knobs: dict[str, Any], checkpoint_updates: int
) -> None:
    """lr 1e12 sends the weights beyond fp32 within a step or two."""
    huge = {"optimiser__lr": 1e12, "optimiser__max_grad_norm": 1e12}
    outcome, rows, state = run(tmp_path, runtime__checkpoint_updates=checkpoint_updates, **huge, **knobs)
    assert outcome.status == "diverged"
    assert "not finite" in str(outcome.reason)
    assert str(outcome.reason).endswith("the policy kept is that of step 0")
    assert all(torch.equal(state[f"lm.{name}"], tensor) for name, tensor in model().state_dict().items())
    assert rows  # the evidence up to there stays


@pytest.mark.parametrize(
    ("limits", "knobs", "words"),
    [
        ({"MIN_ENTROPY": 3.0}, {"optimiser__lr": 3e-2}, "entropy collapsed"),
        ({"MIN_ENTROPY": 0.0, "MAX_REPETITION": 0.6}, COLD, "repeated text"),
    ],
)
def test_a_collapse_ends_the_trial_with_the_weights_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], knobs: dict[str, Any], words: str
) -> None:
    """The weights are those of the newest checkpoint: that of the last healthy rollout, or that of the start."""
    for name, value in limits.items():
        monkeypatch.setattr(health, name, value)
    outcome, rows, state = run(tmp_path / "often", runtime__checkpoint_updates=1, **knobs)
    assert outcome.status == "diverged"
    assert words in str(outcome.reason)
    assert 0 < outcome.steps < 24
    assert max(rows) == outcome.steps
    assert int(str(outcome.reason).rpartition(" ")[2]) == outcome.steps - 4
    newest = load_latest(tmp_path / "often" / "checkpoints", print)
    assert newest is not None
    assert all(torch.equal(state[name], tensor) for name, tensor in newest["actor"].items())
    again, _, first = run(tmp_path / "rare", runtime__checkpoint_share=1e-9, **knobs)
    assert again.reason == str(outcome.reason).replace(f"step {outcome.steps - 4}", "step 0")
    assert all(torch.equal(first[f"lm.{name}"], tensor) for name, tensor in model().state_dict().items())
