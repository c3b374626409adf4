"""Stage 2: supervised fine-tuning on the texts; the result is the reference snapshot, frozen from here on.

Writes ``model/`` (save_pretrained, safetensors) and ``summary.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config.trial import TrialConfig
from pipeline.models.loading import pretrained_model, scratch_model
from pipeline.models.process import bench
from pipeline.models.tokenizers import encode, load_tokenizer
from pipeline.models.trunk import check_room
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.training.language_model import MAX_POSITIONS, fit, measure, text_room


def sft(cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact) -> dict[str, Any]:
    """Train the policy's starting point and record its perplexity on held-out texts."""
    with bench(cfg.runtime, out, reporter.warn) as at:
        tokenizer = load_tokenizer(prompts.path / "tokenizer")
        if cfg.model.base is None:
            special = tokenizer.pad_token_id, tokenizer.eos_token_id
            model = scratch_model(cfg.model, len(tokenizer), *special, MAX_POSITIONS, cfg.sft.seed)
        else:
            model = pretrained_model(cfg.model.base, cfg.model.revision)
        check_room(model, "sft.max_tokens", cfg.sft.max_tokens)
        model.to(at.device)
        texts = pd.read_parquet(prompts.path / "sft.parquet")["text"].tolist()
        rows = encode(tokenizer, texts, cfg.sft.max_tokens)
        ask = prompts.meta.get("ask")
        fit(model, rows, cfg.sft, reporter, cfg.runtime.gradient_checkpointing, ask)
        heldout = pd.read_parquet(prompts.path / "heldout_texts.parquet")
        rows = encode(tokenizer, heldout["text"].tolist(), cfg.sft.max_tokens)
        whole = all(row[-1] == tokenizer.eos_token_id for row in rows)
        nats = float(heldout["nats"].mean()) if "nats" in heldout and whole else None
        summary = measure(model, rows, text_room(model, cfg.sft, reporter), nats, ask)
        summary["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        model.save_pretrained(out / "model")
        write_json(out / "summary.json", summary)
        return summary
