from __future__ import annotations

import json
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from helpers import Recorder, recorded, smoke

from pipeline.config.loading import dotted_keys
from pipeline.config.names import TRAINING
from pipeline.data.corpus import load_corpus
from pipeline.data.settings import DataConfig
from pipeline.errors import UserError
from pipeline.models.loading import load_snapshot
from pipeline.models.tokenizers import load_tokenizer, pretrained_tokenizer
from pipeline.run.layout import Layout
from pipeline.trial import run_trial
from studies.execution.export import export

LOAD = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
assert not any("pipeline" in path for path in sys.path)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], use_safetensors=True)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
prompt = tokenizer("The acting was", return_tensors="pt", add_special_tokens=False)
answer = model.generate(**prompt)
assert answer.shape[1] > prompt["input_ids"].shape[1]
print(type(model).__name__, model.generation_config.top_k, model.generation_config.do_sample, model.dtype)
"""


@pytest.mark.slow
def test_a_clean_process_loads_it_without_this_package(smoke_layout: Layout, tmp_path: Path) -> None:
    record = recorded(smoke_layout)
    target = export("demo/base/0", tmp_path / "policy", smoke_layout)
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, str(target)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Qwen2ForCausalLM", "0", "True", "torch.float32"]
    trained = load_snapshot(smoke_layout.root / record.stages["train"].path / "policy", torch.device("cpu"))
    ours = load_snapshot(target, torch.device("cpu")).state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in trained.state_dict().items())
    settings = json.loads((target / "generation_config.json").read_text())
    assert settings["max_new_tokens"] == record.config["train"]["response_length"]
    assert not list(tmp_path.glob(".*"))


ODD = "<eos>|<pad>|  |\t|\r\n|\n\n\n|\u00a0|\u200d|\0|don't|I'LL|--|12345|café|Ångström|ﬁ|漢字|🎬"


def hard_texts(n: int) -> list[str]:
    """Reviews with special tokens, white space, digits and accents in them, composed or decomposed, and every third
    text of random Unicode characters."""
    rng, reviews = random.Random(0), load_corpus(DataConfig(sft_texts=200)).train
    drawn = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in {"Cs", "Cn", "Co"}]
    texts = []
    for index in range(n):
        pieces = rng.choice(reviews).split(" ") if index % 3 else rng.choices(drawn, k=rng.randrange(40))
        for piece in rng.choices([*ODD.split("|"), "<|endoftext|>", "<|im_start|>"], k=rng.randrange(5)):
            pieces.insert(rng.randrange(len(pieces) + 1), piece)
        joined = rng.choice(["", " "]).join(pieces)
        texts.append(unicodedata.normalize(rng.choice(["NFC", "NFD"]), joined))
    return texts


def test_the_exported_tokenizer_is_the_one_of_training(smoke_layout: Layout, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    record = recorded(smoke_layout)
    target = export("demo/base/0", tmp_path / "policy", smoke_layout)
    trained, texts = load_tokenizer(smoke_layout.root / record.stages["prompts"].path / "tokenizer"), hard_texts(10_000)
    wanted = trained(texts)["input_ids"]
    back = trained.batch_decode(wanted)
    for loaded in (AutoTokenizer.from_pretrained(target), pretrained_tokenizer(str(target), None)):
        assert loaded(texts)["input_ids"] == wanted
        assert loaded.batch_decode(wanted) == back


def test_the_card_has_the_figures_with_their_intervals_and_the_recipe(smoke_layout: Layout, tmp_path: Path) -> None:
    record = recorded(smoke_layout)
    card = (export("demo/base/0", tmp_path / "policy", smoke_layout) / "README.md").read_text()
    for key in ("eval/win_rate", "eval/win_rate_proxy"):
        rate, low, high = (record.summary[f"{key}{end}"] for end in ("", "_low", "_high"))
        assert f"| {rate:.4g} [{low:.4g}, {high:.4g}] | fraction | 64 |" in card
    assert f"| {record.summary['eval/gold']:.4g} [" in card
    assert all(f"| {key} |" in card for key in dotted_keys() if key.partition(".")[0] in TRAINING)
    assert "judged by the grammar judge." in card
    assert "## Limits" in card
    assert str(smoke_layout.root) not in card


def test_the_card_of_a_policy_on_chains_loads_a_tokenizer_that_keeps_its_words_apart(
    smoke_layout: Layout, tmp_path: Path
) -> None:
    task = {"data__source": "chains", "data__chains__group": "s3", "data__chains__lengths": (2, 3)}
    recorded(smoke_layout, study="chains", reward__kind="verifier", train__response_length=11, **task)
    target = export("chains/base/0", tmp_path / "policy", smoke_layout)
    card = (target / "README.md").read_text()
    assert "products in the group s3" in card
    code = card.split("```python\n")[1].split("```")[0].replace("path/to/this/folder", str(target))
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("312 321 ?")


def test_an_exported_policy_is_a_base_that_is_trained_on(smoke_layout: Layout, tmp_path: Path) -> None:
    recorded(smoke_layout)
    target = export("demo/base/0", tmp_path / "policy", smoke_layout)
    config = smoke(model__base=str(target), train__steps=4, sft__steps=2)
    assert run_trial(config, Layout(tmp_path / "out"), Recorder()).steps == 4


@pytest.mark.slow
def test_an_adapter_is_merged(smoke_layout: Layout, tmp_path: Path) -> None:
    recorded(smoke_layout, study="lora", adapter__kind="lora", train__steps=8)
    target = export("lora/base/0", tmp_path / "policy", smoke_layout)
    assert not any("lora" in name for name in load_snapshot(target, torch.device("cpu")).state_dict())


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("demo/base/one", "write it as STUDY/ARM/SEED"),
        ("demos/base/0", "did you mean 'demo'"),
        ("demo/bose/0", r"did you mean 'base/0'\?; there are: base/0"),
        ("twice/base/0", "smoke, tiny; choose one with --profile"),
    ],
)
def test_a_run_that_is_not_there_is_reported_with_those_that_are(
    smoke_layout: Layout, tmp_path: Path, run: str, words: str
) -> None:
    recorded(smoke_layout)
    for profile in ("smoke", "tiny"):
        recorded(smoke_layout, study="twice", profile=profile)
    with pytest.raises(UserError, match=words):
        export(run, tmp_path / "policy", smoke_layout)
    assert not list(tmp_path.iterdir())
    assert export("twice/base/0", tmp_path / "policy", smoke_layout, "tiny").exists()
    with pytest.raises(UserError, match="is there already and not empty"):
        export("demo/base/0", tmp_path / "policy", smoke_layout)
