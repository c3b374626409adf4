"""The names of TRL's GRPO and RLOO, of verl and of OpenRLHF: what is taken, what is left and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trl_logs import GROUPS, GRPO, write

from pipeline.run.layout import Layout
from pipeline.run.metrics import METRICS, known
from studies.importing.mapping import MappingFile
from studies.importing.programs import PROGRAMS, detected, meaning_of, why_ignored
from studies.importing.rows import LogRow
from studies.importing.trajectory import Trajectory, trajectory

Run = Callable[..., str]
VERL = {
    "critic/score/mean": 0.7, "critic/score/max": 1.0, "critic/rewards/mean": 0.6, "critic/advantages/mean": 0.0,
    "critic/returns/mean": 0.6, "critic/values/mean": 0.5, "critic/vf_explained_var": 0.4, "critic/vf_loss": 0.8,
    "critic/vf_clipfrac": 0.05, "critic/vpred_mean": 0.5, "critic/grad_norm": 2.0, "critic/lr": 1e-5,
    "actor/pg_loss": 0.02, "actor/kl_loss": 0.08, "actor/kl_coef": 0.001, "actor/entropy": 1.2,
    "actor/pg_clipfrac": 0.03, "actor/ppo_kl": -0.001, "actor/pg_clipfrac_lower": 0.0, "actor/grad_norm": 0.5,
    "actor/lr": 1e-6, "actor/reward_kl_penalty": 0.02, "actor/reward_kl_penalty_coeff": 0.05,
    "response_length/mean": 48.0, "response_length/clip_ratio": 0.1, "response_length_non_aborted/mean": 48.0,
    "response/aborted_ratio": 0.0, "prompt_length/mean": 12.0, "timing_s/gen": 3.0, "timing_per_token_ms/gen": 0.1,
    "perf/throughput": 900.0, "training/global_step": 1, "training/epoch": 0, "global_seqlen/mean": 60.0,
    "val-core/gsm8k/reward/mean@1": 0.5,
}  # fmt: skip
OPENRLHF = {
    "policy_loss": 0.02, "entropy_loss": 1.2, "actor_lr": 1e-6, "actor_grad_norm": 0.5, "reward": 0.7, "return": 0.6,
    "kl": 0.01, "logprobs_diff": 0.02, "ppo_clip_ratio": 0.03, "ppo_kl": -0.001, "response_length": 48.0,
    "total_length": 60.0, "truncated": 0.25, "group_reward_std": 0.2, "critic_loss": 0.4, "values": 0.5,
    "critic_lr": 1e-5, "critic_grad_norm": 2.0, "rollout/reward_mean": 0.71, "rollout/reward_std": 0.2,
    "rollout/response_length_mean": 49.0, "rollout/truncated_rate": 0.24, "rollout/num_samples": 64.0,
    "timing/ppo_train": 3.0,
}  # fmt: skip


def read(row: dict[str, Any], axis: str = "step", updates: int = 3, **mapping: Any) -> Trajectory:
    rows = [LogRow(at, {axis: at, **{key: value * at for key, value in row.items()}}) for at in range(1, updates + 1)]
    return trajectory(rows, MappingFile.model_validate(mapping), "a-seed0.jsonl")


def last(found: Trajectory) -> dict[str, float]:
    return {ours: float(one.values[-1]) for ours, one in found.series.items()} | found.summary


SHARED = {
    "objective/scores": 0.7, "objective/scores_std": 0.2, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
    "objective/length": 48.0, "objective/eos_rate": 0.75, "policy/lr": 1e-6, "policy/grad_norm": 0.5,
    "reward/accuracy_reward": 0.4,
}  # fmt: skip


def test_grpo_and_rloo_call_two_estimators_of_the_kl_by_one_name() -> None:
    assert last(read(GRPO, updates=1, program="trl-grpo")) == pytest.approx(
        {**SHARED, "objective/kl_k3_per_token": 0.02, "eval/proxy": 0.8}
    )
    assert last(read(GROUPS, updates=1, program="trl-rloo")) == pytest.approx(
        {**SHARED, "objective/kl_per_token": 0.02, "policy/pg_loss": 0.01}
    )
    either = read(GROUPS, updates=1)
    assert last(either) == pytest.approx(SHARED), "neither is guessed"
    assert either.read.ignored["kl"] == (
        "GRPO logs the k3 estimator under this name, RLOO k1; give --program trl-grpo or trl-rloo, or say it per arm"
        " in the mapping"
    )
    assert last(read(GRPO, updates=1))["objective/kl_k3_per_token"] == 0.02, "keys that only GRPO logs decide"


def test_steps_of_grpo_are_gradient_steps() -> None:
    found = read(GRPO, updates=3)
    assert found.series["objective/scores"].steps.tolist() == [0, 1, 2]
    assert found.series["policy/entropy"].steps.tolist() == [1, 2, 3]


def test_verl() -> None:
    assert last(read(VERL, updates=1, steps_per_update=4)) == pytest.approx(
        {
            "objective/scores": 0.7, "objective/rlhf_reward": 0.6, "objective/kl_per_token": 0.02,
            "objective/kl_coef": 0.05, "objective/length": 48.0, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
            "policy/dual_clipfrac": 0.0, "policy/grad_norm": 0.5, "policy/lr": 1e-6, "value/vf_clipfrac": 0.05,
            "value/explained_variance": 0.4, "value/grad_norm": 2.0,
        }
    )  # fmt: skip
    mapped = read(
        VERL,
        updates=1,
        steps_per_update=4,
        metrics={"objective/kl_k3_per_token": {"key": "actor/kl_loss", "factor": 0.25}},
    )
    assert last(mapped)["objective/kl_k3_per_token"] == pytest.approx(0.02), "as the reason for leaving it out says"


def test_openrlhf() -> None:
    row = {f"train/{key}": value for key, value in OPENRLHF.items()}
    assert last(read(row, "train/global_step", updates=1, steps_per_update=4)) == pytest.approx(
        {
            "objective/scores": 0.71, "objective/scores_std": 0.2, "objective/length": 49.0,
            "objective/eos_rate": 0.76, "objective/kl_per_token": 0.02, "policy/pg_loss": 0.02,
            "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03, "policy/lr": 1e-6, "policy/grad_norm": 0.5,
            "value/vf_loss": 0.4, "value/grad_norm": 2.0,
        }
    )  # fmt: skip


@pytest.mark.parametrize(("row", "name"), [(GRPO, "trl-grpo"), (VERL, "verl"), (OPENRLHF, "openrlhf")])
def test_a_program_is_known_by_its_keys_and_every_key_of_it_is_known(row: dict[str, float], name: str) -> None:
    program = detected(row)
    assert program is PROGRAMS[name]
    unknown = [key for key in row if meaning_of(program, key) is None and why_ignored(program, key) is None]
    assert [key for key in unknown if key != "training/global_step"] == []


def test_every_name_leads_to_a_metric_that_there_is() -> None:
    for program in PROGRAMS.values():
        assert program.source
        for meaning in program.names.values():
            assert known(meaning.metric)
            assert METRICS[meaning.metric].unit


def test_a_kl_that_is_0_everywhere_was_not_measured() -> None:
    found = read({**OPENRLHF, "logprobs_diff": 0.0}, "global_step", steps_per_update=4)
    assert "objective/kl_per_token" not in found.series
    assert found.dropped["objective/kl_per_token"] == ("0 in all 3 rows, as a program writes that does not measure it")
    assert (
        "objective/kl_per_token"
        in read({**OPENRLHF, "logprobs_diff": 0.0}, "global_step", 1, steps_per_update=4).series
    ), "a single record at the reference is 0 in truth"


def verl_logs(root: Path, arms: dict[str, float], seeds: tuple[int, ...] = (0, 1, 2)) -> Path:
    """As verl's file logger writes them."""
    for arm, level in arms.items():
        for seed in seeds:
            path = root / arm / f"seed_{seed}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [
                {"step": at, "data": {**VERL, "critic/score/mean": level + 0.01 * at * (1 + 0.1 * seed)}}
                for at in range(1, 21)
            ]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


