"""The loop on a real, tiny network: invariants of the first update, liveness of every knob, resume."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Recorder

from pipeline.budget import Ledger, Shape
from pipeline.config import ModelConfig, PpoConfig, RuntimeConfig
from pipeline.models.loading import freeze, scratch_model
from pipeline.models.policy import Episodes
from pipeline.ppo import checkpoint
from pipeline.ppo.rollout import Scores, collect
from pipeline.ppo.trainer import Outcome, Trainer
from pipeline.ppo.update import gradient_step
from pipeline.tracking import MetricsLog, merged

VOCAB, PAD, EOS = 31, 0, 1
SIZES = ModelConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32)
BASE: dict[str, Any] = {
    "steps": 24,
    "batch_size": 8,
    "num_mini_batches": 2,
    "num_ppo_epochs": 2,
    "response_length": 10,
    "lr": 1e-2,
    "vf_coef": 0.5,
}
SHAPE = Shape(VOCAB, 16, 1, 32)


def score(episodes: Episodes, rows: Sequence[int]) -> Scores:
    """Likes low token numbers; deterministic."""
    mask = episodes.response_mask
    low = ((episodes.responses < 10) & mask).sum(1).float() / mask.sum(1) * 2 - 0.5
    return Scores(low, low * 2, [str(row) for row in rows], ["text"] * len(rows))


def model() -> Any:
    network = scratch_model(SIZES, VOCAB, PAD, EOS, 64, seed=3)
    for parameter in network.parameters():
        parameter.data.mul_(2.0)
    return network


def trainer(folder: Path, reporter: Recorder | None = None, runtime: dict[str, Any] | None = None, **knobs: Any) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.jsonl"
    generator = torch.Generator().manual_seed(0)
    queries = torch.randint(2, VOCAB, (20, 4), generator=generator)
    mask = torch.arange(4) >= torch.randint(0, 4, (20, 1), generator=generator)
    return Trainer(
        PpoConfig(**{**BASE, **knobs}),
        RuntimeConfig(**{"checkpoint_updates": 2, **(runtime or {})}),
        model(),
        freeze(model()),
        score,
        queries,
        mask,
        {"eos_id": EOS, "pad_id": PAD},
        lambda offset: MetricsLog.resume(path, offset) if offset else MetricsLog(path),
        reporter or Recorder(),
        Ledger(SHAPE),
        folder / "checkpoints",
    )


def run(folder: Path, **knobs: Any) -> tuple[Outcome, dict[int, dict[str, float]], dict[str, torch.Tensor]]:
    one = trainer(folder, **knobs)
    outcome = one.run()
    return outcome, merged(folder / "metrics.jsonl"), one.actor_critic.state_dict()


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
    _, rows, state = run(tmp_path, lr=0.0)
    start = model().state_dict()
    assert all(torch.equal(state[f"lm.{name}"], tensor) for name, tensor in start.items())
    assert not state["value_head.weight"].any()
    assert all(row["policy/ratio"] == pytest.approx(1.0, abs=1e-5) for row in rows.values() if "policy/ratio" in row)
    assert all(abs(row["objective/kl"]) < 1e-4 for row in rows.values() if "objective/kl" in row)


def test_it_learns_what_the_reward_asks_for(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path, steps=240, lr=3e-3, kl_coef=0.0)
    series = [row["objective/scores"] for row in rows.values() if "objective/scores" in row]
    assert sum(series[-5:]) / 5 > sum(series[:5]) / 5 + 0.5


def test_entropy_and_divergences_are_never_negative(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path)
    for row in rows.values():
        for key in ("policy/entropy", "objective/entropy", "policy/approxkl", "policy/approxkl_k3", "objective/kl_k3_per_token"):
            assert row.get(key, 0.0) >= 0.0, key


def test_the_gradient_is_that_of_the_mean_over_the_mini_batch_tokens(tmp_path: Path) -> None:
    """Against autograd on the losses as PPO.md writes them, over one mini-batch at once, without masks or micro-batches."""
    one = trainer(tmp_path, runtime={"micro_batch_size": 3}, kl_coef=0.3)
    actor, cfg = one.actor_critic, one.cfg
    torch.nn.init.normal_(actor.value_head.weight, generator=torch.Generator().manual_seed(5))
    rows = torch.arange(8)
    batch = (one.queries[rows], one.query_mask[rows], rows.tolist(), 0, cfg.kl_coef, cfg, 8, one.token_ids, one.ledger.timed)
    rollout = collect(actor, one.reference, score, *batch)
    mini = torch.tensor([6, 1, 3, 4])
    total, tokens = torch.zeros(()), 0
    for row in mini.tolist():
        length = int(rollout.episodes.lengths[row])
        log_pi, values = actor(rollout.episodes.take(torch.tensor([row])), 1.0)
        chosen = log_pi[range(length), rollout.episodes.responses[row, :length]]
        ratio = (chosen - rollout.logprobs[row, :length]).exp()
        advantages, returns = rollout.advantages[row, :length], rollout.returns[row, :length]
        surrogate = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - cfg.cliprange, 1 + cfg.cliprange))
        total = total + surrogate.sum() + cfg.vf_coef * 0.5 * ((values - returns) ** 2).sum()
        tokens += length
    gradients = torch.autograd.grad(total / tokens, list(actor.parameters()))
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))  # type: ignore[arg-type]
    step = gradient_step(rollout, mini, one.actor, one.optimiser, one.accelerator, cfg, micro_batch=3)
    assert step["policy/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert step["policy/ratio"] == pytest.approx(1.0, abs=1e-6)


# --- liveness ----------------------------------------------------------------------------------------------

PERTURBED: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "steps": {"steps": 28},
    "batch_size": {"batch_size": 4},
    "num_mini_batches": {"num_mini_batches": 4},
    "num_ppo_epochs": {"num_ppo_epochs": 3},
    "response_length": {"response_length": 7},
    "temperature": {"temperature": 0.8},
    "lr": {"lr": 5e-3},
    "value_head_lr": {"value_head_lr": 1e-1},
    "lr_schedule": {"lr_schedule": "constant"},
    "adam_eps": {"adam_eps": 1e-3},
    "max_grad_norm": {"max_grad_norm": 1e-3},
    "cliprange": {"cliprange": 0.01},
    "cliprange_value": {"cliprange_value": 0.01},
    "gamma": {"gamma": 0.5},
    "gae_lambda": {"gae_lambda": 0.5},
    "kl_coef": {"kl_coef": 1.0},
    "vf_coef": {"vf_coef": 1.0},
    "ent_coef": {"ent_coef": 0.5},
    "whiten_rewards": {"whiten_rewards": True},
    "whiten_advantages": {"whiten_advantages": False},
    "missing_eos": {"missing_eos": "none"},
    "missing_eos_penalty": {"missing_eos_penalty": 3.0},
    "kl_control": {"kl_control": "adaptive"},
    "kl_target": {"kl_control": "adaptive", "kl_target": 0.5},
    "kl_horizon": {"kl_control": "adaptive", "kl_horizon": 10.0},
    "lr_guard": {"lr_guard": True},
    "lr_guard_kl": {"lr_guard": True, "lr_guard_kl": 100.0},
    "lr_guard_factor": {"lr_guard": True, "lr_guard_factor": 0.1},
    "lr_guard_steps": {"lr_guard": True, "lr_guard_steps": 1},
    "max_wall_clock_h": {"max_wall_clock_h": 1e-9},
    "max_generated_tokens": {"max_generated_tokens": 1},
    "max_memory_gib": {"max_memory_gib": 1e-6},
}
ONLY_ONE_VALUE = {"critic"}


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Final weights of the base and of the settings that other knobs refine."""
    settings: dict[str, dict[str, Any]] = {"base": {}, "adaptive": {"kl_control": "adaptive"}, "guard": {"lr_guard": True}}
    return {name: run(tmp_path_factory.mktemp(name), **knobs) for name, knobs in settings.items()}


def test_every_declared_knob_is_covered_below() -> None:
    assert set(PpoConfig.model_fields) == PERTURBED.keys() | ONLY_ONE_VALUE


@pytest.mark.parametrize("knob", PERTURBED)
def test_every_knob_changes_the_trajectory(knob: str, tmp_path: Path, trajectories: dict[str, Any]) -> None:
    change = PERTURBED[knob]
    against = "base"
    if len(change) > 1:
        against = "adaptive" if "kl_control" in change else "guard"
    _, rows, state = run(tmp_path, **change)
    _, base_rows, base_state = trajectories[against]
    assert rows != base_rows
    assert any(not torch.equal(state[name], base_state[name]) for name in state)


# --- what must not matter ----------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", [{"micro_batch_size": 1}, {"micro_batch_size": 3}, {"rollout_batch_size": 3}])
def test_memory_settings_change_nothing(tmp_path: Path, runtime: dict[str, Any], trajectories: dict[str, Any]) -> None:
    _, rows, state = run(tmp_path, runtime=runtime)
    _, base_rows, base_state = trajectories["base"]
    for step, row in base_rows.items():
        for key, value in row.items():
            assert rows[step][key] == pytest.approx(value, rel=2e-3, abs=2e-4), (step, key)
    for name, tensor in base_state.items():
        assert torch.allclose(state[name], tensor, atol=2e-3), name


def test_same_seed_same_bytes(tmp_path: Path, trajectories: dict[str, Any]) -> None:
    _, rows, state = run(tmp_path)
    _, base_rows, base_state = trajectories["base"]
    assert rows == base_rows
    assert all(torch.equal(state[name], base_state[name]) for name in state)


