from __future__ import annotations

import filecmp
import itertools
import json
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
from pipeline.models.tokenizers import train_tokenizer
from pipeline.rewards.fluency import LexiconReward
from pipeline.rewards.scorers import judge_of
from pipeline.run.layout import Layout
from pipeline.run.metrics import merged
from pipeline.run.progress import TrialOutcome
from pipeline.run.store import Artifact
from pipeline.stages.judge import judge, shortened
from pipeline.trial import plan_trial, run_trial

GOOD, BAD = ("good", "great", "superb"), ("bad", "awful", "boring")
PARTS = (
    ("The", "This", "That"),
    (*GOOD, *BAD),
    ("and I saw", "and we watched"),
    ("at home", "in Rome", "twice", "with friends", "alone"),
)


def reviews(folder: Path) -> None:
    frame = pd.DataFrame({"text": [f"{a} film was {b} {c} it {d}." for a, b, c, d in itertools.product(*PARTS)]})
    (folder / "plain_text").mkdir(parents=True)
    test = frame.iloc[::4]
    frame.drop(test.index).to_parquet(folder / "plain_text" / "train-00000-of-00001.parquet", index=False)
    pd.concat([test, frame.drop(test.index).head(2)]).to_parquet(
        folder / "plain_text" / "test-00000-of-00001.parquet", index=False
    )


