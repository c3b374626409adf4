"""A byte-level BPE tokenizer trained on the texts: total on any input, pad distinct from EOS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PAD, EOS = "<pad>", "<eos>"


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """A transformers tokenizer of at most `vocab_size` entries; equal texts give equal files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )
