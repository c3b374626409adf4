"""The shipped maps: which column of each program becomes which metric, at which gradient step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trl_logs import GROUPS, GRPO, rows

from pipeline.errors import UserError
from studies.importing.trials import ImportedTrial

Read = Callable[..., ImportedTrial]
PPO = {key: value for key, value in rows()[3].items() if key != "step"}
OF_PPO = {
    **{key: value for key, value in PPO.items() if key.startswith("objective/")}, "policy/lr": PPO["lr"],
    "policy/approxkl": PPO["policy/approxkl_avg"], "policy/pg_clipfrac": PPO["policy/clipfrac_avg"],
    "policy/entropy": PPO["policy/entropy_avg"], "policy/pg_loss": -0.01, "value/vf_loss": 0.1,
    "value/vf_clipfrac": 0.0, "policy/ratio": PPO["val/ratio"],
}  # fmt: skip
OF_GROUPS = {
    "objective/scores": 0.7, "objective/scores_std": 0.2, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
    "objective/length": 48.0, "objective/eos_rate": 0.75, "policy/lr": 1e-6, "policy/grad_norm": 0.5,
    "reward/accuracy_reward": 0.4,
}  # fmt: skip
VERL = {
    "critic/score/mean": 0.7, "critic/score/max": 1.0, "critic/rewards/mean": 0.6, "critic/vf_explained_var": 0.4,
    "critic/vf_loss": 0.8, "critic/vf_clipfrac": 0.05, "critic/grad_norm": 2.0, "actor/kl_loss": 0.08,
    "actor/entropy": 1.2, "actor/pg_clipfrac": 0.03, "actor/pg_clipfrac_lower": 0.0, "actor/grad_norm": 0.5,
    "actor/lr": 1e-6, "actor/reward_kl_penalty": 0.02, "actor/reward_kl_penalty_coeff": 0.05,
    "response_length/mean": 48.0, "timing_s/gen": 3.0, "val-core/gsm8k/reward/mean@1": 0.5,
}  # fmt: skip
OF_VERL = {
    "objective/scores": 0.7, "objective/rlhf_reward": 0.6, "objective/kl_per_token": 0.02, "objective/kl_coef": 0.05,
    "objective/length": 48.0, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
    "policy/grad_norm": 0.5, "policy/lr": 1e-6, "value/vf_clipfrac": 0.05, "value/explained_variance": 0.4,
    "value/grad_norm": 2.0,
}  # fmt: skip
OPENRLHF = {
    "policy_loss": 0.02, "entropy_loss": 1.2, "actor_lr": 1e-6, "actor_grad_norm": 0.5, "reward": 0.7, "kl": 0.01,
    "logprobs_diff": 0.02, "ppo_clip_ratio": 0.03, "response_length": 48.0, "truncated": 0.25, "critic_loss": 0.4,
    "critic_grad_norm": 2.0,
}  # fmt: skip
OF_OPENRLHF = {
    "objective/kl_per_token": 0.02, "policy/pg_loss": 0.02, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
    "policy/lr": 1e-6, "policy/grad_norm": 0.5, "value/vf_loss": 0.4, "value/grad_norm": 2.0, "objective/scores": 0.7,
    "objective/length": 48.0, "objective/eos_rate": 0.75,
}  # fmt: skip
ROLLOUT = {
    "rollout/reward_mean": 0.71, "rollout/reward_std": 0.2, "rollout/response_length_mean": 49.0,
    "rollout/truncated_rate": 0.24,
}  # fmt: skip
OF_ROLLOUT = {
    "objective/scores": 0.71,
    "objective/scores_std": 0.2,
    "objective/length": 49.0,
    "objective/eos_rate": 0.76,
}
PLAIN = {"reward": 0.7, "proxy": 9.0, "lr": 1e-6, "kl": 0.1, "value_loss": 0.2, "objective/kl": 3.0}
OF_PLAIN = {"objective/scores": 0.7, "objective/kl": 3.0, "policy/lr": 1e-6, "value/vf_loss": 0.2}


@pytest.mark.parametrize("prefix", ["", "train/"])
@pytest.mark.parametrize(
    ("program", "row", "metrics"),
    [
        ("trl-ppo", PPO, OF_PPO),
        ("trl-grpo", GRPO, {**OF_GROUPS, "objective/kl_k3_per_token": 0.02, "eval/proxy": 0.8}),
        ("trl-rloo", GROUPS, {**OF_GROUPS, "objective/kl_per_token": 0.02, "policy/pg_loss": 0.01}),
        ("verl", VERL, OF_VERL),
        ("openrlhf", OPENRLHF, OF_OPENRLHF),
        ("openrlhf", OPENRLHF | ROLLOUT, OF_OPENRLHF | OF_ROLLOUT),
        ("plain", PLAIN, OF_PLAIN),
    ],
)
def test_columns_become_metrics(
    read: Read, program: str, row: dict[str, float], metrics: dict[str, float], prefix: str
) -> None:
    logged = {f"{prefix}{key}": value for key, value in row.items()}
    found = read([{"step": 1, **logged}, {"step": 2, **logged}], program=program, steps_per_update=4)
    assert {ours: series.iloc[-1] for ours, series in found.series.items()} | found.summary == pytest.approx(metrics)
    assert found.problems == []
    columns = {text.partition(" (")[0] for text in found.taken} | {*found.left}
    assert columns == {*row}, "each is accounted for"


def test_a_file_changes_the_map_that_it_names(read: Read) -> None:
    changed = read(
        [{"step": 1, "data": VERL}],  # as verl's file logger writes
        program="verl",
        metrics={
            "objective/kl_k3_per_token": {"key": "actor/kl_loss", "factor": 0.25},
            "eval/gold": ["none", "val-core/gsm8k/reward/mean@1"],
            "policy/lr": None,
        },
    )
    assert changed.series["objective/kl_k3_per_token"].tolist() == [0.02]
    assert changed.summary == {"eval/gold": 0.5}
    assert "policy/lr" not in changed.series
    assert changed.series["policy/entropy"].tolist() == [1.2]


@pytest.mark.parametrize(
    ("x", "per", "sampled"),
    [([1, 2, 3], 1, [0, 1, 2]), ([2, 4, 6], 2, [0, 2, 4]), ([1, 2], 2, [0, 1]), ([16], 2, [14])],
)
def test_rows_of_gradient_steps(read: Read, x: list[int], per: int, sampled: list[int]) -> None:
    found = read([{"step": step, **GRPO} for step in x], program="trl-grpo", steps_per_update=per)
    assert found.series["objective/kl_k3_per_token"].index.tolist() == sampled, "no rollout is before the last one"
    assert found.series["policy/entropy"].index.tolist() == x


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"metrics": {"objective/kll": "kl"}}, r"metrics: unknown 'objective/kll'; did you mean 'objective/kl'\?"),
        ({"metrics": {"objective/kl": {"key": "kl", "unit": "bans"}}}, "no way from 'bans' to 'nats per sequence'"),
        ({"steps_per_updates": 4}, r"unknown key 'steps_per_updates'; did you mean 'steps_per_update'\?"),
        ({"metrics": {"objective/gold": "epoc"}}, r"metrics.objective/gold: no log has 'epoc'; did you mean 'epoch'\?"),
        ({"step": "steep"}, r"no column 'steep'; did you mean 'step'\?"),
        (
            {"metrics": {"objective/kl": {"key": "lr", "unit": "nats per token"}}},
            "needs a column of lengths, or `length`",
        ),
        ({"steps_per_update": None}, "'step' counts updates; say how many gradient steps one takes: --steps-per-up"),
    ],
)
def test_faults_of_a_map(read: Read, entries: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read(rows(updates=2), **entries)
    assert "\n" not in str(caught.value)
