"""The stage of the guarded judge: the guard's fit to real texts, and how many further texts it faults.

Of the training texts every fifth sets the thresholds; n-grams and phrases are those of the others. The error is
measured on the held-out texts, which are part of neither. All texts are cut as prompts and responses are. Writes
``ngrams.safetensors``, ``phrases.safetensors``, ``thresholds.json``, ``tokenizer/`` and ``summary.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.trial import TrialConfig
from pipeline.data.prompts import opening
from pipeline.errors import UserError
from pipeline.intervals import wilson
from pipeline.models.tokenizers import load_tokenizer
from pipeline.rewards.fluency import FEWEST, RULES, FluencyGuard, LexiconReward, phrases_of, thresholds_of
from pipeline.rewards.ngrams import NGrams
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact

FOLDS = 5
"""One of so many training texts sets the thresholds."""
ENCODED = 256
"""Texts tokenised at a time."""


def judge(cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact) -> dict[str, Any]:
    """Fit the model of real texts, set the thresholds, measure the judge. Raises `UserError` for too few texts."""
    tokenizer = load_tokenizer(prompts.path / "tokenizer")
    texts = pd.read_parquet(prompts.path / "sft.parquet")["text"].tolist()
    kept = list(_cut(cfg, texts[::FOLDS], tokenizer, 4))
    fitted = [text for place, text in enumerate(texts) if place % FOLDS]
    reporter.progress("judge", 0, 3, "counting n-grams")
    parts = (fitted[start : start + ENCODED] for start in range(0, len(fitted), ENCODED))
    rows = (row for part in parts for row in tokenizer(part, add_special_tokens=False)["input_ids"])
    model, phrases = NGrams.fit(rows, len(tokenizer), tokenizer.eos_token_id), phrases_of(fitted)
    reporter.progress("judge", 1, 3, "thresholds")
    guard = FluencyGuard(tokenizer, model, phrases, LexiconReward(), cfg.train.response_length, {})
    try:
        thresholds = thresholds_of([guard.read(prompt, rest, True) for prompt, rest in kept])
    except ValueError:
        raise UserError(
            f"judge: one training text in {FOLDS} sets the guard's thresholds; that takes {FEWEST} texts of at least a"
            f" word, and {len(texts)} training texts leave {len(kept)}; use about {FOLDS * FEWEST} (data.sft_texts), or"
            " judge.kind: lexicon or classifier"
        ) from None
    guard = replace(guard, thresholds=thresholds)
    guard.save(out)
    tokenizer.save_pretrained(out / "tokenizer")
    reporter.progress("judge", 2, 3, "errors on held-out texts")
    heldout = pd.read_parquet(prompts.path / "heldout_texts.parquet")["text"].tolist()
    openings = list(_cut(cfg, heldout, tokenizer, 5))
    cut = ((prompt, *shortened(tokenizer, prompt, rest, guard.length)) for prompt, rest in openings)
    share = sum(bool(guard.faults(*one)) for one in cut) / len(openings)
    low, high = wilson(share, len(openings))
    summary = {
        "fitted_texts": len(fitted),
        "threshold_texts": len(kept),
        "length": guard.length,
        **{f"threshold/{name}": bounds[-1] for name, bounds in thresholds.items()},
        **{f"share/{name}": rule.share for name, rule in RULES.items()},
        "real/n": len(openings),
        "real/faulty": share,
        "real/faulty_low": low,
        "real/faulty_high": high,
    }
    write_json(out / "summary.json", summary)
    reporter.progress("judge", 3, 3)
    note = f"{share:.1%} [{low:.1%}, {high:.1%}] of {len(openings)} held-out texts have a fault"
    return {"note": note, **summary}


def shortened(tokenizer: Any, prompt: str, completion: str, length: int) -> tuple[str, bool]:
    """A completion as a policy would have written it: its first `length` tokens, and whether these are all."""
    places = tokenizer(prompt + completion, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ends = [end - len(prompt) for _, end in places if end > len(prompt)]
    return (completion, True) if len(ends) <= length else (completion[: ends[length - 1]], False)


def _cut(cfg: TrialConfig, texts: Sequence[str], tokenizer: Any, stream: int) -> Iterator[tuple[str, str]]:
    low, high = cfg.data.prompt_length
    lengths = np.random.default_rng([cfg.data.seed, stream]).integers(low, high + 1, len(texts))
    for text, length in zip(texts, lengths.tolist(), strict=True):
        if prompt := opening(text, length, cfg.data.prompt_unit, tokenizer):
            yield prompt, text[len(prompt) :]
