"""The guarded judge of real text: the built-in reviews as a file stand for texts of a user."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke
from tinynets import completions

from pipeline.config.trial import TrialConfig
from pipeline.data.reviews import generate
from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.rewards.fluency import LexiconReward
from pipeline.rewards.scorers import judge_of
from pipeline.run.layout import Layout
from pipeline.run.progress import TrialOutcome
from pipeline.run.store import Artifact
from pipeline.stages.judge import judge, shortened
from pipeline.trial import plan_trial, run_trial


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 reviews."""
    folder = tmp_path_factory.mktemp("guarded")
    pd.DataFrame({"text": [review.text for review in generate(1500, 5)]}).to_csv(folder / "reviews.csv", index=False)
    return folder


def config(home: Path, **changes: Any) -> TrialConfig:
    base = {
        "data__source": "local",
        "data__local__path": str(home / "reviews.csv"),
        "data__train_prompts": 64,
        "data__heldout_prompts": 100,
        "evaluate__prompts": 32,
        "train__steps": 8,
        "train__response_length": 24,
    }
    return smoke(**{**base, **changes})


@pytest.fixture(scope="module")
def outcome(home: Path) -> TrialOutcome:
    return run_trial(config(home), Layout(home / "out"), Recorder())


def test_auto_is_the_guarded_lexicon_where_the_grammar_judges_not(home: Path) -> None:
    plain = ["prompts", "sft", "reward", "reference", "train", "evaluate"]
    for cfg, kind, stages in (
        (config(home), "fluent_lexicon", ["prompts", "judge", *plain[1:]]),
        (config(home, judge__kind="lexicon"), "lexicon", plain),
        (smoke(), "grammar", plain),
    ):
        assert cfg.gold.kind == kind
        assert [one.stage for one in plan_trial(cfg, Layout(home / "none"))] == stages


def test_a_trial_is_judged_by_it(outcome: TrialOutcome) -> None:
    assert outcome.status == "complete"
    assert outcome.artifacts["reward"].meta["judge"] == "fluent_lexicon"
    prompts = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    draws = pd.read_parquet(outcome.artifacts["reference"].path / "draws.parquet")
    for scores in (prompts["policy_gold"], draws["gold"]):
        assert bool((scores.between(-1, 1) | scores.isin([-1.0 - n for n in range(1, 9)])).all())
    assert draws["gold"].min() <= -2, "a network of this size writes gibberish"
    for key, scores in (("eval/fault_rate", prompts["policy_gold"]), ("eval/fault_rate_reference", draws["gold"])):
        faults = float((scores < -1.5).mean())
        assert 0 < outcome.summary[key] == pytest.approx(faults)


def test_real_texts_pass(outcome: TrialOutcome) -> None:
    meta = outcome.artifacts["judge"].meta
    assert (meta["threshold_texts"], meta["fitted_texts"]) == (270, 1080), "no text for both"
    assert 90 <= meta["real/n"] <= 100
    assert meta["real/faulty"] <= 0.3, "about 0.16 of further texts; 0.3 is more than 3 standard errors above"
    assert meta["real/faulty_low"] <= meta["real/faulty"] <= meta["real/faulty_high"]


def test_a_completion_is_cut_as_a_response_is() -> None:
    def characters(text: str, **_: Any) -> dict[str, Any]:
        return {"offset_mapping": [(place, place + 1) for place in range(len(text))]}

    assert shortened(characters, "It", " was.", 5) == (" was.", True)
    assert shortened(characters, "It", " was bad.", 5) == (" was ", False)


def test_the_judge_of_the_artifact_lets_no_gibberish_win(home: Path, outcome: TrialOutcome) -> None:
    gold = judge_of(config(home).gold, torch.device("cpu"), Room("rows", 8), outcome.artifacts["judge"])
    texts = (review.text.split() for review in generate(100, 99) if LexiconReward().score("", review.text) < -0.5)
    words = next(words for words in texts if len(words) > 18)
    prompt, words = " ".join(words[:5]), words[5:]
    mixed = words[::2] + words[1::2]
    rows = [(prompt, " " + " ".join(some)) for some in (words, ["superb", "wonderful", "great"] * 4, mixed)]
    real, praised, turned = gold(completions(*rows)).tolist()
    assert -1 <= real < 0
    assert praised <= -2
    assert turned <= -2


def made(cfg: TrialConfig, prompts: Artifact, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return judge(cfg, folder, Recorder(), prompts=prompts)


def test_the_same_texts_give_the_same_bytes(home: Path, outcome: TrialOutcome, tmp_path: Path) -> None:
    own, prompts = outcome.artifacts["judge"].path, outcome.artifacts["prompts"]
    made(config(home), prompts, tmp_path / "again")
    for name in ("ngrams.safetensors", "phrases.safetensors", "thresholds.json", "summary.json"):
        assert filecmp.cmp(own / name, tmp_path / "again" / name, shallow=False), name
    shorter = made(config(home, train__response_length=8), prompts, tmp_path / "shorter")
    assert shorter["length"] == 8
    longer = outcome.artifacts["judge"].meta
    assert shorter["threshold/unlikely"] < longer["threshold/unlikely"], "short texts vary more"


def test_fewer_prompts_than_asked_for_are_taken_and_told_of(home: Path, tmp_path: Path) -> None:
    asked = {"data__train_prompts": 4000, "data__heldout_prompts": 1000, "evaluate__prompts": 1000}
    reporter = Recorder()
    found = run_trial(config(home, **asked), Layout(tmp_path), reporter)
    meta = found.artifacts["prompts"].meta
    for name, wanted in (("train_prompts", "4,000"), ("heldout_prompts", "1,000")):
        told = f"data.{name} asks for {wanted} prompts; the texts give {meta[name]:,}, which are used"
        assert told in reporter.warnings
    assert len(pd.read_parquet(found.artifacts["evaluate"].path / "prompts.parquet")) == meta["heldout_prompts"] < 150
    asked = {"data__heldout_prompts": 2000, "evaluate__prompts": 1000, "evaluate__first_prompt": 1000}
    with pytest.raises(UserError, match=r"the texts give \d+ held-out prompts, and .* after prompt 1000"):
        run_trial(config(home, **asked), Layout(tmp_path), Recorder())


def test_too_few_texts_are_refused(home: Path, tmp_path: Path) -> None:
    few = config(home, data__sft_texts=300)
    with pytest.raises(UserError, match=r"takes 99 texts .* 300 training texts leave 60; use about 495"):
        run_trial(few, Layout(tmp_path), Recorder(), until="judge")
