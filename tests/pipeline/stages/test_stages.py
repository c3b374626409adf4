from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Recorder, artifacts, recorded, smoke
from safetensors.torch import load_file
from tinytrial import FEW_BITS

from pipeline.data.prompt_set import PromptSet, text_episodes
from pipeline.data.semantics import insulting_words, judge
from pipeline.models.adapters import load_rounded
from pipeline.models.loading import load_snapshot
from pipeline.models.out_of_memory import Room
from pipeline.rewards.base import Completions
from pipeline.rewards.scorers import reward_of
from pipeline.run.layout import Layout, TrialRecord
from pipeline.run.metrics import METRICS, merged
from pipeline.run.progress import TrialOutcome
from pipeline.trial import plan_trial, run_trial
from studies.definition.testable import ONLY_WITH

CHECKED = {key for when, keys in ONLY_WITH if when.switch.startswith(("data.source", "evaluate")) for key in keys}
"""Metrics of answers that can be checked."""
SCRATCH = {"hidden_size": 16, "heads": 2, "layers": 1}


@pytest.fixture(scope="module")
def outcome(smoke_layout: Layout) -> TrialOutcome:
    recorder = Recorder()
    found = run_trial(smoke(), smoke_layout, recorder)
    assert {state for _, state in recorder.stages} == {"cached"}
    return found


def test_a_trial_leaves_everything_it_promises(outcome: TrialOutcome) -> None:
    files = {
        name: {path.relative_to(one.path).as_posix() for path in one.path.rglob("*")}
        for name, one in outcome.artifacts.items()
    }
    assert {"policy/config.json", "samples.parquet", "status.json", "log/cost.json"} <= files["train"]
    assert not any("checkpoint" in name for name in files["train"])
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for names in files.values() for name in names)
    assert outcome.status == "complete"
    assert outcome.steps == 32


def test_metrics_are_the_declared_ones_and_within_their_bounds(outcome: TrialOutcome) -> None:
    frame = pd.read_parquet(outcome.artifacts["train"].path / "metrics.parquet")
    assert frame["step"].tolist() == list(range(33))
    assert set(frame.columns) - {"step"} <= METRICS.keys()
    only_when_asked_for = {
        "objective/greedy_reward", "objective/equal_groups", "objective/ent_coef", "objective/floor_weight",
        "objective/round_kl_per_token", "policy/kl_loss",
        "policy/kl_hinge", "policy/update_steps", "policy/old_kl", "policy/old_kl_coef",
        "policy/step_accepted", "policy/line_search", "policy/old_kl_exact", "policy/surrogate_gain",
        "policy/expected_gain", "value/grad_norm", *CHECKED,
    }  # fmt: skip
    wanted = {key for key in METRICS if key.startswith(("objective/", "policy/", "value/"))} - only_when_asked_for
    assert wanted == set(frame.columns) - {"step"}
    for key in wanted:
        values = frame[key].dropna()
        assert len(values), key
        assert values.min() >= METRICS[key].low - 1e-9, key
        assert values.max() <= METRICS[key].high + 1e-9, key


def test_the_summary_can_be_computed_again_from_the_rows(outcome: TrialOutcome) -> None:
    table = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    draws = pd.read_parquet(outcome.artifacts["reference"].path / "draws.parquet").merge(
        table[["prompt_id", "policy_gold"]]
    )
    assert len(draws) == 8 * len(table)
    heldout = pd.read_parquet(outcome.artifacts["prompts"].path / "heldout.parquet")["prompt"]
    assert table["prompt"].tolist() == heldout.tolist()[:64]
    wins, ties = (draws["policy_gold"] > draws["gold"]).mean(), (draws["policy_gold"] == draws["gold"]).mean()
    assert outcome.summary["eval/win_rate"] == pytest.approx(wins + ties / 2)
    assert outcome.summary["eval/tie_rate"] == pytest.approx(ties)
    assert outcome.summary["eval/gold_reference"] == pytest.approx(draws["gold"].mean())
    assert outcome.summary["eval/proxy_reference"] == pytest.approx(draws["proxy"].mean())
    spread = table["reference_gold"].var(ddof=0) + (table["reference_gold_std"] ** 2).mean()
    assert spread == pytest.approx(draws["gold"].var(ddof=0))
    assert outcome.summary["eval/kl_per_sequence"] == pytest.approx(table["kl"].mean())
    assert outcome.summary["eval/kl_per_token"] == pytest.approx(table["kl"].sum() / table["policy_length"].sum())
    assert outcome.summary["eval/length"] == pytest.approx(table["policy_length"].mean())
    of_others = {"eval/fault_rate", "eval/fault_rate_reference", *CHECKED}
    assert set(outcome.summary) == {key for key in METRICS if key.startswith("eval/")} - of_others
    assert json.loads((outcome.artifacts["evaluate"].path / "summary.json").read_text()) == dict(outcome.summary)


