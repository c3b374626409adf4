from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from tinynets import completions

from pipeline.data.prompt_set import PromptSet
from pipeline.data.semantics import circle, ending, judge
from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes
from pipeline.models.sampling import tokenize_prompts
from pipeline.rewards.base import Completions, as_scores
from pipeline.rewards.learned import PairwiseModel, RewardModel
from pipeline.rewards.scorers import OPPONENTS_FILE, Against, read_opponents, reward_of, save_opponents
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.trial import ADDED_UP, run_trial

CPU, ROOM = torch.device("cpu"), Room("rows", 64)
SETTINGS: dict[str, Any] = {"reward__kind": "pairwise", "reward__against": "reference", "judge__kind": "cycle"}


@pytest.fixture(scope="module")
def outcome(smoke_layout: Layout) -> TrialOutcome:
    return run_trial(smoke(**SETTINGS), smoke_layout, Recorder())


@pytest.fixture(scope="module")
def kept(outcome: TrialOutcome) -> pd.DataFrame:
    return pd.read_parquet(outcome.artifacts["reward"].path / OPPONENTS_FILE)


def answers(outcome: TrialOutcome, prompts: list[str], texts: list[str]) -> Completions:
    """Any responses; the tokens are those of the texts."""
    tokenizer = PromptSet.load(outcome.artifacts["prompts"], "train").tokenizer
    ids, mask = tokenize_prompts(tokenizer, prompts)
    grid = torch.full((len(prompts), 8), 5)
    grid[:, 0] = torch.arange(len(prompts)) + 6
    whole = torch.ones(len(prompts), 8, dtype=torch.bool)
    return Completions(Episodes(torch.cat([ids, grid], 1), mask, whole, whole[:, 0]), prompts, texts)


def test_every_prompt_has_its_opponents_once(outcome: TrialOutcome, kept: pd.DataFrame) -> None:
    sets = (PromptSet.load(outcome.artifacts["prompts"], part).texts for part in ("train", "heldout"))
    different = list(dict.fromkeys(text for texts in sets for text in texts))
    assert kept["prompt"].tolist() == [prompt for prompt in different for _ in range(4)]
    assert kept["draw"].tolist() == [0, 1, 2, 3] * len(different)
    assert {len(numbers) for numbers in kept["numbers/reward"]} == {5}
    first, second = kept["completion"][::4].tolist(), kept["completion"][1::4].tolist()
    assert np.mean([a != b for a, b in zip(first, second, strict=True)]) > 0.9


def test_the_reward_is_the_mean_probability_of_beating_them(outcome: TrialOutcome, kept: pd.DataFrame) -> None:
    proxy = reward_of(outcome.artifacts["reward"], CPU, ROOM)
    prompts = [kept["prompt"][0], kept["prompt"].iloc[-1]]  # one to train on, one held out
    batch = answers(outcome, prompts, ["", ""])
    calibrated = proxy.parts["reward"]
    win = (calibrated(batch) * calibrated.std + calibrated.mean).tolist()
    assert all(0 < share < 1 for share in win)
    numbers = calibrated.raw._numbers(batch).double()  # type: ignore[attr-defined]
    for row, prompt in enumerate(prompts):
        theirs = torch.tensor(np.stack(kept.loc[kept["prompt"] == prompt, "numbers/reward"].to_list())).double()
        shares = PairwiseModel.margin(numbers[row], theirs).sigmoid()
        assert win[row] == pytest.approx(float(shares.mean()), abs=1e-5)
    with pytest.raises(UserError, match=r"no opponents for the prompt 'Not a prompt'"):
        proxy(answers(outcome, ["Not a prompt"], [""]))


def test_records_hold_points_and_endings_and_wins_follow_both(outcome: TrialOutcome) -> None:
    draws = pd.read_parquet(outcome.artifacts["reference"].path / "draws.parquet")
    table = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    for row in table.head(20).to_dict("records"):
        mine = judge(row["prompt"], row["policy_completion"])
        assert (row["policy_gold"], row["policy_ending"]) == (-2.0 * mine.faults, ending(mine))
        texts = draws.loc[draws["prompt_id"] == row["prompt_id"], "completion"]
        theirs = [judge(row["prompt"], text) for text in texts]
        gaps = np.array([2.0 * (one.faults - mine.faults) + circle(ending(mine), ending(one)) for one in theirs])
        assert (row["win"], row["tie"]) == (np.mean((np.sign(gaps) + 1) / 2), np.mean(gaps == 0))
    assert outcome.summary["eval/gold"] == pytest.approx(table["policy_gold"].mean())


def test_the_trial_pays_for_its_opponents(outcome: TrialOutcome, kept: pd.DataFrame) -> None:
    own = json.loads((outcome.artifacts["reward"].path / "log" / "opponents.json").read_text("utf-8"))
    training = json.loads((outcome.artifacts["train"].path / "log" / "cost.json").read_text("utf-8"))
    assert len(kept) < own["generated_tokens"] <= 16 * len(kept)
    assert min(own["generate_tflop"], own["score_tflop"]) > 0
    for key in ADDED_UP:
        assert outcome.cost[f"opponents_{key}"] == own[key]
        assert outcome.cost[key] == pytest.approx(training[key] + own[key])


class Length:
    networks = ("a network",)

    def __call__(self, completions: Completions) -> torch.Tensor:
        return as_scores([len(text) for text in completions.texts])


def test_a_score_less_the_mean_of_the_opponents_of_its_prompt(tmp_path: Path) -> None:
    drawn = [completions(("one", texts[0]), ("two", texts[1])) for texts in (("a", "b"), ("aaa", "bbbbb"))]
    numbers = torch.stack([Length()(one) for one in drawn], dim=1)
    save_opponents(tmp_path, drawn, {"part": numbers})
    assert pd.read_parquet(tmp_path / OPPONENTS_FILE)["completion"].tolist() == ["a", "aaa", "b", "bbbbb"]
    reward = Against(Length(), RewardModel.against, read_opponents(tmp_path)["part"])
    rows = [("two", "aaaa"), ("one", "aaaa"), ("two", ""), ("one", "a")]
    assert reward(completions(*rows)).tolist() == [1, 2, -3, -1]
    assert reward(completions(*rows[::-1])).tolist() == [-1, -3, 2, 1]
    assert reward.networks == ("a network",)