def classifier(folder: Path, seed: int) -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(seed)
    sizes = {"vocab_size": 300, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    config = DistilBertConfig(**sizes, max_position_embeddings=64, id2label={0: "NO", 1: "YES"})
    model = DistilBertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    model.save_pretrained(folder)
    train_tokenizer(list(itertools.chain(*PARTS)), 300).save_pretrained(folder)


def pairs(path: Path) -> None:
    rows = [{"prompt": f"Film {i} was", "chosen": f" {GOOD[i % 3]}.", "rejected": f" {BAD[i % 3]}."} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("realtext")
    reviews(folder / "reviews")
    pairs(folder / "pairs.jsonl")
    classifier(folder / "toxic", 1)
    classifier(folder / "judge", 2)
    return folder


def config(home: Path, **changes: Any) -> TrialConfig:
    base = {
        "data__source": "local",
        "data__local__path": str(home / "reviews"),
        "data__train_prompts": 20,
        "data__heldout_prompts": 8,
        "data__prompt_length": [3, 8],
        "data__prompt_unit": "tokens",
        "data__vocab_size": 300,
        "evaluate__prompts": 8,
        "sft__steps": 10,
        "reward__learned__pairs": 32,
        "reward__learned__heldout_pairs": 8,
        "reward__calibration_samples": 32,
        "train__steps": 8,
        "judge__kind": "lexicon",  # too few texts for a guard
    }
    # What cannot act with these changes is refused.
    idle = ["data__vocab_size"] * ("model__base" in changes)
    idle += ["reward__learned__pairs", "reward__learned__heldout_pairs"] * (changes.get("reward__kind") == "lexicon")
    return smoke(**{key: value for key, value in {**base, **changes}.items() if key not in idle})


def composite(home: Path, **changes: Any) -> TrialConfig:
    toxic, judge = ({"model": str(home / name), "label": "YES"} for name in ("toxic", "judge"))
    parts = {
        "helpful": {"kind": "learned", "preferences": str(home / "pairs.jsonl")},
        "harmless": {"kind": "classifier", "classifier": toxic, "weight": -0.5},
    }
    judging = {f"judge__classifier__{key}": value for key, value in judge.items()}
    judging["judge__kind"] = "classifier"
    return config(home, **{"reward__kind": "composite", "reward__parts": parts, **judging, **changes})


@pytest.fixture(scope="module")
def outcome(home: Path) -> TrialOutcome:
    return run_trial(composite(home), Layout(home / "out"), Recorder())


def test_every_part_is_calibrated_logged_and_kept_by_prompt(outcome: TrialOutcome) -> None:
    reward = outcome.artifacts["reward"]
    samples = pd.read_parquet(reward.path / "reference_samples.parquet")
    names = ["reward/helpful", "reward/harmless"]
    for name in ("proxy", *names):
        assert samples[name].mean() == pytest.approx(0.0, abs=1e-6)
        assert samples[name].std(ddof=0) == pytest.approx(1.0, abs=1e-6)
    total = samples[names[0]] - 0.5 * samples[names[1]]
    assert samples["proxy"].to_numpy() == pytest.approx(
        ((total - total.mean()) / total.std(ddof=0)).to_numpy(), abs=1e-3
    )
    assert (reward.meta["helpful/train_pairs"], reward.meta["helpful/heldout_pairs"]) == (32, 6)
    given = pd.read_parquet(reward.path / "parts" / "helpful" / "pairs.parquet")
    assert given["first_wins"].all()
    assert given["gold_first"].isna().tolist() == (~given["heldout"]).tolist(), "no judge is asked to train"
    assert not set(given[given["heldout"]]["prompt"]) & set(given[~given["heldout"]]["prompt"])
    rows = merged(outcome.artifacts["train"].path / "metrics.jsonl")
    assert all(name in rows[step] for name in names for step in rows if "objective/scores" in rows[step])
    table = pd.read_parquet(outcome.artifacts["evaluate"].path / "prompts.parquet")
    parts = table["policy_reward/helpful"] - 0.5 * table["policy_reward/harmless"]
    scaled = (parts - reward.meta["mean"]) / reward.meta["std"]
    assert table["policy_proxy"].to_numpy() == pytest.approx(scaled.to_numpy(), abs=1e-5)
    assert outcome.summary["eval/reward/harmless"] == pytest.approx(table["policy_reward/harmless"].mean())


def test_what_a_judge_or_a_part_is_made_of_is_part_of_the_keys(home: Path, outcome: TrialOutcome) -> None:
    layout = Layout(home / "out")

    def keys(config: TrialConfig) -> list[bool]:
        return [stage.cached for stage in plan_trial(config, layout)]

    assert keys(composite(home)) == [True] * 6
    lighter = {name: part.model_dump(exclude_defaults=True) for name, part in composite(home).reward.parts.items()}
    lighter["harmless"]["weight"] = -0.25
    assert keys(composite(home, reward__parts=lighter))[:3] == [True, True, False]
    path = home / "judge" / "config.json"
    content = path.read_text()
    try:
        path.write_text(json.dumps({**json.loads(content), "id2label": {"0": "YES", "1": "NO"}}))
        assert keys(composite(home))[:3] == [True, True, False]
    finally:
        path.write_text(content)
    assert keys(composite(home)) == [True] * 6


def test_a_reward_learned_from_a_file_on_a_base_of_another_architecture(home: Path, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    base = tmp_path / "base"
    tokenizer = train_tokenizer(list(itertools.chain(*PARTS)), 300)
    tokenizer.save_pretrained(base)
    torch.manual_seed(0)
    sizes = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=128)
    GPT2LMHeadModel(sizes).save_pretrained(base)
    settings: dict[str, Any] = {
        "data__prompt_length": [8, 24],
        "reward__learned__max_tokens": 64,
        "model__base": str(base),
        "reward__preferences": str(home / "pairs.jsonl"),
        "reward__learned__epochs": 8,
        "reward__learned__lr": 1e-2,
    }
    outcome = run_trial(config(home, **settings), Layout(tmp_path / "out"), Recorder(), until="reward")
    meta = outcome.artifacts["reward"].meta
    assert meta["judge"] == "lexicon"
    assert meta["accuracy"] == 1.0  # good words against bad ones, in prompts that were never seen
    assert meta["heldout_pairs"] == 6
    beyond = "this goes beyond the model's 128 positions"
    for key, says in (
        ("train.response_length", f"with prompts of up to 24 tokens {beyond}; at most 104"),
        ("reward.learned.max_tokens", beyond),
        ("sft.max_tokens", beyond),
    ):
        long = config(home, **{**settings, key.replace(".", "__"): 200})
        with pytest.raises(UserError, match=f"{key} = 200: {says}"):
            run_trial(long, Layout(tmp_path / "out"), Recorder(), until="reward")


def test_a_judge_that_is_trained_on_is_cautioned_against(home: Path) -> None:
    assert composite(home).cautions() == []
    assert smoke().cautions() == []
    line, hacked = config(home, reward__kind="lexicon").cautions()
    assert line.startswith("the gold judge (lexicon) is also what is trained on (reward)")
    assert "strings of praise" in hacked
    judge = {"model": str(home / "judge"), "label": "NO"}
    parts = {"one": {"kind": "learned"}, "two": {"kind": "classifier", "classifier": judge}}
    (line,) = composite(home, reward__parts=parts).cautions()
    assert "reward.parts.two" in line


@pytest.fixture(scope="module")
def reviews_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guarded")
    pd.DataFrame({"text": [review.text for review in generate(1500, 5)]}).to_csv(folder / "reviews.csv", index=False)
    return folder


def guarded(reviews_file: Path, **changes: Any) -> TrialConfig:
    base = {
        "data__source": "local",
        "data__local__path": str(reviews_file / "reviews.csv"),
        "data__train_prompts": 64,
        "data__heldout_prompts": 100,
        "evaluate__prompts": 32,
        "train__steps": 8,
        "train__response_length": 24,
    }
    return smoke(**{**base, **changes})


@pytest.fixture(scope="module")
def judged(reviews_file: Path) -> TrialOutcome:
    return run_trial(guarded(reviews_file), Layout(reviews_file / "out"), Recorder())


def test_auto_is_the_guarded_lexicon_where_the_grammar_judges_not(reviews_file: Path) -> None:
    plain = ["prompts", "sft", "reward", "reference", "train", "evaluate"]
    for cfg, kind, stages in (
        (guarded(reviews_file), "fluent_lexicon", ["prompts", "judge", *plain[1:]]),
        (guarded(reviews_file, judge__kind="lexicon"), "lexicon", plain),
        (smoke(), "grammar", plain),
    ):
        assert cfg.gold.kind == kind
        assert [one.stage for one in plan_trial(cfg, Layout(reviews_file / "none"))] == stages


def test_a_trial_is_judged_by_it(judged: TrialOutcome) -> None:
    assert judged.status == "complete"
    assert judged.artifacts["reward"].meta["judge"] == "fluent_lexicon"
    prompts = pd.read_parquet(judged.artifacts["evaluate"].path / "prompts.parquet")
    draws = pd.read_parquet(judged.artifacts["reference"].path / "draws.parquet")
    for scores in (prompts["policy_gold"], draws["gold"]):
        assert bool((scores.between(-1, 1) | scores.isin([-1.0 - n for n in range(1, 9)])).all())
    assert draws["gold"].min() <= -2, "a network of this size writes gibberish"
    for key, scores in (("eval/fault_rate", prompts["policy_gold"]), ("eval/fault_rate_reference", draws["gold"])):
        faults = float((scores < -1.5).mean())
        assert 0 < judged.summary[key] == pytest.approx(faults)


def test_real_texts_pass(judged: TrialOutcome) -> None:
    meta = judged.artifacts["judge"].meta
    assert (meta["threshold_texts"], meta["fitted_texts"]) == (270, 1080), "no text for both"
    assert 90 <= meta["real/n"] <= 100
    assert meta["real/faulty"] <= 0.3, "about 0.16 of further texts; 0.3 is more than 3 standard errors above"
    assert meta["real/faulty_low"] <= meta["real/faulty"] <= meta["real/faulty_high"]


def test_a_completion_is_cut_as_a_response_is() -> None:
    def characters(text: str, **_: Any) -> dict[str, Any]:
        return {"offset_mapping": [(place, place + 1) for place in range(len(text))]}

    assert shortened(characters, "It", " was.", 5) == (" was.", True)
    assert shortened(characters, "It", " was bad.", 5) == (" was ", False)


def test_the_judge_of_the_artifact_lets_no_gibberish_win(reviews_file: Path, judged: TrialOutcome) -> None:
    gold = judge_of(guarded(reviews_file).gold, torch.device("cpu"), Room("rows", 8), judged.artifacts["judge"])
    texts = (review.text.split() for review in generate(100, 99) if LexiconReward().score("", review.text) < -0.5)
    words = next(words for words in texts if len(words) > 18)
    prompt, words = " ".join(words[:5]), words[5:]
    mixed = words[::2] + words[1::2]
    rows = [(prompt, " " + " ".join(some)) for some in (words, ["superb", "wonderful", "great"] * 4, mixed)]
    real, praised, turned = gold(completions(*rows)).tolist()
    assert -1 <= real < 0
    assert praised <= -2
    assert turned <= -2


def built(cfg: TrialConfig, prompts: Artifact, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return judge(cfg, folder, Recorder(), prompts=prompts)


def test_the_same_texts_give_the_same_bytes(reviews_file: Path, judged: TrialOutcome, tmp_path: Path) -> None:
    own, prompts = judged.artifacts["judge"].path, judged.artifacts["prompts"]
    built(guarded(reviews_file), prompts, tmp_path / "again")
    for name in ("ngrams.safetensors", "phrases.safetensors", "thresholds.json", "summary.json"):
        assert filecmp.cmp(own / name, tmp_path / "again" / name, shallow=False), name
    shorter = built(guarded(reviews_file, train__response_length=8), prompts, tmp_path / "shorter")
    longer = judged.artifacts["judge"].meta
    assert shorter["threshold/unlikely"] < longer["threshold/unlikely"], "short texts vary more"


@pytest.mark.slow
def test_fewer_prompts_than_asked_for_are_taken_and_told_of(reviews_file: Path, tmp_path: Path) -> None:
    asked = {"data__train_prompts": 4000, "data__heldout_prompts": 1000, "evaluate__prompts": 1000}
    reporter = Recorder()
    found = run_trial(guarded(reviews_file, **asked), Layout(tmp_path), reporter)
    meta = found.artifacts["prompts"].meta
    for name, wanted in (("train_prompts", "4,000"), ("heldout_prompts", "1,000")):
        told = f"data.{name} asks for {wanted} prompts; the texts give {meta[name]:,}, which are used"
        assert told in reporter.warnings
    assert len(pd.read_parquet(found.artifacts["evaluate"].path / "prompts.parquet")) == meta["heldout_prompts"] < 150
    asked = {"data__heldout_prompts": 2000, "evaluate__prompts": 1000, "evaluate__first_prompt": 1000}
    with pytest.raises(UserError, match=r"the texts give \d+ held-out prompts, and .* after prompt 1000"):
        run_trial(guarded(reviews_file, **asked), Layout(tmp_path), Recorder())


def test_too_few_texts_are_refused(reviews_file: Path, tmp_path: Path) -> None:
    few = guarded(reviews_file, data__sft_texts=300)
    with pytest.raises(UserError, match=r"takes 99 texts .* 300 training texts leave 60; use about 495"):
        run_trial(few, Layout(tmp_path), Recorder(), until="judge")
