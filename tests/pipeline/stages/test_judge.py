"""The guarded judge of real text: the built-in reviews as a file stand for texts of a user."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Recorder, smoke

from pipeline.config.trial import TrialConfig
from pipeline.data.labels import UNLABELLED
from pipeline.data.reviews import generate
from pipeline.data.semantics import judge as judgement
from pipeline.data.tokenizer import train_tokenizer
from pipeline.errors import UserError
from pipeline.models.policy import Episodes
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Completions
from pipeline.run.layout import Layout
from pipeline.run.outcome import TrialOutcome
from pipeline.run.store import Artifact
from pipeline.stages.common import judge_of
from pipeline.stages.judge import _openings, judge
from pipeline.stages.judge_errors import (
    ATTACKS,
    PRAISE,
    Opening,
    class_errors,
    errors,
    praise,
    rates,
    repeated,
    shuffled,
    stopped,
    strewn,
)
from pipeline.trial import plan_trial, run_trial

CPU, ROOM = torch.device("cpu"), Room("rows", 8)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 reviews, labelled by the sign of their score."""
    folder = tmp_path_factory.mktemp("guarded")
    texts = [review.text for review in generate(1500, 5)]
    labels = [int(judgement("", text).score > 0) for text in texts]
    pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / "reviews.csv", index=False)
    return folder


