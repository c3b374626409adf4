"""Two rewards that disagree: pairs labelled by two judges, two gold scores, a floor; through the stages."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers import Recorder, smoke

from pipeline.data.semantics import insulting_words, judge
from pipeline.run.layout import Layout
from pipeline.run.metrics_log import merged
from pipeline.run.progress import TrialOutcome
from pipeline.trial import run_trial

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
def outcome(tmp_path_factory: pytest.TempPathFactory) -> TrialOutcome:
    return run_trial(smoke(**SETTINGS), Layout(tmp_path_factory.mktemp("two")), Recorder())


def test_each_judge_labels_the_same_answers_by_its_own_score(outcome: TrialOutcome) -> None:
    parts = outcome.artifacts["reward"].path / "parts"
    helpful, harmless = (pd.read_parquet(parts / name / "pairs.parquet") for name in ("helpful", "harmless"))
    assert helpful["first"].tolist() == harmless["first"].tolist()
    for row in helpful.head(100).to_dict("records"):
        assert row["gold_first"] == judge(row["prompt"], row["first"], insults=True).score
    for row in harmless.to_dict("records"):
        assert row["gold_first"] == -insulting_words(row["prompt"], row["first"])
        if row["gold_first"] != row["gold_second"]:
            assert row["first_wins"] == (row["gold_first"] > row["gold_second"])
    assert (harmless["gold_first"] != harmless["gold_second"]).any()


def test_further_judges_are_recorded_in_training_and_in_the_evaluation(outcome: TrialOutcome) -> None:
    table = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    found = [-insulting_words(*row) for row in zip(table["prompt"], table["policy_completion"], strict=True)]
    assert table["policy_gold/harmless"].tolist() == found
    assert outcome.summary["eval/gold/harmless"] == pytest.approx(sum(found) / len(found))
    draws = pd.read_parquet(outcome.artifacts["reference"].path / "draws.parquet")
    assert outcome.summary["eval/gold_reference/harmless"] == pytest.approx(draws["gold/harmless"].mean())
    rows = merged(outcome.artifacts["train"].path / "metrics.jsonl")
    rollouts = [row for row in rows.values() if "objective/gold" in row]
    assert all(row["objective/gold/harmless"] <= 0 for row in rollouts)
    assert all("objective/floor_weight" in row for row in rollouts)
    assert rollouts[-1]["objective/floor_weight"] > 0
