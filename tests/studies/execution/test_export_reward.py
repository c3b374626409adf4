"""A reward model is exported as a classifier that gives the same texts the same scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded_trials import TEXTS, recorded_reward

from pipeline.config.loading import load_config
from pipeline.models.out_of_memory import Room
from pipeline.models.tokenizers import load_tokenizer
from pipeline.rewards.base import Completions
from pipeline.rewards.classifier import load
from pipeline.rewards.settings import PartConfig
from pipeline.run.layout import Layout
from pipeline.stages.sources import check_sources
from studies.execution.export_reward import OFFSET, export_reward
from studies.execution.score import scorer_of

CPU = torch.device("cpu")
PROMPTS = [text.split(" ")[0] for text in TEXTS]
REST = [text.removeprefix(prompt) for text, prompt in zip(TEXTS, PROMPTS, strict=True)]


def by_transformers(folder: Path, texts: list[str], side: str = "right") -> torch.Tensor:
    """Compute scores as somebody without this package would."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side=side)
    with torch.no_grad():
        logits = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    assert logits.shape == (len(texts), 1)
    return logits[:, 0] + getattr(model.config, OFFSET)


@pytest.mark.parametrize("pad_is_end", [False, True])
@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "llama"])
def test_transformers_gives_the_scores_of_training(layout: Layout, tmp_path: Path, kind: str, pad_is_end: bool) -> None:
    recorded_reward(layout, kind=kind, pad_is_end=pad_is_end)
    folder = export_reward("made/base/0", tmp_path / "model", layout)
    ours = scorer_of("--reward", "made/base/0", layout, None, None, CPU).score(PROMPTS, REST)[""]
    assert ours.std() > 0.1, "or any constant would do"
    assert torch.allclose(by_transformers(folder, TEXTS), ours, atol=1e-5)
    if kind != "gpt2":  # transformers numbers its positions from the padding on
        assert torch.allclose(by_transformers(folder, TEXTS, "left"), ours, atol=1e-5)
    alone = torch.cat([by_transformers(folder, [text]) for text in TEXTS])
    assert torch.allclose(alone, ours, atol=1e-5)
    tokens = load_tokenizer(folder)(TEXTS)["input_ids"]
    assert all(row[-1] == 1 and row.count(1) == 1 for row in tokens)
    assert load_tokenizer(folder).pad_token_id != 1


def test_the_folder_is_a_reward_of_another_configuration(layout: Layout, tmp_path: Path) -> None:
    recorded_reward(layout)
    folder = str(export_reward("made/base/0", tmp_path / "model", layout))
    config = load_config("smoke", {"reward.kind": "classifier", "reward.classifier.model": folder})
    check_sources(config, ["reward"])
    spec = PartConfig.model_validate({"kind": "classifier", "classifier": {"model": folder}})
    scorer = load("reward", spec.chosen, CPU, Room("rows", 2))
    ours = scorer_of("--reward", "made/base/0", layout, None, None, CPU).score(PROMPTS, REST)[""]
    theirs = scorer(Completions(None, PROMPTS, REST))  # type: ignore[arg-type]
    assert torch.allclose(theirs, ours, atol=1e-5), "the offset of config.json included"
    by_command = scorer_of("--reward", folder, layout, None, None, CPU).score(PROMPTS, REST)[""]
    assert torch.allclose(by_command, ours, atol=1e-5)
