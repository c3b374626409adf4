"""A stand-in for a base of the hub: a small random network with a tokenizer of its own, in a folder of the same layout.

python -m pipeline.tiny_base FOLDER --texts REVIEWS [--architecture gpt2|qwen2|llama] [--width 128] [--layers 4]
    [--vocab 2000]
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

POSITIONS = 512


def build(folder: Path, texts: list[str], architecture: str, width: int, layers: int, vocab: int) -> int:
    """Write config, safetensors and tokenizer; returns the number of parameters. The head size is 32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if (folder / "config.json").exists():
        raise UserError(f"{folder} holds a model already; give a new folder")
    if width % 32:
        raise UserError(f"--width {width}: must be a multiple of 32")
    tokenizer = train_tokenizer(texts, vocab)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": True,
    }
    sizes |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 32}
    if architecture != "gpt2":
        sizes |= {"intermediate_size": 8 * width // 3, "num_key_value_heads": width // 32}
    config = AutoConfig.for_model(architecture, **sizes, bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Read the arguments, build, and say what was built."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.tiny_base", description="A small random base in the hub's layout."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", required=True, help="file or folder with columns text,label, as data.local.path")
    parser.add_argument("--architecture", choices=["gpt2", "qwen2", "llama"], default="gpt2")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=2000)
    given = parser.parse_args()
    try:
        texts = load_corpus(DataConfig(source="local", local=LocalSettings(path=given.texts), sft_texts=8000)).train
        count = build(given.folder, texts, given.architecture, given.width, given.layers, given.vocab)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(
        f"{given.folder}: {given.architecture}, {count / 1e6:.2f} M parameters, its tokenizer from {len(texts)} texts"
    )


if __name__ == "__main__":
    main()
