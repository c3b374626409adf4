"""A byte-level BPE tokenizer of Qwen2's class, trained on the texts: reads any text, pad distinct from EOS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
