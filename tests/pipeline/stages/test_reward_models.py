"""Reward models of their own size, and ensembles of them, by the stages that make and use them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.models.seeding import seed_of
from pipeline.rewards import trunk as reward_trunk
from pipeline.rewards.composite import Ensemble
from pipeline.rewards.scorers import reward_of
from pipeline.rewards.trunk import TrunkSource, member_seed
from pipeline.run.layout import Layout
from pipeline.run.outcome import TrialOutcome
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


def test_each_member_is_counted_work(smoke_layout: Layout) -> None:
    """The first rollout is the reference's own and the same for every reward, so its work differs by the reward models
    alone."""
    spent = []
    for reward in (
        {"reward__kind": "lexicon"},
        {},
        {"reward__learned__ensemble": 3, "reward__learned__combine": "minimum"},
    ):
        train = trial(smoke_layout, **reward, train__steps=4).artifacts["train"].path
        spent.append(json.loads((train / "log" / "cost.json").read_text("utf-8"))["score_tflop"])
    none, one, three = spent
    assert three - none == pytest.approx(3 * (one - none), rel=1e-6)
    assert one > none


def test_a_scratch_trunk_has_its_own_size_and_learns_the_texts_first(smoke_layout: Layout) -> None:
    settings = {key.replace(".", "__"): value for key, value in OWN.items()}
    untaught = trial(smoke_layout, **settings, reward__learned__scratch__pretraining_steps=0)
    taught = trial(smoke_layout, **settings, reward__learned__scratch__pretraining_steps=40)
    made = [json.loads(stage_files(one, "reward")["trunk/config.json"]) for one in (untaught, taught)]
    assert [config["hidden_size"] for config in made] == [16, 16]
    assert made[0]["vocab_size"] == json.loads(stage_files(taught, "sft")["model/config.json"])["vocab_size"]
    counts = [one.artifacts["reward"].meta["parameters"] for one in (untaught, taught)]
    assert counts[0] == counts[1] < 30_000, "11,136 of them are the embedding"
    assert stage_files(untaught, "reward")["head.safetensors"] != stage_files(taught, "reward")["head.safetensors"]
    assert stage_files(taught, "sft") == stage_files(untaught, "sft")
    assert reward_of(taught.artifacts["reward"], CPU, ROOM).networks[0].config.hidden_size == 16


def test_scratch_trunks_differ_by_their_seed_in_weights_and_in_the_order_of_texts(
    plain: TrialOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("smoke", {**OWN, "reward.learned.scratch.pretraining_steps": 40})
    found, learned = plain.artifacts, []
    monkeypatch.setattr(reward_trunk, "fit", lambda model, texts, how, *_: learned.append(how.seed))
    shape = json.loads(stage_files(plain, "sft")["model/config.json"])
    source = TrunkSource(
        config.reward, config.reward_pretraining, found["prompts"], found["sft"], SimpleNamespace(**shape), CPU,
        Recorder(), False,
    )  # fmt: skip
    weights = [torch.cat([one.flatten() for one in source(seed).parameters()]) for seed in (7, 8, 7)]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])
    assert learned == [7, 8, 7]


def test_members_seeds_are_their_own_and_the_first_is_the_rewards() -> None:
    assert member_seed(7, 0) == 7
    assert len({member_seed(seed, member) for seed in (7, 8) for member in range(5)}) == 10
    assert member_seed(7, 1) == seed_of(7, "reward member", 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"reward.learned.ensemble": 3, "reward.learned.combine": "worst_k", "reward.learned.worst_k": 3},
            "worst_k 3 must be below ensemble 3",
        ),
        (
            {"reward.learned.trunk": "scratch", "reward.learned.scratch.hidden_size": 30},
            "hidden_size 30 must be an even multiple of heads 4",
        ),
        (
            {"critic.kind": "separate", "critic.init": "reward", "reward.learned.ensemble": 3},
            "critic.init 'reward' needs one reward model, reward.learned.ensemble is 3; use critic.init: reference",
        ),
        (
            {"critic.kind": "separate", "critic.init": "reward", **OWN},
            "needs a reward model of the policy's shape, reward.learned.trunk is 'scratch'",
        ),
        (
            {
                "reward.kind": "composite",
                "reward.parts": {"disagreement": {"kind": "learned"}},
                "reward.learned.ensemble": 2,
            },
            "an ensemble calls its spread 'disagreement'; give the part another name",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", changes)
    assert message in str(error.value)


def test_only_a_scratch_trunk_depends_on_how_texts_are_learned() -> None:
    def of(**changes: Any) -> TrialConfig:
        return load_config("tiny", {key.replace("__", "."): value for key, value in changes.items()})

    assert of().reward_pretraining is None
    assert of(reward__learned__trunk="scratch").reward_pretraining is None
    taught = of(
        reward__learned__trunk="scratch", reward__learned__scratch__pretraining_steps=400, sft__lr=0.01
    ).reward_pretraining
    assert taught is not None
    assert (taught.steps, taught.lr) == (400, 0.01)
    assert of(reward__kind="lexicon").learned_rewards == 0
    assert of(reward__learned__ensemble=4).learned_rewards == 4
