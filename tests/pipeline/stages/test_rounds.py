from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke

from pipeline.data.prompt_set import PromptSet
from pipeline.models.loading import freeze, load_snapshot
from pipeline.models.out_of_memory import Room
from pipeline.models.sampling import EagerSampler, decode
from pipeline.models.seeding import uniforms
from pipeline.rewards.collection import TEMPERATURE, Collection, read_ranked, split_prompts
from pipeline.rewards.learned import HEAD, RewardModel, train_reward_model
from pipeline.rewards.settings import LearnedSettings, RewardConfig
from pipeline.run.layout import Layout
from pipeline.run.metrics import merged
from pipeline.run.progress import TrialOutcome
from pipeline.trial import plan_trial, run_trial

CPU = torch.device("cpu")
ROUND_KL = "objective/round_kl_per_token"
TWO: dict[str, Any] = {"reward__learned__rounds": 2, "train__steps": 16}
OPPOSED: dict[str, Any] = {
    **TWO, "reward__learned__keep_pairs": "newest", "reward__against": "reference",
    "reward__kind": "composite", "reward__parts": {"good": {"kind": "learned"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def outcome(smoke_layout: Layout) -> TrialOutcome:
    return run_trial(smoke(**TWO), smoke_layout, Recorder())


@pytest.fixture(scope="module")
def opposed(smoke_layout: Layout) -> TrialOutcome:
    return run_trial(smoke(**OPPOSED), smoke_layout, Recorder(), until="train")


def test_rounds_of_pairs_share_the_prompts_and_the_budget_of_one_round() -> None:
    cfg = RewardConfig(learned=LearnedSettings(pairs=12, heldout_pairs=4, rounds=3))
    rows = split_prompts(100, cfg)
    parts = [Collection(number, 3) for number in (1, 2, 3)]
    drawn = [part.rows(rows, cfg) for part in parts]
    assert torch.equal(torch.cat([rows_[:4] for rows_ in drawn]), rows[:12])
    assert all(torch.equal(rows_[4:], rows[12:]) for rows_ in drawn), "the same prompts are held out in every round"
    assert torch.equal(Collection().rows(rows, cfg.model_copy(update={"rounds": 1})), rows)
    assert [part.label("first") for part in parts] == ["first", "first, round 2", "first, round 3"]


def test_every_round_is_a_reward_and_a_training(outcome: TrialOutcome, smoke_layout: Layout) -> None:
    found = outcome.artifacts
    assert list(found) == ["prompts", "sft", "reward-1", "train-1", "reward", "reference", "train", "evaluate"]
    assert (outcome.status, outcome.steps) == ("complete", 16)
    start = f"train-1/{found['train-1'].digest[:20]}"
    assert found["reward"].meta["round"]["policy"] == found["train"].meta["round"]["start"] == start
    assert (found["train-1"].meta["steps"], found["train"].meta["steps"]) == (8, 16)
    assert all(one.cached for one in plan_trial(smoke(**TWO), smoke_layout))


def test_a_later_reward_learns_from_the_pairs_of_all_rounds(outcome: TrialOutcome) -> None:
    one, two = (outcome.artifacts[stage] for stage in ("reward-1", "reward"))
    assert (one.meta["train_pairs"], two.meta["train_pairs"]) == (128, 256)
    earlier, every = (pd.read_parquet(made.path / "pair_responses.parquet") for made in (one, two))
    pd.testing.assert_frame_equal(every.iloc[: len(earlier)], earlier)
    labelled = [pd.read_parquet(made.path / "pairs.parquet") for made in (one, two)]
    assert [(~table["heldout"]).sum() for table in labelled] == [128, 128], "each round labels its share alone"
    heldout = [set(table.loc[table["heldout"], "prompt"]) for table in labelled]
    assert heldout[0] == heldout[1]
    assert set(labelled[0]["first"]) != set(labelled[1]["first"]), "the policy has answered, and not the reference"
    assert one.meta[TEMPERATURE] == two.meta[TEMPERATURE] > 0


def test_a_later_round_compares_answers_of_the_policy_trained_so_far(outcome: TrialOutcome) -> None:
    cfg, found = smoke(**TWO), outcome.artifacts
    data = PromptSet.load(found["prompts"], "train")
    rows = Collection(2, 2).rows(split_prompts(len(data.texts), cfg.reward), cfg.reward)
    pairs = pd.read_parquet(found["reward"].path / "pairs.parquet")
    assert pairs["prompt"].tolist() == [data.texts[row] for row in rows.tolist()]
    for side in ("first", "second"):
        drawn = []
        for folder in (found["train-1"].path / "policy", found["sft"].path / "model"):
            network = freeze(load_snapshot(folder, CPU))
            sampler = EagerSampler(network, cfg.train.temperature, Room("rows", 64), **data.token_ids)
            noise = uniforms(len(rows), cfg.train.response_length, cfg.reward.learned.pairs_seed, f"{side}, round 2")
            drawn.append(decode(data.tokenizer, sampler.sample(data.ids[rows], data.mask[rows], noise)))
        assert pairs[side].tolist() == drawn[0] != drawn[1]


def test_a_later_reward_is_the_reference_fitted_to_what_was_preferred_in_all_rounds(
    outcome: TrialOutcome, tmp_path: Path
) -> None:
    cfg, folder = smoke(**TWO).reward, outcome.artifacts["reward"].path
    ranked = read_ranked(folder, PromptSet.load(outcome.artifacts["prompts"], "train").token_ids["pad_id"], CPU)
    model = RewardModel.new(load_snapshot(outcome.artifacts["sft"].path / "model", CPU), cfg, CPU)
    train_reward_model(model, ranked, cfg, lambda *_: None)
    model.save(tmp_path)
    assert (tmp_path / HEAD).read_bytes() == (folder / HEAD).read_bytes()


def test_a_reward_of_the_newest_pairs_forgets_the_others(opposed: TrialOutcome) -> None:
    one, two = (opposed.artifacts[stage] for stage in ("reward-1", "reward"))
    assert (one.meta["good/train_pairs"], two.meta["good/train_pairs"]) == (128, 128)
    assert one.meta[f"good/{TEMPERATURE}"] == two.meta[f"good/{TEMPERATURE}"] > 0
    folders = [made.path / "parts" / "good" for made in (one, two)]
    responses = [pd.read_parquet(folder / "pair_responses.parquet")["response"] for folder in folders]
    earlier, later = ([response.tolist() for response in column] for column in responses)
    assert len(earlier) == len(later) == 256
    assert earlier != later


def test_the_series_goes_on_over_the_rounds(outcome: TrialOutcome) -> None:
    one, two = (outcome.artifacts[stage].path / "metrics.jsonl" for stage in ("train-1", "train"))
    assert two.read_bytes().startswith(one.read_bytes())
    rows = merged(two)
    assert sorted(rows) == list(range(17))
    at = [rows[step][ROUND_KL] for step in (0, 4, 8, 12)]
    reference = [rows[step]["objective/kl_exact_per_token"] for step in (0, 4, 8, 12)]
    assert at[:2] == reference[:2]
    assert at[2] == pytest.approx(0, abs=1e-6)
    assert 0 < at[3] < reference[3]


def test_a_trial_pays_for_the_rewards_that_are_its_own(outcome: TrialOutcome) -> None:
    """The first is shared, as it is in a trial without rounds."""
    costs = {
        stage: json.loads((outcome.artifacts[stage].path / "log" / "cost.json").read_text())
        for stage in ("reward", "train-1", "train")
    }
    assert "reward_s" not in costs["train-1"]
    assert costs["train"]["reward_s"] == pytest.approx(costs["reward"]["reward_s"])
    assert costs["train"]["reward_tflop"] == costs["reward"]["reward_tflop"] > 0
    own = costs["train"]["generated_tokens"] - costs["train-1"]["generated_tokens"]
    # 192 pairs and 64 samples for calibration, before 4 updates of 16 episodes; each of 1 to 16 tokens.
    assert costs["reward"]["generated_tokens"] == pytest.approx(448 * 11, rel=0.5)
    assert costs["reward"]["generated_tokens"] < own <= costs["reward"]["generated_tokens"] + 64 * 16
    assert outcome.cost["wall_s"] > costs["train-1"]["wall_s"] + costs["reward"]["reward_s"]
    assert outcome.artifacts["train"].meta["tokens"] == outcome.cost["generated_tokens"]


def test_a_cap_in_a_round_ends_all_of_them_until_it_is_raised(outcome: TrialOutcome, smoke_layout: Layout) -> None:
    """Later rounds neither collect nor train; the trial is evaluated with the reward it was trained by."""
    other = {**TWO, "train__seed": 5}
    capped = run_trial(smoke(**other, caps__generated_tokens=100), smoke_layout, Recorder())
    found = capped.artifacts
    assert (capped.status, 0 < capped.steps < 8) == ("budget", True)
    assert found["reward-1"].key == outcome.artifacts["reward-1"].key
    assert (found["reward"].meta["round"]["number"], found["train"].meta["round"]["number"]) == (2, 2)
    for stage, name in (("reward", "head.safetensors"), ("train", "metrics.jsonl"), ("train", "status.json")):
        assert (found[stage].path / name).read_bytes() == (found[f"{stage}-1"].path / name).read_bytes()
    assert capped.cost["generated_tokens"] == found["train-1"].meta["tokens"]
    plan = {one.stage: one for one in plan_trial(smoke(**other), smoke_layout)}
    assert "continues from step" in plan["train-1"].why
    whole = run_trial(smoke(**other), smoke_layout, Recorder())
    assert (whole.status, whole.steps) == ("complete", 16)
    assert whole.artifacts["reward"].meta["train_pairs"] == 256
    assert whole.artifacts["train"].path != found["train"].path
