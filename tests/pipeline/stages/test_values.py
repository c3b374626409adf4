"""The stage of scored reference samples, for real, on the smoke profile: what it holds, who has it, and who pays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke

from pipeline.data.prompt_set import PromptSet
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import padded_episodes
from pipeline.rewards.base import Completions
from pipeline.rewards.scored_samples import SAMPLES
from pipeline.rewards.scorers import reward_of
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.trial import ADDED_UP, plan_trial, run_trial

PROMPTS, DRAWS = 256, 4
A_STAR_PO: dict[str, Any] = {"algorithm": "a_star_po", "values__samples": DRAWS}


@pytest.fixture(scope="module")
def outcome(smoke_layout: Layout) -> TrialOutcome:
    return run_trial(smoke(**A_STAR_PO), smoke_layout, Recorder())


@pytest.fixture(scope="module")
def table(outcome: TrialOutcome) -> pd.DataFrame:
    return pd.read_parquet(outcome.artifacts["values"].path / SAMPLES)


def planned(layout: Layout, **changes: Any) -> dict[str, tuple[bool, str]]:
    return {one.stage: (one.cached, one.why) for one in plan_trial(smoke(**changes), layout)}


def test_all_samples_are_there_by_the_number_of_their_prompt(table: pd.DataFrame, outcome: TrialOutcome) -> None:
    assert table["prompt_id"].tolist() == [row for row in range(PROMPTS) for _ in range(DRAWS)]
    assert table["draw"].tolist() == list(range(DRAWS)) * PROMPTS
    assert table["tokens"].map(len).tolist() == table["length"].tolist()
    eos = PromptSet.load(outcome.artifacts["prompts"], "train").tokenizer.eos_token_id
    assert [tokens[-1] == eos for tokens in table["tokens"]] == table["eos"].tolist()
    assert 0 < table["eos"].mean() < 1
    assert not any(eos in tokens[:-1] for tokens in table["tokens"])
    texts = [tuple(tokens) for tokens in table["tokens"]]
    assert len(set(texts)) > 0.9 * len(texts), "draws of one prompt differ"


def test_scores_are_those_of_the_training_reward_before_eos_handling(
    table: pd.DataFrame, outcome: TrialOutcome
) -> None:
    data = PromptSet.load(outcome.artifacts["prompts"], "train")
    some = table.iloc[[0, 5, 301, 800, 1023]]
    rows = some["prompt_id"].tolist()
    prompts = [data.ids[row][data.mask[row]].tolist() for row in rows]
    responses = [tokens.tolist() for tokens in some["tokens"]]
    episodes = padded_episodes(prompts, responses, torch.tensor(some["eos"].tolist()), data.token_ids["pad_id"])
    proxy = reward_of(outcome.artifacts["reward"], torch.device("cpu"), Room("rows", 8))
    found = proxy(Completions.of(data.tokenizer, episodes, [data.texts[row] for row in rows]))
    assert found.tolist() == pytest.approx(some["proxy"].tolist(), abs=1e-5)


def test_what_changes_the_samples_draws_them_again_and_nothing_else(
    smoke_layout: Layout, outcome: TrialOutcome
) -> None:
    for change in ({"algorithm__v_star__beta": 0.5}, {"train__missing_eos": "none"}, {"train__seed": 7}):
        plan = planned(smoke_layout, **A_STAR_PO, **change)
        assert {stage for stage, (cached, _) in plan.items() if not cached} == {"train", "evaluate"}
    plan = planned(smoke_layout, **{**A_STAR_PO, "values__samples": 8})
    assert plan["values"] == (False, "values.samples 4 -> 8")
    assert plan["train"] == (False, "waits for values")
    assert not planned(smoke_layout, **A_STAR_PO, train__temperature=0.9)["values"][0]


def test_fewer_samples_are_the_first_of_more_and_batches_change_none(
    smoke_layout: Layout, tmp_path: Path, table: pd.DataFrame
) -> None:
    layout = Layout(tmp_path)
    for stage in ("prompts", "sft", "reward"):
        shutil.copytree(smoke_layout.store / stage, layout.store / stage)
    fewer = smoke(**{**A_STAR_PO, "values__samples": 2}, runtime__rollout_batch_size=37)
    made = run_trial(fewer, layout, Recorder(), until="values").artifacts["values"]
    found = pd.read_parquet(made.path / SAMPLES)
    first = table[table["draw"] < 2].reset_index(drop=True)
    assert [list(tokens) for tokens in found["tokens"]] == [list(tokens) for tokens in first["tokens"]]
    assert found["proxy"].tolist() == pytest.approx(first["proxy"].tolist(), abs=1e-5)


def test_a_trial_is_charged_for_all_its_samples(outcome: TrialOutcome, table: pd.DataFrame) -> None:
    trained, sampled = (
        json.loads((outcome.artifacts[stage].path / "log" / "cost.json").read_text()) for stage in ("train", "values")
    )
    assert sampled["generated_tokens"] == table["length"].sum()
    for key in ADDED_UP:
        assert sampled[key] > 0
        assert outcome.cost[key] == pytest.approx(trained[key] + sampled[key])
        assert outcome.cost[f"values_{key}"] == sampled[key]
    assert outcome.cost["peak_memory_gib"] == max(trained["peak_memory_gib"], sampled["peak_memory_gib"])
    assert {"generate_s", "score_s", "generate_tflop", "score_tflop"} <= sampled.keys()
