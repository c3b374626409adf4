from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import put_record, smoke, write_sealed
from helpers import write_table as write
from tinynets import network
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification

from pipeline.data.semantics import judge
from pipeline.errors import UserError
from pipeline.models.loading import prepared
from pipeline.models.tokenizers import train_tokenizer
from pipeline.rewards.learned import RewardModel
from pipeline.run.layout import Layout
from pipeline.run.store import write_manifest
from studies.execution.score import ROWS, score_file

TEXTS = ["The acting was absolutely superb.", "The plot was dull and the cast not very good.", "It was bad."]
VOCAB = 300
BIAS, MEAN, STD = 0.7, 0.4, 1.7
"""Of the random reward model's head, and of its calibration."""
ROWS_OF_TEXTS: list[dict[str, Any]] = [
    {"prompt": text.split(" ")[0], "completion": text.removeprefix(text.split(" ")[0]), "id": index, "note": 'x, "y"'}
    for index, text in enumerate(TEXTS)
]


def read(path: Path) -> list[dict[str, Any]]:
    readers = {".jsonl": lambda: pd.read_json(path, lines=True), ".csv": lambda: pd.read_csv(path)}
    frame = readers.get(path.suffix, lambda: pd.read_parquet(path))()
    return list(frame.to_dict("records"))


def score(path: Path, reward: str = "grammar", **options: Any) -> Path:
    layout = options.pop("layout", Layout(path.parent / "out"))
    return score_file(path, reward, options.pop("to", None), layout, say=options.pop("say", lambda _: None), **options)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_every_format_comes_back_with_its_own_columns_and_the_scores(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"answers.{suffix}", ROWS_OF_TEXTS)
    before = path.read_bytes()
    target = score(path, judge="lexicon")
    assert target == tmp_path / f"answers.scored.{suffix}"
    assert path.read_bytes() == before
    rows = read(target)
    assert list(rows[0]) == ["prompt", "completion", "id", "note", "reward", "gold"]
    for row, given in zip(rows, ROWS_OF_TEXTS, strict=True):
        assert {key: str(row[key]) for key in given} == {key: str(value) for key, value in given.items()}
        assert float(row["reward"]) == pytest.approx(judge(given["prompt"], given["completion"]).score)
        assert -1 <= float(row["gold"]) <= 1
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, target.name]


def test_a_trained_reward_scores_a_text_whatever_is_beside_it(layout: Layout, tmp_path: Path) -> None:
    recorded_reward(layout)
    many = [ROWS_OF_TEXTS[index % 3] for index in range(ROWS + 5)]
    lines: list[str] = []
    whole = read(score(write(tmp_path / "a.jsonl", many), "made/base/0", layout=layout, say=lines.append))
    alone = [
        read(score(write(tmp_path / f"{index}.jsonl", [row]), "made/base/0", layout=layout))[0]["reward"]
        for index, row in enumerate(ROWS_OF_TEXTS)
    ]
    assert [row["reward"] for row in whole] == pytest.approx([alone[index % 3] for index in range(ROWS + 5)], abs=1e-5)
    assert len(set(alone)) == 3
    assert lines == ["reward: 256 of 261 rows", "reward: 261 of 261 rows"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "A", "completion": "b"}\n\n{"prompt": "A"\n', "jsonl: line 3: Expecting"),
        ("a.jsonl", '{"prompt": "A", "completion": null}\n', "line 1: completion is null, not a text"),
        ("a.jsonl", '{"prompt": "", "completion": " "}\n', "line 1: prompt and completion are empty"),
        ("a.jsonl", '{"prompt": "A", "completion": "b \\ud83d"}\n', "line 1: it holds half of a surrogate pair"),
        ("a.jsonl", "\n", "it has no rows"),
        ("a.csv", 'prompt,completion\nA,b\n"C\nD",e\nF\n', "line 5 has not as many cells as there are columns"),
        ("a.csv", "prompt,completion,reward\nA,b,1\n", "it has a column 'reward' already"),
        ("a.csv", "prompt,completion,prompt\nA,b,C\n", "two columns have one name: prompt, completion, prompt"),
        ("a.parquet", "no parquet", "cannot be read as parquet"),
        ("a.txt", "A b", "the format must be one of parquet, csv, jsonl"),
    ],
)
def test_a_bad_file_is_reported_by_line_and_nothing_is_written(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content, "utf-8")
    with pytest.raises(UserError) as error:
        score(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS_OF_TEXTS)
    (tmp_path / "b.jsonl").write_text("mine")
    for name, message in {"b.jsonl": "is there already and is not overwritten", "b.csv": "has the format of"}.items():
        with pytest.raises(UserError, match=message):
            score(path, to=tmp_path / name)


