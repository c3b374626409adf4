"""Texts, and a tokenizer that is not ours."""

from __future__ import annotations

from typing import Any

from pipeline.config.data import DataConfig
from pipeline.data.corpus import load_corpus

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
