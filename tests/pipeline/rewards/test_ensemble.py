"""Ensembles of reward models: members that differ, and how their scores become one."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder

from pipeline.config.effects import content_of
from pipeline.config.loading import load_config
from pipeline.models.out_of_memory import Room
from pipeline.rewards.base import Proxy
from pipeline.rewards.scorers import reward_of
from pipeline.rewards.settings import Combine
from pipeline.run.layout import Layout
from pipeline.trial import run_trial

SCORES = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([3.0, 0.0])}
SMALL: dict[str, Any] = {
    "data.sft_texts": 300, "data.train_prompts": 64, "data.heldout_prompts": 64, "model.hidden_size": 16,
    "model.heads": 2, "model.layers": 1, "sft.steps": 20, "sft.batch_size": 32, "reward.calibration_samples": 64,
    "reward.learned.pairs": 64, "reward.learned.heldout_pairs": 32, "reward.learned.epochs": 1, "train.steps": 8,
    "train.batch_size": 16, "train.response_length": 8, "train.num_mini_batches": 2, "train.num_epochs": 1,
    "evaluate.prompts": 16, "kl.beta": 0.0,
}  # fmt: skip
MEMBERS = {
    "one": {"kind": "learned"},
    "two": {"kind": "learned", "member": 2},
    "three": {"kind": "learned", "member": 3},
    "same": {"kind": "learned"},
}


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("sum", [2.5, -2.0]), ("worst", [1.0, -2.0]), ("cautious", [1.25 - 2 * 0.0625, -1.0 - 2 * 1.0])],
)
def test_scores_become_one(combine: Combine, expected: list[float]) -> None:
    proxy = Proxy({}, {"a": 1.0, "b": 0.5}, combine=combine, caution=2.0)
    assert proxy.weigh(SCORES).tolist() == expected


def test_members_have_the_same_pairs_and_other_weights(tmp_path: Path) -> None:
    config = load_config(
        "tiny", {**SMALL, "reward.kind": "composite", "reward.parts": MEMBERS, "reward.composite.combine": "worst"}
    )
    layout = Layout.at(None)
    outcome = run_trial(config, layout, Recorder())
    reward = outcome.artifacts["reward"]
    pairs = [pd.read_parquet(reward.path / "parts" / name / "pairs.parquet") for name in MEMBERS]
    assert pairs[0].equals(pairs[1])
    samples = pd.read_parquet(reward.path / "reference_samples.parquet")
    parts = samples[[f"reward/{name}" for name in MEMBERS]]
    assert (parts["reward/one"] == parts["reward/same"]).all()
    for one, other in combinations(("one", "two", "three"), 2):
        assert (parts[f"reward/{one}"] - parts[f"reward/{other}"]).abs().max() > 0.01
    worst = parts.min(axis=1)
    assert ((worst - reward.meta["mean"]) / reward.meta["std"]).to_numpy() == pytest.approx(samples["proxy"], abs=1e-4)
    assert reward_of(reward, torch.device("cpu"), Room("rows", 64)).combine == "worst"
    assert {"reward/one", "reward/two"} <= {*pd.read_parquet(outcome.artifacts["train"].path / "metrics.parquet")}


def test_only_what_differs_is_part_of_a_key() -> None:
    def digest(member: int | None = None, **more: Any) -> str:
        parts = {"one": {"kind": "learned"}, "two": {"kind": "learned", **({"member": member} if member else {})}}
        return load_config("tiny", {"reward.kind": "composite", "reward.parts": parts, **more}).digest()

    assert len({digest(), digest(2), digest(3), digest(**{"reward.composite.combine": "worst"})}) == 4
    assert "member" not in str(content_of(load_config("tiny"), load_config("tiny")))