def config(home: Path, **changes: Any) -> TrialConfig:
    base = {
        "data__source": "local",
        "data__path": str(home / "reviews.csv"),
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


def completions(*rows: tuple[str, str]) -> Completions:
    ones = torch.ones(len(rows), 1, dtype=torch.bool)
    episodes = Episodes(torch.zeros(len(rows), 2, dtype=torch.long), ones, ones, ~ones.squeeze(1))
    return Completions(episodes, [prompt for prompt, _ in rows], [text for _, text in rows])


def test_auto_is_the_guarded_lexicon_where_the_grammar_judges_not(home: Path) -> None:
    assert config(home).gold.kind == "fluent_lexicon"
    assert smoke().gold.kind == "grammar"
    assert config(home, judge__kind="lexicon").gold.kind == "lexicon"
    assert "judge" not in {one.stage for one in plan_trial(smoke(), Layout(home / "none"))}
    plain = {one.stage for one in plan_trial(config(home, judge__kind="lexicon"), Layout(home / "none"))}
    assert plain == {"prompts", "sft", "reward", "reference", "train", "evaluate"}
    assert {one.stage for one in plan_trial(config(home), Layout(home / "none"))} == {*plain, "judge"}


def test_a_trial_is_judged_by_it(outcome: TrialOutcome) -> None:
    assert outcome.status == "complete"
    assert outcome.artifacts["reward"].meta["judge"] == "fluent_lexicon"
    prompts = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    draws = pd.read_parquet(outcome.artifacts["reference"].path / "draws.parquet")
    for scores in (prompts["policy_gold"], draws["gold"]):
        assert bool((scores.between(-1, 1) | scores.isin([-2.0, -3.0, -4.0])).all())
    assert draws["gold"].min() <= -2, "a network of this size writes gibberish"
    for key, scores in (("eval/fault_rate", prompts["policy_gold"]), ("eval/fault_rate_reference", draws["gold"])):
        faults = float((scores < -1.5).mean())
        assert 0 < outcome.summary[key] == pytest.approx(faults)


def test_real_texts_pass_and_attacks_do_not(outcome: TrialOutcome) -> None:
    meta = outcome.artifacts["judge"].meta
    assert (meta["threshold_texts"], meta["fitted_texts"]) == (270, 1080), "no text for both"
    assert 90 <= meta["real/n"] <= 100
    assert meta["real/faulty"] <= 0.06
    assert meta["real/faulty_low"] <= meta["real/faulty"] <= meta["real/faulty_high"]
    for attack, least in {"shuffled": 0.9, "praise": 0.98, "strewn": 0.9, "repeated": 0.9, "stopped": 0.7}.items():
        assert meta[f"{attack}/faulty"] >= least, attack
    assert meta["praise/wins_lexicon"] > 0.8 > 0.1 > meta["praise/wins"]
    assert meta["classes/n"] > 30
    assert meta["classes/wins"] < 0.4


def test_held_out_texts_are_cut_as_responses_are(home: Path) -> None:
    texts = ["The acting was absolutely superb and I loved it from the first minute on.", "It was bad."]
    tokenizer = train_tokenizer(texts * 3, 400)
    cfg = config(home, train__response_length=4, data__prompt_length=[2, 2])
    long, short = _openings(cfg, pd.DataFrame({"text": texts, "label": [1, 0]}), tokenizer)
    assert (long.prompt, long.ended, long.label) == ("The acting", False, 1)
    assert texts[0].startswith(long.prompt + long.completion)
    lengths = [len(tokenizer(text)["input_ids"]) for text in (long.prompt, long.prompt + long.completion)]
    assert lengths[1] - lengths[0] == 4
    assert short == Opening("It was", " bad.", True, 0)
    (unlabelled,) = _openings(cfg, pd.DataFrame({"text": texts[1:]}), tokenizer)
    assert unlabelled.label == UNLABELLED


def test_attacks_change_what_they_say() -> None:
    words, rng = [f"w{place}" for place in range(9)] + ["end.)"], np.random.default_rng(0)
    assert sorted(shuffled(words, rng)) == sorted(words) != shuffled(words, rng)
    assert len(praise(words, rng)) == 10
    assert set(praise(words, rng)) <= set(PRAISE)
    changed = strewn(words, rng)
    assert sum(word in PRAISE for word in changed) == 4, "one of three, rounded up"
    assert all(new in PRAISE or new == old for new, old in zip(changed, words, strict=True))
    phrase = repeated(words, rng)
    assert phrase[0] in PRAISE
    assert phrase[1:2] == ["w0"]
    assert phrase == phrase[:2] * 4
    assert stopped(words, rng) == words[:5]
    assert stopped(["It", "end.)", "well", "now"], rng) == ["It", "end"]


def test_an_attack_has_an_end_where_the_text_has_one_or_was_stopped() -> None:
    seen = list[tuple[str, bool]]()

    class Deaf:
        def faults(self, prompt: str, completion: str, ended: bool) -> int:
            seen.append((prompt + completion, ended))
            return int(ended)

        def score(self, text: str) -> float:
            return 0.5

    table = errors([Opening("It", " was so bad.", True, 0), Opening("It", " was so", False, 1)], Deaf(), Deaf(), 0)  # type: ignore[arg-type]
    assert table["kind"].tolist() == ["real", *ATTACKS] * 2
    assert [ended for _, ended in seen] == [True] * 6 + [False] * 5 + [True]
    assert all(text.startswith("It ") and text[3] != " " for text, _ in seen)
    assert table["score"].tolist() == [-2.0] * 6 + [0.5] * 5 + [-2.0]
    assert table["label"].tolist() == [0] * 6 + [1] * 6


def test_the_judge_of_the_artifact_lets_no_gibberish_win(outcome: TrialOutcome) -> None:
    gold = judge_of(config_of(outcome).gold, CPU, ROOM, outcome.artifacts["judge"])
    rows = [
        ("I saw it at home.", " The plot was dull. I hated it."),
        ("I saw it at home.", " superb wonderful great superb wonderful great superb"),
        ("I saw it at home.", " was plot dull the hated it I. The"),
    ]
    real, praised, mixed = gold(completions(*rows)).tolist()
    assert -1 <= real < 0
    assert praised <= -2
    assert mixed <= -2
    with pytest.raises(ValueError, match="needs the artifact of the stage judge"):
        judge_of(config_of(outcome).gold, CPU, ROOM)


def config_of(outcome: TrialOutcome) -> TrialConfig:
    return config(outcome.artifacts["judge"].path.parents[3])


def made(cfg: TrialConfig, prompts: Artifact, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return judge(cfg, folder, Recorder(), prompts=prompts)


def test_the_same_texts_give_the_same_bytes(home: Path, outcome: TrialOutcome, tmp_path: Path) -> None:
    own, prompts = outcome.artifacts["judge"].path, outcome.artifacts["prompts"]
    made(config(home), prompts, tmp_path / "again")
    for name in ("ngrams.safetensors", "thresholds.json", "errors.parquet", "summary.json"):
        assert filecmp.cmp(own / name, tmp_path / "again" / name, shallow=False), name
    shorter = made(config(home, train__response_length=8), prompts, tmp_path / "shorter")
    assert shorter["threshold_tokens"] == 8
    assert shorter["threshold_fluency"] < outcome.artifacts["judge"].meta["threshold_fluency"], "short texts vary more"


def test_too_few_texts_are_refused(home: Path, tmp_path: Path) -> None:
    few = config(home, data__sft_texts=300)
    with pytest.raises(UserError, match=r"300 training texts leave 60 .* at least 99: about 495 texts"):
        run_trial(few, Layout(tmp_path), Recorder(), until="judge")


def test_the_plain_lexicon_is_cautioned_against(home: Path) -> None:
    (line,) = config(home, judge__kind="lexicon").cautions()
    assert "strings of praise win" in line
    assert config(home).cautions() == []
    (line,) = config(home, reward__kind="lexicon").cautions()
    assert line.endswith("can show no over-optimisation but gibberish")


def test_rates_count_ties_half_and_classes_need_both() -> None:
    rows = [
        (0, "real", 1, 0, 0.5, 0.5), (0, "praise", 1, 1, 0.9, -2.0),
        (1, "real", 1, 0, 0.2, 0.2), (1, "praise", 1, 0, 0.2, 0.2),
        (2, "real", 0, 1, 0.4, -2.0), (2, "praise", 0, 1, 0.9, -2.0),
        (3, "real", 0, 0, 0.3, 0.3), (3, "praise", 0, 2, 0.9, -3.0),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["text", "kind", "label", "faults", "lexicon", "score"])
    found = rates(table)
    assert (found["real/n"], found["real/faulty"], found["praise/faulty"]) == (4, 0.25, 0.75)
    assert found["praise/wins"] == 0.25, "lost, tie, tie, lost"
    assert found["praise/wins_lexicon"] == 0.875
    assert class_errors(table)["classes/wins"] == 0.5
    assert class_errors(table[table["label"] == 1]) == {}
    assert json.dumps(found)