@pytest.mark.usefixtures("no_mlflow")
def test_verl_through_the_command(tmp_path: Path, succeeds: Run, refused: Run, drawn: Run) -> None:
    logs = verl_logs(tmp_path / "logs", {"tight": 0.2, "loose": 0.5})
    told = refused("import", logs, "--name", "mine")
    assert "x-axis 'step' counts updates; say how many gradient steps an update takes: --steps-per-update" in told
    told = succeeds("import", logs, "--name", "mine", "--steps-per-update", 4)
    assert "Read as: names of verl; x-axis 'step' counts updates of 4 gradient steps" in told
    assert "objective/eos_rate" not in told
    assert "  timing_s/gen, timing_per_token_ms/gen: seconds" in told
    listed = {key for line in told.splitlines() for key in VERL if key in line}
    assert listed == set(VERL), "every key is taken or ignored, and said to be"
    page = drawn("mine", "effects")
    assert "tight (−0.3" in page
    assert "worse than the baseline loose" in page


@pytest.mark.usefixtures("no_mlflow")
def test_grpo_through_the_command(tmp_path: Path, succeeds: Run, drawn: Run, layout: Layout) -> None:
    row = {key: value for key, value in GRPO.items() if not key.startswith("eval_")}
    for arm, gain in (("a", 0.1), ("b", 0.2)):
        for seed in (0, 1):
            made = [{**row, "reward": gain * at + 0.01 * seed, "step": at} for at in range(1, 21)]
            write(tmp_path / "logs" / arm / f"seed_{seed}" / "trainer_state.json", made, state=True)
    told = succeeds("import", "logs", "--name", "mine", "--program", "trl-grpo")
    assert "objective/kl_k3_per_token: kl" in told
    assert "objective/eos_rate: 1 - completions/clipped_ratio" in told
    page = drawn("mine", "kl")
    assert "b (+1.95" in page
    assert (layout.study("mine", "imported").path / "report" / "figures" / "kl.svg").exists(), "k3, as there is no k1"


@pytest.mark.usefixtures("no_mlflow")
def test_no_claim_survives_on_a_kl_that_was_not_logged(
    tmp_path: Path, succeeds: Run, ablate: Callable[..., Any]
) -> None:
    for seed in (0, 1):
        path = tmp_path / "logs" / f"a-seed{seed}.jsonl"
        path.parent.mkdir(exist_ok=True)
        rows = [{"global_step": at, **OPENRLHF, "logprobs_diff": 0.0} for at in range(1, 9)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = succeeds("import", "logs", "--name", "mine", "--steps-per-update", 4)
    assert "logprobs_diff: as objective/kl_per_token: 0 in all 8 rows" in told
    file = Path("mine.yaml")
    file.write_text(
        file.read_text().partition("# falsifiers")[0] + "falsifiers:\n  - {name: near, claim: it stays near, metric:"
        " objective/kl_per_token, op: '>', threshold: 0.5, before_step: 16}\n"
    )
    assert ablate("falsify", "mine").exit_code == 3
