from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import Recorder

from pipeline.config.loading import load_config
from pipeline.data.chains import read
from pipeline.run.layout import Layout
from pipeline.run.metrics import METRICS
from pipeline.run.progress import TrialOutcome
from pipeline.trial import run_trial

SMALL: dict[str, Any] = {
    "data.sft_texts": 500, "data.train_prompts": 64, "data.heldout_prompts": 64, "data.chains.group": "z10",
    "data.chains.lengths": [2, 3], "model.hidden_size": 16, "model.heads": 2, "model.layers": 1, "sft.steps": 120,
    "sft.batch_size": 32, "reward.calibration_samples": 64, "reward.verifier.false_positive": 0.2, "train.steps": 8,
    "train.batch_size": 16, "train.response_length": 11, "train.num_mini_batches": 2, "train.num_epochs": 1,
    "evaluate.prompts": 32, "evaluate.passes": 4, "algorithm": "grpo", "algorithm.tokens": "forks",
}  # fmt: skip


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> TrialOutcome:
    return run_trial(load_config("chains", SMALL), Layout(tmp_path_factory.mktemp("chains")), Recorder())


def test_the_evaluation_is_that_of_its_rows(outcome: TrialOutcome) -> None:
    rows = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    found = [read(*pair) for pair in zip(rows["prompt"], rows["policy_completion"], strict=True)]
    right, worked = (np.array([getattr(one, name) for one in found]) > 0 for name in ("right", "steps"))
    lengths, summary = rows["policy_length"].to_numpy(), outcome.summary
    assert summary["eval/accuracy"] == summary["eval/gold"] == pytest.approx(right.mean())
    assert summary["eval/working_rate"] == pytest.approx(worked.mean())
    assert summary["eval/length_wrong"] == pytest.approx(lengths[~right].mean())
    assert rows["forks"].tolist() == [sum(one.forks) for one in found]
    assert rows["forks"].sum() > 0
    assert (rows["forks"] + rows["no_forks"]).tolist() == lengths.tolist()
    total = rows["entropy_forks"].sum() + rows["entropy_elsewhere"].sum()
    assert total == pytest.approx(rows["entropy"].sum(), rel=1e-5)
    asked = rows["prompt"].str.split().str.len() - 1
    for length in (2, 3):
        assert summary[f"eval/accuracy/k{length}"] == pytest.approx(right[asked == length].mean())
    assert summary["eval/pass_at_1"] <= summary["eval/pass_at_4"]
    assert "eval/pass_at_16" not in summary
    draws = pd.read_parquet(outcome.artifacts["reference"].path / "draws.parquet")
    again = [read(*pair).right for pair in zip(draws["prompt"], draws["completion"], strict=True)]
    assert summary["eval/accuracy_reference"] == summary["eval/gold_reference"] == pytest.approx(np.mean(again))
    for key, value in summary.items():
        assert METRICS[key].low <= value <= METRICS[key].high, key


def test_the_training_records_what_it_samples(outcome: TrialOutcome) -> None:
    series = pd.read_parquet(outcome.artifacts["train"].path / "metrics.parquet").dropna(subset="objective/accuracy")
    assert series["objective/accuracy"].tolist() == series["objective/gold"].tolist()
    assert (series["objective/scores_std"] > 0).all()
    lengths = series["objective/length_right"].fillna(0) * series["objective/accuracy"] + series[
        "objective/length_wrong"
    ] * (1 - series["objective/accuracy"])
    assert lengths.tolist() == pytest.approx(series["objective/length"].tolist(), rel=1e-5)
    assert {"objective/entropy_forks", "objective/entropy_elsewhere", "objective/equal_groups"} <= {*series.columns}