def test_accuracy_is_how_often_the_saved_reward_agrees_on_heldout_pairs(outcome: TrialOutcome) -> None:
    reward, data = outcome.artifacts["reward"], PromptSet.load(outcome.artifacts["prompts"], "train")
    pairs, cpu = pd.read_parquet(reward.path / "pairs.parquet"), torch.device("cpu")
    heldout, proxy, meta = pairs[pairs["heldout"]], reward_of(reward, cpu, Room("rows", 64)), reward.meta

    def score(prompt: str, text: str, gold: float) -> float:
        assert gold == judge(prompt, text).score
        room = len(data.tokenizer(prompt)["input_ids"]) + smoke().train.response_length
        return float(proxy(Completions(text_episodes(data.tokenizer, [prompt], [text], room, cpu), [prompt], [text])))

    first, second = (
        np.array([score(*row) for row in heldout[["prompt", side, f"gold_{side}"]].itertuples(index=False)])
        for side in ("first", "second")
    )
    agreement = ((first > second) == heldout["first_wins"].to_numpy()).mean()
    few = 3 / meta["heldout_pairs"]  # as text, an answer can have other tokens than it was sampled with
    assert meta["accuracy"] == pytest.approx(agreement, abs=few)
    assert meta["accuracy_low"] < meta["accuracy"] < meta["accuracy_high"]
    train, kept = (set(pairs.loc[pairs["heldout"] == side, "prompt"]) for side in (False, True))
    assert train
    assert not train & kept
    assert meta["heldout_prompts"] == len(kept) < meta["heldout_pairs"]


def test_an_untrained_policy_wins_half_by_independent_noise(outcome: TrialOutcome, smoke_layout: Layout) -> None:
    """lr 0: the policy is the reference, yet its answers are draws of its own, and equal those of the reference by
    chance alone."""
    same = run_trial(smoke(optimiser__lr=0.0), smoke_layout, Recorder())
    table = pd.read_parquet(same.artifacts["evaluate"].path / "prompts.parquet")
    assert (table["policy_completion"] == table["reference_completion"]).mean() < 0.2
    assert same.summary["eval/win_rate_low"] < 0.5 < same.summary["eval/win_rate_high"]
    assert same.summary["eval/kl_per_sequence"] == pytest.approx(0.0, abs=1e-5)
    shared = [column for column in table if column.startswith("reference_") and column != "reference_nats"]
    other = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    pd.testing.assert_frame_equal(table[shared], other[shared])


def test_the_same_trial_elsewhere_gives_the_same_bytes(tmp_path: Path, outcome: TrialOutcome) -> None:
    again = run_trial(smoke(), Layout(tmp_path), Recorder())
    for name, artifact in outcome.artifacts.items():
        assert again.artifacts[name].digest == artifact.digest, name


def test_a_reward_model_has_a_trunk_of_its_own_size(outcome: TrialOutcome, smoke_layout: Layout) -> None:
    sizes = {f"reward__learned__scratch__{name}": size for name, size in SCRATCH.items()}
    own = run_trial(smoke(reward__learned__trunk="scratch", **sizes), smoke_layout, Recorder()).artifacts
    made = json.loads((own["reward"].path / "trunk" / "config.json").read_text())
    base = json.loads((own["sft"].path / "model" / "config.json").read_text())
    assert (made["hidden_size"], made["vocab_size"]) == (16, base["vocab_size"])
    assert own["reward"].meta["parameters"] < 30_000, "11,136 of them are the embedding"
    assert own["sft"].digest == outcome.artifacts["sft"].digest
    assert reward_of(own["reward"], torch.device("cpu"), Room("rows", 9)).networks[0].config.hidden_size == 16


STILL: dict[str, Any] = {**FEW_BITS, "critic__init": "reward", "optimiser__lr": 0.0, "train__steps": 8}
"""The policy stays at its reference; the critic learns."""
STAGES = ("prompts", "sft", "reward", "reference", "train", "evaluate")


@pytest.fixture(scope="module")
def record(smoke_layout: Layout) -> TrialRecord:
    return recorded(smoke_layout, study="few", critic__lr=1e-3, **STILL)


