"""Bases as they come: tokens that end a clause or a sentence, spaces, vocabularies that do not fit, half precision."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import smoke
from safetensors.torch import load_file, save_file
from small_tokenizers import TEXTS, sentencepiece

from pipeline.errors import UserError
from pipeline.forecast.memory import shape_of
from pipeline.models.loading import pretrained_model
from pipeline.models.policy import Episodes
from pipeline.models.sampling import decode, tokenize_prompts
from pipeline.models.tokenizers import closing_tokens, pretrained_tokenizer, train_tokenizer


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_prompt_and_completion_make_the_text(kind: str) -> None:
    """EOS, which is padding as well, is no text."""
    tokenizer: Any = sentencepiece() if kind == "sentencepiece" else train_tokenizer(TEXTS, 600)
    prompts = ["The acting", "The", "I thought the plot"]
    added = [" was superb , truly .", " music is  loud" + " Ünïcode" * (kind == "bytes"), " was dull ."]
    ids, mask = tokenize_prompts(tokenizer, prompts)
    wholes = [prompt + text for prompt, text in zip(prompts, added, strict=True)]
    rows = tokenizer(wholes, add_special_tokens=False)["input_ids"]
    responses = [row[start:] for row, start in zip(rows, mask.sum(1).tolist(), strict=True)]
    lengths = torch.tensor([len(row) + 1 for row in responses])
    grid = torch.full((3, int(lengths.max())), tokenizer.eos_token_id)
    for place, row in enumerate(responses):
        grid[place, : len(row)] = torch.tensor(row)
    valid = torch.arange(grid.shape[1]) < lengths[:, None]
    episodes = Episodes(torch.cat([ids, grid], dim=1), mask, valid, torch.ones(3).bool())
    assert decode(tokenizer, episodes) == added
    if kind == "sentencepiece":  # what this is about: the response by itself has lost its space
        assert tokenizer.decode(tokenizer(" was dull .", add_special_tokens=False)["input_ids"])[0] != " "


def base(folder: Path, places: int, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = train_tokenizer(TEXTS, 400)
    tokenizer.save_pretrained(folder)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=places, hidden_size=16, num_hidden_layers=2, intermediate_size=32, **heads)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return tokenizer


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused_in_one_line(tmp_path: Path) -> None:
    highest = len(base(tmp_path, 390)) - 1
    with pytest.raises(
        UserError, match=rf"has a token .* with number {highest}, its network embeddings for 390"
    ) as refused:
        pretrained_tokenizer(str(tmp_path), None)
    assert "\n" not in str(refused.value)
    base(tmp_path / "room", 512)
    assert len(pretrained_tokenizer(str(tmp_path / "room"), None)) == highest + 1


def reconfigured(folder: Path, **changes: Any) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


def without_head(folder: Path) -> None:
    weights = folder / "model.safetensors"
    save_file({name: one for name, one in load_file(weights).items() if "lm_head" not in name}, weights)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut weights": lambda folder: os.truncate(folder / "model.safetensors", 5_000),
    "missing weights": without_head,
    "GPTQ": lambda folder: reconfigured(folder, quantization_config={"quant_method": "gptq", "bits": 4}),
    "no JSON": lambda folder: (folder / "config.json").write_text("{ broken"),
    "no size": lambda folder: reconfigured(folder, hidden_size="many"),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_base_that_cannot_be_loaded_is_the_users_to_put_right(tmp_path: Path, how: str) -> None:
    base(tmp_path, 512)
    DAMAGES[how](tmp_path)
    shape_of(smoke(model__base=str(tmp_path)))
    with pytest.raises(UserError) as refused:
        pretrained_tokenizer(str(tmp_path), None) and pretrained_model(str(tmp_path), None)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_base_in_half_precision_is_trained_in_fp32(tmp_path: Path, dtype: torch.dtype) -> None:
    base(tmp_path, 512, dtype)
    assert {one.dtype for one in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    model = pretrained_model(str(tmp_path), None)
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    assert all(one.requires_grad for one in model.parameters())


LINES = ["One.\n\nTwo; three, four: five! Six? Seven...\n", 'He said "no!" and left.', *TEXTS]
QUOTED = ['"No." "No." "No." (no.) (no.) (no.) "No," "No,"'] * 20


@pytest.mark.parametrize(
    ("lines", "text", "clauses", "sentences"),
    [
        (LINES, "I saw it, and we left. Why?", "I saw it,| and we left.| Why?|", "I saw it, and we left.| Why?|"),
        (LINES, "a; b: c! d", "a;| b:| c!| d", "a; b: c!| d"),
        (LINES, "a\nb", "aĊ|b", "aĊ|b"),
        # A quote or bracket behind the point is part of the end; by itself it ends nothing.
        (QUOTED, '"No." (no.) "No,"', '"No."| (no.)| "No,"|', '"No."| (no.)| "No,"'),
    ],
)
def test_a_bar_stands_behind_every_token_that_ends_a_group(
    lines: list[str], text: str, clauses: str, sentences: str
) -> None:
    tokenizer = train_tokenizer(lines, 500)
    for group, wanted in (("clause", clauses), ("sentence", sentences)):
        closes: Any = closing_tokens(tokenizer, group, len(tokenizer))  # type: ignore[arg-type]
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        cut = "".join(tokenizer.convert_ids_to_tokens(token) + "|" * bool(closes[token]) for token in ids)
        assert cut.replace("Ġ", " ") == wanted


def test_special_tokens_and_places_without_a_token_close_nothing() -> None:
    tokenizer = train_tokenizer(LINES, 500)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<stop.>"]})
    closes: Any = closing_tokens(tokenizer, "sentence", len(tokenizer) + 7)
    assert closes.shape == (len(tokenizer) + 7,)
    assert not closes[-7:].any()
    assert not closes[
        [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<stop.>")]
    ].any()
