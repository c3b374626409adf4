"""A stand-in for a base of the hub: a small random network with a tokenizer of its own, in a folder of the same layout.

python -m pipeline.tiny_base FOLDER --texts REVIEWS [--architecture gpt2|qwen2|llama]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pipeline.data.corpus import load_corpus
from pipeline.data.settings import DataConfig, LocalSettings
from pipeline.errors import UserError
from pipeline.models.tokenizers import train_tokenizer

WIDTH, HEADS = 128, 4


def build(folder: Path, texts: list[str], architecture: str) -> int:
    """Write config, safetensors and tokenizer; returns the number of parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if (folder / "config.json").exists():
        raise UserError(f"{folder} holds a model already; give a new folder")
    tokenizer = train_tokenizer(texts, 2000)
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": HEADS}
    if architecture != "gpt2":
        sizes |= {"intermediate_size": 8 * WIDTH // 3, "num_key_value_heads": HEADS}
    config = AutoConfig.for_model(
        architecture, **sizes, vocab_size=len(tokenizer), max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Read the arguments, build, and print the number of parameters."""
    parser = argparse.ArgumentParser(description="A small random base in the hub's layout.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", required=True, help="file or folder with columns text,label, as data.local.path")
    parser.add_argument("--architecture", choices=["gpt2", "qwen2", "llama"], default="gpt2")
    given = parser.parse_args()
    try:
        texts = load_corpus(DataConfig(source="local", local=LocalSettings(path=given.texts), sft_texts=8000)).train
        count = build(given.folder, texts, given.architecture)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"{given.folder}: {given.architecture}, {count / 1e6:.2f} M parameters, tokenizer from {len(texts)} texts")


if __name__ == "__main__":
    main()
