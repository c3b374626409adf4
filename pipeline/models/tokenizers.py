"""Tokenizers: of networks, or trained on the texts; texts as token rows; and the tokens that end a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.errors import UserError


def pretrained_tokenizer(base: str, revision: str | None) -> Any:
    """The tokenizer of a base model, with a pad token (its EOS when it has none of its own), padding on the left.

    Raises `UserError` where it does not load, has no EOS, or has tokens that the network has no embedding for; places
    without a token are common, and harmless.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left", revision=revision, trust_remote_code=False)
        places = int(AutoConfig.from_pretrained(base, revision=revision, trust_remote_code=False).vocab_size)
    except Exception as error:  # each library below has its own class for a file that is none of its kind
        raise UserError(cannot_load("model.base", base, revision, error)) from None
    # transformers makes an empty one of a folder without its files.
    if not tokenizer("A film", add_special_tokens=False)["input_ids"]:
        raise UserError(
            f"model.base = '{base}': its tokenizer knows no words; the files of a tokenizer must lie beside the network"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f"model.base = '{base}': its tokenizer has no EOS token, so a response could not end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    token, highest = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    if highest >= places:
        raise UserError(
            f"model.base = '{base}': its tokenizer has a token {token!r} with number {highest}, its network embeddings"
            f" for {places} (0 and up); use the tokenizer that belongs to it"
        )
    return tokenizer


def load_tokenizer(path: Path) -> Any:
    """One of our own tokenizer folders."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def cannot_load(key: str, base: str, revision: str | None, error: Exception) -> str:
    """Return why the base that `key` names could not be loaded, and what to do."""
    from huggingface_hub.constants import HF_HUB_CACHE

    at = f" at revision {revision}" if revision else ""
    why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    searched = "" if Path(base).is_dir() else f"; searched the network and the cache {HF_HUB_CACHE}"
    return (
        f"{key} = '{base}'{at} could not be loaded ({why}){searched}. Set model.base to a folder that holds"
        " config.json, all *.safetensors of a causal language model that is not quantised, and its tokenizer"
    )


CLOSERS: dict[str, tuple[str, ...]] = {"clause": tuple(",;:.!?"), "sentence": tuple(".!?")}
"""Last characters of the text of such a token, but for space, and quotes and brackets that close. A new line anywhere
in a token ends both."""
AFTER = "\"'”’»)]"
"""May stand behind the closer."""


def closing_tokens(
    tokenizer: Any, group: Literal["token", "clause", "sentence", "sequence"], vocabulary: int
) -> Tensor | None:
    """(vocabulary,) bool, True for tokens that end a group; None where no text decides what a group is.

    Special tokens, and places of the vocabulary without a token, end none.
    """
    if group not in CLOSERS:
        return None
    closes = torch.zeros(vocabulary, dtype=torch.bool)
    for token in tokenizer.get_vocab().values():
        text = tokenizer.decode([token], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        closes[token] = "\n" in text or text.strip().rstrip(AFTER).endswith(CLOSERS[group])
    return closes


PAD, EOS = "<pad>", "<eos>"


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """A transformers tokenizer of at most `vocab_size` entries; equal texts give equal files.

    It normalises (NFC) and splits text as Qwen2 does: beside a ``config.json`` of that type, `AutoTokenizer` keeps
    vocabulary and merges, and takes all else from this class.
    """
    from tokenizers import pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer(
        vocab={PAD: 0, EOS: 1},
        pad_token=PAD,
        eos_token=EOS,
        unk_token=None,  # the default would be one more token, without an embedding
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.backend_tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def word_tokenizer(words: Sequence[str]) -> Any:
    """A transformers tokenizer of so many words, one token each, between white space. Other words become padding."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate((PAD, EOS, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


ENCODED = 256
"""Texts tokenised at a time: a tokenizer's output on a whole review takes many times the memory of the tokens that are
kept."""


def encode(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Token rows with EOS at the end, unless the text was cut before it."""
    rows = list[list[int]]()
    for start in range(0, len(texts), ENCODED):
        encoded = tokenizer(texts[start : start + ENCODED], add_special_tokens=False)["input_ids"]
        rows += [[*row, tokenizer.eos_token_id][:max_tokens] for row in encoded]
    return rows


def collate(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded ids (B, L) int64 and mask (B, L) bool, by lengths alone."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    return ids.to(device), mask.to(device)
