"""Reward models of their own size, and ensembles of them, by the stages that make and use them."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke

from pipeline.models.out_of_memory import Room
from pipeline.rewards.composite import Ensemble
from pipeline.rewards.scorers import reward_of
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.trial import run_trial

OWN = {
    "reward.learned.trunk": "scratch",
    "reward.learned.scratch.hidden_size": 16,
    "reward.learned.scratch.heads": 2,
    "reward.learned.scratch.layers": 1,
}
CPU, ROOM = torch.device("cpu"), Room("rows", 100)


def trial(layout: Layout, **knobs: Any) -> TrialOutcome:
    return run_trial(smoke(**knobs), layout, Recorder())


def stage_files(outcome: TrialOutcome, stage: str) -> dict[str, bytes]:
    folder = outcome.artifacts[stage].path
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "log" not in path.parts and path.name != "manifest.json"
    }


@pytest.fixture(scope="module")
def plain(smoke_layout: Layout) -> TrialOutcome:
    return trial(smoke_layout)


@pytest.fixture(scope="module")
def three(smoke_layout: Layout) -> TrialOutcome:
    return trial(smoke_layout, reward__learned__ensemble=3, reward__learned__combine="minimum")


def test_the_first_member_is_the_model_without_an_ensemble(plain: TrialOutcome, three: TrialOutcome) -> None:
    alone, together = stage_files(plain, "reward"), stage_files(three, "reward")
    first = {name.removeprefix("members/0/"): content for name, content in together.items() if "members/0/" in name}
    assert first == {name: alone[name] for name in first}
    assert {"head.safetensors", "trunk/model.safetensors"} <= first.keys()
    weights = [together[f"members/{member}/head.safetensors"] for member in range(3)]
    assert len(set(weights)) == 3, "members differ by their seed"
    assert together["pairs.parquet"] == alone["pairs.parquet"], "and learn from the same pairs"
    assert not {name for name in alone if "members" in name}


def test_an_ensemble_is_calibrated_member_by_member_and_again(three: TrialOutcome) -> None:
    artifact = three.artifacts["reward"]
    proxy = reward_of(artifact, CPU, ROOM)
    whole = proxy.parts["reward"].raw
    assert isinstance(whole, Ensemble)
    assert [[member.mean, member.std] for member in whole.members] == artifact.meta["parts"]["reward"]["members"]
    table = pd.read_parquet(artifact.path / "reference_samples.parquet")
    drawn = table[table["source"] == "calibration"]
    assert drawn["proxy"].mean() == pytest.approx(0, abs=1e-5)
    assert drawn["proxy"].std(ddof=0) == pytest.approx(1, abs=1e-5)
    assert artifact.meta["parts"]["reward"]["mean"] < -0.1, "the minimum of several lies below their mean"
    summary = json.loads((artifact.path / "summary.json").read_text("utf-8"))
    assert summary["disagreement"] == pytest.approx(drawn["reward/disagreement"].mean(), rel=1e-5)


def test_disagreement_is_recorded_in_training_and_evaluation_of_ensembles_alone(
    plain: TrialOutcome, three: TrialOutcome
) -> None:
    for outcome, there in ((plain, False), (three, True)):
        series = pd.read_parquet(outcome.artifacts["train"].path / "metrics.parquet")
        assert ("reward/disagreement" in set(series.get("key", series.columns))) is there
        assert ("eval/reward/disagreement" in outcome.artifacts["evaluate"].meta["summary"]) is there
        answers = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
        assert ("policy_reward/disagreement" in answers) is there
    assert three.artifacts["evaluate"].meta["summary"]["eval/reward/disagreement"] > 0


def test_a_scratch_trunk_has_its_own_size(plain: TrialOutcome, smoke_layout: Layout) -> None:
    own = trial(smoke_layout, **{key.replace(".", "__"): value for key, value in OWN.items()})
    made = json.loads(stage_files(own, "reward")["trunk/config.json"])
    assert made["hidden_size"] == 16
    assert made["vocab_size"] == json.loads(stage_files(own, "sft")["model/config.json"])["vocab_size"]
    assert own.artifacts["reward"].meta["parameters"] < 30_000, "11,136 of them are the embedding"
    assert stage_files(own, "sft") == stage_files(plain, "sft")
    assert reward_of(own.artifacts["reward"], CPU, ROOM).networks[0].config.hidden_size == 16
