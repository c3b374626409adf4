"""Stage 1: texts, prompts and the tokenizer.

Writes ``sft.parquet`` (text), ``heldout_texts.parquet`` (text; nats where the source has probabilities),
``train.parquet`` (prompt), ``heldout.parquet`` (prompt), ``tokenizer/`` and ``summary.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.trial import TrialConfig
from pipeline.data.corpus import load_corpus
from pipeline.data.prompts import make_prompts
from pipeline.models.tokenizers import pretrained_tokenizer, train_tokenizer, word_tokenizer
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter


def prompts(cfg: TrialConfig, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Read or generate the texts and cut the prompts."""
    data = cfg.data
    corpus = load_corpus(data)
    if cfg.model.base is not None:
        tokenizer = pretrained_tokenizer(cfg.model.base, cfg.model.revision)
    elif corpus.words:
        tokenizer = word_tokenizer(corpus.words)
    else:
        tokenizer = train_tokenizer(corpus.train, data.vocab_size)
    tokenizer.save_pretrained(out / "tokenizer")
    if corpus.prompts is not None:
        train, heldout = corpus.prompts
    else:
        rng = np.random.default_rng([data.seed, 1])
        train = make_prompts(corpus.train, data.train_prompts, data, tokenizer, rng, taken=frozenset())
        heldout = make_prompts(corpus.heldout, data.heldout_prompts, data, tokenizer, rng, taken=frozenset(train))
    for name, column, rows in (
        ("sft", "text", corpus.train),
        ("train", "prompt", train),
        ("heldout", "prompt", heldout),
    ):
        pd.DataFrame({column: rows}).to_parquet(out / f"{name}.parquet", index=False)
    texts = pd.DataFrame({"text": corpus.heldout[: data.heldout_prompts]})
    if corpus.heldout_nats is not None:
        texts["nats"] = corpus.heldout_nats[: len(texts)]
    texts.to_parquet(out / "heldout_texts.parquet", index=False)
    summary = {
        **corpus.counts,
        "sft_texts": len(corpus.train),
        "train_prompts": len(train),
        "heldout_prompts": len(heldout),
        "vocab_size": len(tokenizer),
    }
    write_json(out / "summary.json", summary)
    for name, made in (("train_prompts", train), ("heldout_prompts", heldout)):
        if len(made) < (asked := getattr(data, name)):
            reporter.warn(f"data.{name} asks for {asked:,} prompts; the texts give {len(made):,}, which are used")
    # SFT learns the responses of texts whose prompts have no order to learn.
    ask = tokenizer.convert_tokens_to_ids(corpus.words[0]) if corpus.words else None
    return {"note": corpus.note, "ask": ask, **summary}
