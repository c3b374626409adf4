"""A stand-in for a base of the hub: a small random GPT-2 with a tokenizer of its own, in a folder of the same layout.

python -m tests.tiny_base FOLDER REVIEWS, the latter as `data.local.path`
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from pipeline.data.corpus import load_corpus
from pipeline.data.settings import DataConfig, LocalSettings
from pipeline.models.tokenizers import train_tokenizer


def build(folder: Path, texts: list[str]) -> None:
    tokenizer = train_tokenizer(texts, 2000)
    torch.manual_seed(0)
    sizes = GPT2Config(
        n_embd=128, n_layer=4, n_head=4, n_positions=512, vocab_size=len(tokenizer), bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    GPT2LMHeadModel(sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    build(
        Path(sys.argv[1]),
        load_corpus(DataConfig(source="local", local=LocalSettings(path=sys.argv[2]), sft_texts=8000)).train,
    )
