"""Bases as they come: tokens that end a clause or a sentence, spaces, vocabularies that do not fit, half precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import smoke
from safetensors.torch import load_file, save_file
from small_tokenizers import TEXTS, sentencepiece

from pipeline.errors import UserError
from pipeline.forecast.shapes import shape_of
from pipeline.models.loading import pretrained_model
from pipeline.models.policy import Episodes
from pipeline.models.sampling import decode, tokenize_prompts
from pipeline.models.tokenizers import closing_tokens, pretrained_tokenizer, train_tokenizer


def answered(tokenizer: Any, prompts: list[str], wholes: list[str]) -> tuple[list[str], list[str]]:
    """Responses that complete `prompts` to `wholes`, decoded, and what they must be."""
    ids, mask = tokenize_prompts(tokenizer, prompts)
    rows = [tokenizer(whole, add_special_tokens=False)["input_ids"] for whole in wholes]
    starts = mask.sum(1).tolist()
    responses = [row[start:] for row, start in zip(rows, starts, strict=True)]
    assert all(responses)
    width = max(map(len, responses)) + 1
    grid = torch.tensor([[*row, *[tokenizer.eos_token_id] * (width - len(row))] for row in responses])
    lengths = torch.tensor([len(row) + 1 for row in responses])  # EOS, which is padding as well, is no text
    valid = torch.arange(width) < lengths[:, None]
    episodes = Episodes(torch.cat([ids, grid], dim=1), mask, valid, torch.ones(len(prompts)).bool())
    return decode(tokenizer, episodes), [whole[len(prompt) :] for prompt, whole in zip(prompts, wholes, strict=True)]


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_prompt_and_completion_make_the_text(kind: str) -> None:
    tokenizer = sentencepiece() if kind == "sentencepiece" else train_tokenizer(TEXTS, 600)
    prompts = ["The acting", "The", "I thought the plot"]
    wholes = ["The acting was superb , truly .", "The music is  loud", "I thought the plot was dull ."]
    if kind == "bytes":
        wholes[1] += " Ünïcode"
    found, wanted = answered(tokenizer, prompts, wholes)
    assert found == wanted
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


def damaged(folder: Path, how: str) -> None:
    """Break a sound base."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    match how:
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "missing weights":
            save_file({name: one for name, one in load_file(weights).items() if "lm_head" not in name}, weights)
        case "GPTQ":
            quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
            config.write_text(json.dumps(json.loads(config.read_text()) | quantized))
        case "no JSON":
            config.write_text("{ broken")
        case "no size":
            config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": "many"}))
        case "no tokenizer":
            (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize("how", ["cut weights", "missing weights", "GPTQ", "no JSON", "no size", "no tokenizer"])
def test_a_base_that_cannot_be_loaded_is_the_users_to_put_right(tmp_path: Path, how: str) -> None:
    base(tmp_path, 512)
    damaged(tmp_path, how)
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
