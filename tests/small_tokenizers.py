"""Texts, and a tokenizer that is not ours."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

from pipeline.data.corpus import load_corpus
from pipeline.data.settings import DataConfig

TEXTS = load_corpus(DataConfig(sft_texts=200)).train
ODD = "<eos>|<pad>|  |\t|\r\n|\n\n\n|\u00a0|\u200d|\0|don't|I'LL|--|12345|café|Ångström|ﬁ|漢字|🎬"


def hard_texts(n: int) -> list[str]:
    """Reviews with special tokens, white space, digits and accents in them, composed or decomposed, and every third
    text of random Unicode characters."""
    rng = random.Random(0)
    drawn = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in {"Cs", "Cn", "Co"}]
    texts = []
    for index in range(n):
        pieces = rng.choice(TEXTS).split(" ") if index % 3 else rng.choices(drawn, k=rng.randrange(40))
        for piece in rng.choices([*ODD.split("|"), "<|endoftext|>", "<|im_start|>"], k=rng.randrange(5)):
            pieces.insert(rng.randrange(len(pieces) + 1), piece)
        joined = rng.choice(["", " "]).join(pieces)
        texts.append(unicodedata.normalize(rng.choice(["NFC", "NFD"]), joined))
    return texts


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