def test_a_score_that_is_not_finite_is_reported_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.rewards.grammar import GrammarJudge

    scores = torch.tensor([1.0, float("nan"), 2.0])
    monkeypatch.setattr(GrammarJudge, "__call__", lambda self, completions: scores)
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: the reward of this row is nan"):
        score(write(tmp_path / "a.jsonl", ROWS_OF_TEXTS))
    assert not (tmp_path / "a.scored.jsonl").exists()


def reward_model() -> RewardModel:
    lm = prepared(network("qwen2", vocab_size=VOCAB, tie_word_embeddings=True))
    for parameter in lm.parameters():
        parameter.data.mul_(3.0)
    head = torch.nn.Linear(32, 1)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.constant_(head.bias, BIAS)
    return RewardModel(lm, head)


def classifier(made: RewardModel, folder: Path) -> str:
    """Write the same network as a classifier with one output, which has no bias; its tokenizer adds EOS."""
    config = made.lm.config
    config.num_labels, config.id2label, config.label2id = 1, {0: "reward"}, {"reward": 0}
    scorer = AutoModelForSequenceClassification.from_config(config)
    scorer.model.load_state_dict(made.lm.model.state_dict())
    scorer.score.weight.data.copy_(made.head.weight)
    scorer.save_pretrained(folder)
    words = train_tokenizer(TEXTS * 3, VOCAB)
    end = [(words.eos_token, words.eos_token_id)]
    words.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {words.eos_token}", special_tokens=end)
    words.padding_side = "right"
    words.save_pretrained(folder)
    return str(folder)


def recorded_reward(layout: Layout) -> None:
    config = smoke()
    prompts, reward = (layout.root / "store" / stage / "made" for stage in ("prompts", "reward"))
    train_tokenizer(TEXTS * 3, VOCAB).save_pretrained(prompts / "tokenizer")
    spec = config.reward.scorers()["reward"].model_dump(mode="json")
    made: dict[str, Any] = {"spec": spec, "mean": MEAN, "std": STD}
    reward_model().save(reward)
    meta = {"kind": "learned", "judge": "grammar", "parts": {"reward": made}, "mean": 0.0, "std": 1.0}
    write_manifest(prompts, "prompts", prompts.name, {}, {})
    write_manifest(reward, "reward", reward.name, {}, meta)
    put_record(layout, config, (prompts, reward), "made")
    write_sealed(layout.study("made", "smoke").study_file, {})


def test_a_folder_with_a_classifier_scores_too_and_a_label_is_for_it_alone(layout: Layout, tmp_path: Path) -> None:
    """The classifier computes what the trained reward computes before its calibration."""
    recorded_reward(layout)
    folder = classifier(reward_model(), tmp_path / "model")
    path = write(tmp_path / "a.jsonl", ROWS_OF_TEXTS)
    theirs = [row["reward"] for row in read(score(path, folder, to=tmp_path / "b.jsonl"))]
    ours = [row["reward"] for row in read(score(path, "made/base/0", to=tmp_path / "c.jsonl", layout=layout))]
    assert [(one + BIAS - MEAN) / STD for one in theirs] == pytest.approx(ours, abs=1e-5)
    with pytest.raises(UserError, match="the model's labels are reward"):
        score(path, folder, to=tmp_path / "d.jsonl", label="GOOD")
    with pytest.raises(UserError, match="--label 'GOOD': it chooses an output of a classifier"):
        score(path, to=tmp_path / "d.jsonl", label="GOOD")
