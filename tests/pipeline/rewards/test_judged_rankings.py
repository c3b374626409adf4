"""Rankings through the stage `reward`: whose answers are ranked, what is held out, and what others learn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from torch import Tensor

from pipeline.models.policy import Episodes
from pipeline.rewards.base import Completions
from pipeline.rewards.collection import gap, judged_rankings, split_prompts
from pipeline.rewards.learned_settings import LearnedSettings
from pipeline.rewards.rankings import RESPONSES
from pipeline.rewards.settings import RewardConfig
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.trial import run_trial

FOUR: dict[str, Any] = {"reward__learned__ranked": 4}


class Points:
    """The text is the score."""

    networks = ()

    def __call__(self, completions: Completions) -> Tensor:
        return torch.tensor([float(text) for text in completions.texts])


def numbered(rows: Tensor, label: str, seed: int) -> Completions:
    """Answers whose text and first token are a number of their own, to prompts that are the number of a row."""
    numbers = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    ones = torch.ones(len(rows), 1, dtype=torch.bool)
    episodes = Episodes(torch.stack([rows, numbers], 1), ones, ones, ones[:, 0])
    return Completions(episodes, [f"{row}" for row in rows.tolist()], [f"{number}" for number in numbers.tolist()])


def test_the_judge_ranks_answers_to_one_prompt() -> None:
    cfg = RewardConfig(learned=LearnedSettings(ranked=4, pairs=50, heldout_pairs=6, label_noise=0.0))
    pairs = judged_rankings(numbered, Points(), 12, cfg)
    assert pairs.temperature == 0.0
    assert (pairs.train, len(pairs.first_wins)) == (8 * 6, 8 * 6 + 6)
    ranked = pairs.ranked
    tokens = torch.stack([answers.query_responses for answers in ranked.answers], 1)  # (n, 4, 2)
    assert tokens.shape == (8, 4, 2)
    assert (tokens[:, 1:, 0] == tokens[:, :1, 0]).all(), "one prompt"
    assert (tokens[:, :-1, 1] > tokens[:, 1:, 1]).all(), "best first"
    assert ranked.order.tolist() == [[0, 1, 2, 3]] * 8
    train, heldout = slice(pairs.train), slice(pairs.train, None)
    assert pairs.first_wins[train].all()
    assert (gap(pairs.gold)[train] > 0).all()
    assert ((gap(pairs.gold) > 0) == pairs.first_wins)[heldout].all()
    assert 0 < int(pairs.first_wins[heldout].sum()) < 6, "either answer may be the better one"
    rows = split_prompts(12, cfg)
    assert [int(prompt) for prompt in pairs.first.prompts[heldout]] == rows[50:].tolist()
    assert not set(pairs.first.prompts[heldout]) & set(pairs.first.prompts[train])
    assert pairs.gold["gold_first"].tolist() == [float(text) for text in pairs.first.texts]
    assert pairs.gold["gold_second"].tolist() == [float(text) for text in pairs.second.texts]
    assert pairs.first.prompts == pairs.second.prompts


@pytest.fixture(scope="module")
def ranked(smoke_layout: Layout) -> TrialOutcome:
    return run_trial(smoke(algorithm="dpo", **FOUR), smoke_layout, Recorder())


def test_a_reward_is_learned_from_rankings_and_others_learn_from_their_pairs(ranked: TrialOutcome) -> None:
    assert ranked.status == "complete"
    reward = ranked.artifacts["reward"]
    assert (reward.meta["train_rankings"], reward.meta["train_pairs"]) == (42, 252)
    table = pd.read_parquet(reward.path / "pairs.parquet")
    train = table[~table["heldout"]]
    assert len(train) == 252
    assert train["first_wins"].all()
    assert set(train.groupby(train.index // 6)["prompt"].nunique()) == {1}
    responses = pd.read_parquet(reward.path / RESPONSES)
    assert len(responses) == 2 * 252
    assert "accuracy_gold" in reward.meta


def test_a_file_of_pairs(tmp_path: Path, smoke_layout: Layout) -> None:
    path, sides = tmp_path / "pairs.jsonl", [(" was good.", " was fine."), (" was good.", " was bad.")]
    rows = [{"prompt": f"Film {i}", "chosen": best, "rejected": worst} for i in range(60) for best, worst in sides]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"preferences": str(path), "learned__heldout_pairs": 10, "learned__pairs": 30}
    config = smoke(**{f"reward__{key}": value for key, value in changes.items()})
    reward = run_trial(config, smoke_layout, Recorder(), until="reward").artifacts["reward"]
    assert (reward.meta["train_pairs"], reward.meta["heldout_pairs"]) == (30, 10), "as many as are asked for"
    assert reward.meta["heldout_prompts"] < 10, "pairs of one prompt are no independent evidence"
    table = pd.read_parquet(reward.path / "pairs.parquet")
    assert set(zip(table["first"], table["second"], strict=True)) == set(sides)
    assert not set(table[table["heldout"]]["prompt"]) & set(table[~table["heldout"]]["prompt"])
    assert table["first_wins"].all()
    assert table["gold_first"].isna().tolist() == (~table["heldout"]).tolist(), "no judge is asked to train"