def test_a_policy_in_nf4_that_has_not_moved_is_its_reference_in_training_and_in_evaluation(
    smoke_layout: Layout, record: TrialRecord
) -> None:
    found = artifacts(smoke_layout, record, STAGES)
    series = pd.read_parquet(found["train"].path / "metrics.parquet")["objective/kl_exact_per_token"].dropna()
    assert series.abs().max() < 1e-9
    assert abs(record.summary["eval/kl_per_token"]) < 1e-6
    on_texts = record.summary["eval/perplexity_texts"]
    assert on_texts == record.summary["eval/perplexity_texts_reference"] != found["sft"].meta["perplexity"]
    sft, cpu = found["sft"].path / "model", torch.device("cpu")
    policy, rounded, plain = (
        load(path, *rest).state_dict()
        for load, path, rest in (
            (load_snapshot, found["train"].path / "policy", (cpu,)),
            (load_rounded, sft, ("4bit", cpu, "")),
            (load_snapshot, sft, (cpu,)),
        )
    )
    assert all(torch.equal(policy[name], tensor) for name, tensor in rounded.items())
    assert any(not torch.equal(policy[name], tensor) for name, tensor in plain.items())


def test_value_pretraining_fits_an_adapter_that_trials_of_all_seeds_begin_with(smoke_layout: Layout) -> None:
    knobs = {**STILL, "critic__pretraining_steps": 8, "values__samples": 1, "critic__vf_coef": 0.0}
    outcome = run_trial(smoke(**knobs), smoke_layout, Recorder(), until="train")
    fitted = load_file(outcome.artifacts["critic"].path / "critic.safetensors")
    assert any(".lora_B." in name and bool(tensor.any()) for name, tensor in fitted.items())
    kept = load_file(outcome.artifacts["train"].path / "critic.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in fitted.items())
    plan = plan_trial(smoke(**knobs, train__seed=1), smoke_layout)
    assert next(planned for planned in plan if planned.stage == "critic").cached


SETTINGS = {
    "data.builtin.insults": 0.5,
    "judge.also": {"harmless": {"kind": "harmless"}},
    "reward.kind": "composite",
    "reward.parts": {
        "helpful": {"kind": "learned"},
        "harmless": {"kind": "learned", "preferences": "judge:harmless", "weight": 0.0},
    },
    "reward.learned.label_noise": 0.0,
    "floor.part": "harmless",
    "floor.at": 5.0,
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> TrialOutcome:
    return run_trial(smoke(**SETTINGS), Layout(tmp_path_factory.mktemp("two")), Recorder())


def test_each_judge_labels_the_same_answers_by_its_own_score(two: TrialOutcome) -> None:
    parts = two.artifacts["reward"].path / "parts"
    helpful, harmless = (pd.read_parquet(parts / name / "pairs.parquet") for name in ("helpful", "harmless"))
    assert helpful["first"].tolist() == harmless["first"].tolist()
    for row in helpful.head(100).to_dict("records"):
        assert row["gold_first"] == judge(row["prompt"], row["first"], insults=True).score
    for row in harmless.to_dict("records"):
        assert row["gold_first"] == -insulting_words(row["prompt"], row["first"])
        if row["gold_first"] != row["gold_second"]:
            assert row["first_wins"] == (row["gold_first"] > row["gold_second"])
    assert (harmless["gold_first"] != harmless["gold_second"]).any()


def test_further_judges_are_recorded_in_training_and_in_the_evaluation(two: TrialOutcome) -> None:
    table = pd.read_parquet(two.artifacts["evaluate"].path / "prompts.parquet")
    found = [-insulting_words(*row) for row in zip(table["prompt"], table["policy_completion"], strict=True)]
    assert table["policy_gold/harmless"].tolist() == found
    assert two.summary["eval/gold/harmless"] == pytest.approx(sum(found) / len(found))
    draws = pd.read_parquet(two.artifacts["reference"].path / "draws.parquet")
    assert two.summary["eval/gold_reference/harmless"] == pytest.approx(draws["gold/harmless"].mean())
    rows = merged(two.artifacts["train"].path / "metrics.jsonl")
    rollouts = [row for row in rows.values() if "objective/gold" in row]
    assert all(row["objective/gold/harmless"] <= 0 for row in rollouts)
    assert all("objective/floor_weight" in row for row in rollouts)
    assert rollouts[-1]["objective/floor_weight"] > 0
