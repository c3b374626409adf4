"""All six stages for real, on the smoke profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke

from pipeline.models.out_of_memory import Room
from pipeline.rewards.scorers import reward_of
from pipeline.run.layout import Layout
from pipeline.run.metrics import METRICS
from pipeline.run.progress import TrialOutcome
from pipeline.trial import run_trial

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
    promised = {
        "prompts": "sft.parquet train.parquet heldout.parquet tokenizer/tokenizer.json",
        "sft": "model/model.safetensors summary.json",
        "reward": "trunk/model.safetensors head.safetensors pairs.parquet reference_samples.parquet",
        "train": "policy/model.safetensors policy/config.json critic.safetensors metrics.jsonl metrics.parquet"
        " samples.parquet status.json log/cost.json",
        "reference": "draws.parquet summary.json",
        "evaluate": "prompts.parquet samples.parquet summary.json",
    }
    for name, some in promised.items():
        assert set(some.split()) <= files[name]
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
        "policy/expected_gain", "value/grad_norm",
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
    of_others = {"eval/fault_rate", "eval/fault_rate_reference"}
    assert set(outcome.summary) == {key for key in METRICS if key.startswith("eval/")} - of_others
    assert json.loads((outcome.artifacts["evaluate"].path / "summary.json").read_text()) == dict(outcome.summary)


def test_heldout_pairs_are_scored_as_reference_samples(outcome: TrialOutcome) -> None:
    folder = outcome.artifacts["reward"].path
    samples, pairs = pd.read_parquet(folder / "reference_samples.parquet"), pd.read_parquet(folder / "pairs.parquet")
    scored, heldout = samples[samples["source"] == "pair"], pairs[pairs["heldout"]]
    assert list(scored["completion"]) == [*heldout["first"], *heldout["second"]]
    assert list(scored["gold"]) == [*heldout["gold_first"], *heldout["gold_second"]]
    first, second = np.split(scored["proxy"].to_numpy(), 2)
    agreement = ((first > second) == heldout["first_wins"].to_numpy()).mean()
    meta = outcome.artifacts["reward"].meta
    assert meta["accuracy"] == pytest.approx(agreement)
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