# --- resume ------------------------------------------------------------------------------------------------

CONTROLS: list[dict[str, Any]] = [{}, {"kl_control": "adaptive", "kl_horizon": 20.0}, {"lr_guard": True, "lr_guard_steps": 5}]


class Killed(BaseException):
    pass


class Killer(Recorder):
    """Dies when the given update has been reported, as a process would: without any farewell."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def metrics(self, step: int, values: Any) -> None:
        super().metrics(step, values)
        if len(self.steps) == self.after:
            raise Killed


@pytest.mark.parametrize("knobs", CONTROLS)
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, knobs: dict[str, Any], after: int) -> None:
    whole, _, state = run(tmp_path / "whole", **knobs)
    victim = trainer(tmp_path / "cut", reporter=Killer(after), **knobs)
    with pytest.raises(Killed):
        victim.run()
    again, _, resumed = run(tmp_path / "cut", **knobs)
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert all(torch.equal(state[name], resumed[name]) for name in state)
    assert again == whole


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    whole, _, _ = run(tmp_path / "whole")
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", reporter=Killer(5)).run()
    newest = checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1  # one bit of one weight
    newest.write_bytes(content)
    recorder = Recorder()
    assert trainer(tmp_path / "cut", reporter=recorder).run() == whole
    assert "falling back" in recorder.warnings[0]
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_metrics_that_do_not_fit_the_checkpoint_start_the_trial_over(tmp_path: Path, harm: str) -> None:
    whole, _, _ = run(tmp_path / "whole")
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", reporter=Killer(5)).run()
    path = tmp_path / "cut" / "metrics.jsonl"
    path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:100])
    recorder = Recorder()
    assert trainer(tmp_path / "cut", reporter=recorder).run() == whole
    assert "starting over" in recorder.warnings[0]
    assert path.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_two_checkpoints_are_kept_and_none_can_carry_code(tmp_path: Path) -> None:
    run(tmp_path)
    found = checkpoint.checkpoints(tmp_path / "checkpoints")
    assert [path.name.split(".")[0] for path in found] == ["update_00000004", "update_00000006"]
    checkpoint.save(tmp_path / "evil", 1, {"x": Path})
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load_latest(tmp_path / "evil", print)


# --- how a trial can end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", ["max_wall_clock_h", "max_generated_tokens", "max_memory_gib"])
def test_a_cap_ends_the_trial_as_budget(tmp_path: Path, cap: str) -> None:
    outcome, _, _ = run(tmp_path, **{cap: 100 if cap == "max_generated_tokens" else 1e-9})
    assert outcome.status == "budget"
    assert cap in str(outcome.reason)
    assert outcome.steps < 24


def test_numbers_that_are_not_finite_end_the_trial_as_diverged(tmp_path: Path) -> None:
    # lr 1e30 sends the weights beyond fp32 within a step or two.
    outcome, rows, state = run(tmp_path, lr=1e30, max_grad_norm=1e30)
    assert outcome.status == "diverged"
    assert "not finite" in str(outcome.reason)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())
    assert rows  # the evidence up to there stays


@pytest.mark.parametrize("checkpoint_updates", [1, 4])
def test_a_divergence_in_the_last_step_of_an_update_is_found_and_keeps_good_weights(tmp_path: Path, checkpoint_updates: int) -> None:
    """One step an update: nothing after it in the update could notice. What is kept does not depend on the checkpoints."""
    one_step = {"num_mini_batches": 1, "num_ppo_epochs": 1, "lr": 1e30, "max_grad_norm": 1e30}
    outcome, _, state = run(tmp_path, runtime={"checkpoint_updates": checkpoint_updates}, **one_step)
    assert outcome.status == "diverged"
    assert outcome.steps == 0
    assert str(outcome.reason).endswith("the policy kept is that of step 0")
    assert all(torch.equal(state[f"lm.{name}"], tensor) for name, tensor in model().state_dict().items())


def test_a_rollout_that_is_not_finite_ends_the_trial_as_diverged(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    one.score = lambda episodes, rows: Scores(torch.full((len(rows),), float("nan")), torch.zeros(len(rows)), ["p"] * 8, ["t"] * 8)
    outcome = one.run()
    assert outcome.status == "diverged"
    assert "objective/scores" in str(outcome.reason)


def test_the_ledger_counts_what_was_sampled(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    outcome = one.run()
    rows = merged(tmp_path / "metrics.jsonl")
    sampled = sum(row["objective/length"] * 8 for row in rows.values() if "objective/length" in row)
    assert outcome.tokens == one.ledger.generated_tokens == pytest.approx(sampled)
    cost = one.ledger.cost()
    assert cost["wall_s"] > 0
    assert cost["tflop"] > 0
