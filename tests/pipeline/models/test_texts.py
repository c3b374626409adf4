from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import smoke
from safetensors.torch import load_file, save_file
from tinytrial import EOS, VOCAB, model

from pipeline.data.corpus import load_corpus
from pipeline.data.settings import DataConfig
from pipeline.errors import UserError
from pipeline.forecast.memory import shape_of
from pipeline.models.heads import LARGEST, learned_tokens, perplexity, text_nats, text_states
from pipeline.models.loading import freeze, pretrained_model
from pipeline.models.out_of_memory import BUCKET, Room
from pipeline.models.policy import Episodes
from pipeline.models.sampling import decode, tokenize_prompts
from pipeline.models.tokenizers import closing_tokens, encode, pretrained_tokenizer, train_tokenizer

TEXTS = load_corpus(DataConfig(sft_texts=200)).train


def sentencepiece() -> Any:
    """A tokenizer of the class of Llama's: spaces are parts of words; that of the first is added, and taken away
    again."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


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


def rows() -> list[list[int]]:
    """Texts of 2 to 24 tokens, out of order, more than a CPU takes at once."""
    stream = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 24, (2 * BUCKET + 5,), generator=stream).tolist()
    return [[*torch.randint(2, VOCAB, (length,), generator=stream).tolist(), EOS] for length in lengths]


@torch.no_grad()
def test_it_is_that_of_a_plain_loop_in_float64() -> None:
    """-log π of the tokens after the first, text by text and token by token, without padding."""
    network, texts = freeze(model()), rows()
    precise, nats = copy.deepcopy(network).double(), list[float]()
    for text in texts:
        tables = (precise(input_ids=torch.tensor([text[:n]])).logits[0, -1] for n in range(1, len(text)))
        nats.append(-sum(float(torch.log_softmax(one, 0)[text[n]]) for n, one in enumerate(tables, 1)))
    assert text_nats(network, texts, Room("", 512)).tolist() == pytest.approx(nats, rel=1e-5)
    tokens = sum(len(text) - 1 for text in texts)
    assert perplexity(network, texts, Room("", 512)) == pytest.approx(math.exp(sum(nats) / tokens), rel=1e-5)


@pytest.mark.parametrize(("factor", "wanted"), [(0.0, VOCAB), (1e6, math.exp(LARGEST))])
def test_a_network_without_knowledge_has_that_of_its_vocabulary_and_a_collapsed_one_a_finite_one(
    factor: float, wanted: float
) -> None:
    network = model()
    network.get_output_embeddings().weight.data.mul_(factor)
    assert perplexity(freeze(network), rows(), Room("", 512)) == pytest.approx(wanted)


class Words:
    """One token a word, its length; EOS is 0."""

    eos_token_id = 0

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        assert not add_special_tokens
        return {"input_ids": [[len(word) for word in text.split()] for text in texts]}


def test_texts_are_cut_and_end_where_they_are_whole() -> None:
    assert encode(Words(), ["a bb ccc dddd", "a bb", "ccc"], 3) == [[1, 2, 3], [1, 2, 0], [3, 0]]
    assert encode(Words(), ["a bb ccc dddd", "a bb"], 5) == [[1, 2, 3, 4, 0], [1, 2, 0]]


def test_only_what_stands_behind_the_first_ask_is_learned() -> None:
    """Two of the tokens of the first text and one of the second."""
    network, texts = freeze(model()), [[3, 7, 4, 5, 7], [7, 6]]
    _, labels, row = text_states(network, texts, torch.device("cpu"), ask=7)
    assert (labels.tolist(), row.tolist()) == ([4, 5, 7, 6], [0, 0, 0, 1])
    assert learned_tokens(texts, 7) == 4
    (whole,), (part,) = text_nats(network, texts[:1], Room("", 8)), text_nats(network, texts[:1], Room("", 8), 7)
    (first,) = text_nats(network, [texts[0][:2]], Room("", 8))
    assert float(whole) == pytest.approx(float(part + first), rel=1e-5)
