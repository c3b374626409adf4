from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tinynets
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, BertModel

from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.models.tokenizers import train_tokenizer
from pipeline.rewards.base import Completions
from pipeline.rewards.classifier import ClassifierReward, log_odds
from pipeline.rewards.classifier import load as load_classifier
from pipeline.rewards.kinds import ClassifierSettings

TEXTS = ["The acting was absolutely superb.", "The plot was dull and the cast not very good.", "It was bad."]


def completions(texts: list[str]) -> Completions:
    prompts = [text.split(" ")[0] for text in texts]
    return tinynets.completions(*((one, text.removeprefix(one)) for one, text in zip(prompts, texts, strict=True)))


def network(kind: str, **keys: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    limits = {"vocab_size": 300, "max_position_embeddings": 64, "pad_token_id": None if kind == "gpt2" else 0}
    labels = {"num_labels": 2, "id2label": {0: "BAD", 1: "GOOD"}}
    config = AutoConfig.for_model(kind, **{**sizes, **limits, **labels, **keys})
    return AutoModelForSequenceClassification.from_config(config).eval()


def save(model: Any, folder: Path) -> str:
    tokenizer = train_tokenizer(TEXTS * 3, 300)
    if model.config.pad_token_id is None:
        tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


def load(folder: str, label: str | None = "GOOD", batch: int = 8) -> ClassifierReward:
    cfg = ClassifierSettings(model=folder, label=label)
    return load_classifier("judge", cfg, torch.device("cpu"), Room("rows", batch))


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2"])
def test_every_architecture_scores_a_text_as_it_would_alone(tmp_path: Path, kind: str) -> None:
    model = network(kind)
    folder = save(model, tmp_path)
    scores = load(folder)(completions(TEXTS))
    tokenizer = train_tokenizer(TEXTS * 3, 300)
    with torch.no_grad():
        logits = torch.cat([model(torch.tensor([tokenizer(text)["input_ids"]])).logits for text in TEXTS])
    assert torch.allclose(scores, logits[:, 1] - logits[:, 0], atol=1e-5)
    assert torch.allclose(scores, -load(folder, "BAD", batch=1)(completions(TEXTS)), atol=1e-5)
    # Labels that do not exclude each other are judged one by one.
    model.config.problem_type = "multi_label_classification"
    assert torch.allclose(load(save(model, tmp_path))(completions(TEXTS)), logits[:, 1], atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_of_a_text_that_is_too_long_the_end_is_kept(tmp_path: Path, kind: str) -> None:
    reward = load(save(network(kind), tmp_path))
    long = "The " + "very " * 200 + "good plot was dull."
    scores = reward(completions([long, long.replace("dull", "superb"), "Odd " + long]))
    assert bool(scores.isfinite().all())
    assert scores[0] != scores[1]
    assert scores[0] == pytest.approx(float(scores[2]), abs=1e-5)


def test_a_tokenizer_of_another_model_is_told_when_a_text_has_its_tokens(tmp_path: Path) -> None:
    reward = load(save(network("bert", vocab_size=8), tmp_path))
    words = r"the classifier's tokenizer gives a text token number \d+, but its model has 8 tokens; take"
    with pytest.raises(UserError, match=words):
        reward(completions(TEXTS))


def test_a_single_output_needs_no_label_and_several_need_one(tmp_path: Path) -> None:
    one = save(network("bert", num_labels=1, id2label={0: "score"}), tmp_path / "one")
    assert load(one, None)(completions(TEXTS)).shape == (3,)
    two = save(network("bert"), tmp_path / "two")
    with pytest.raises(UserError, match=r"judge\.classifier\.label = None: the model's labels are BAD, GOOD$"):
        load(two, None)
    with pytest.raises(UserError, match="did you mean 'GOOD'"):
        load(two, "GOODE")


def test_log_odds_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]]))
    assert log_odds(logits, 1).item() == pytest.approx(0.0, abs=1e-6)
    assert log_odds(logits + 7, 0).item() == pytest.approx(-1.386294, abs=1e-5)


def test_what_is_no_classifier_is_refused(tmp_path: Path) -> None:
    headless = save(BertModel(network("bert").config), tmp_path)
    with pytest.raises(UserError, match=r"is no sequence classifier: its files lack classifier\.bias"):
        load(headless)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="could not be loaded as a sequence classifier"):
        load(headless)
