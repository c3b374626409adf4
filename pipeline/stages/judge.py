"""The stage of the guarded judge: the guard's fit to real texts, and the judge's error rates.

Of the training texts every fifth sets the thresholds; n-grams and phrases are those of the others. The errors are
measured on the held-out texts, which are part of neither. All texts are cut as prompts and responses are. Writes
``ngrams.safetensors``, ``phrases.safetensors``, ``thresholds.json``, ``tokenizer/``, ``errors.parquet`` (a row per
held-out text and attack) and ``summary.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.trial import TrialConfig
from pipeline.data.prompts import cut_at
from pipeline.errors import UserError
from pipeline.evaluation.judge_errors import Opening, errors, rates, shortened
from pipeline.models.tokenizers import load_tokenizer
from pipeline.rewards.fluency import FEWEST, RULES, FluencyGuard, Phrases, thresholds_of
from pipeline.rewards.lexicon import LexiconReward
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
    model, phrases = NGrams.fit(_encoded(tokenizer, fitted), len(tokenizer), tokenizer.eos_token_id), Phrases.of(fitted)
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
    heldout = pd.read_parquet(prompts.path / "heldout_texts.parquet")
    table = errors(_openings(cfg, heldout, tokenizer), guard, cfg.data.seed)
    table.to_parquet(out / "errors.parquet", index=False)
    measured = rates(table)
    summary = {
        "fitted_texts": len(fitted),
        "threshold_texts": len(kept),
        "length": guard.length,
        **{f"threshold/{name}": bounds[-1] for name, bounds in thresholds.items()},
        **{f"share/{name}": rule.share for name, rule in RULES.items()},
        **measured,
    }
    write_json(out / "summary.json", summary)
    reporter.progress("judge", 3, 3)
    note = (
        f"{100 * measured['real/faulty']:.1f} % [{100 * measured['real/faulty_low']:.1f},"
        f" {100 * measured['real/faulty_high']:.1f}] of {measured['real/n']} held-out texts have a fault,"
        f" {100 * measured['shuffled/faulty']:.0f} % with their words shuffled,"
        f" {100 * measured['praise/faulty']:.0f} % of strings of praise"
    )
    return {"note": note, **summary}


def _encoded(tokenizer: Any, texts: Sequence[str]) -> Iterator[Sequence[int]]:
    for start in range(0, len(texts), ENCODED):
        yield from tokenizer(texts[start : start + ENCODED], add_special_tokens=False)["input_ids"]


def _cut(cfg: TrialConfig, texts: Sequence[str], tokenizer: Any, stream: int) -> Iterator[tuple[str, str]]:
    """Prompt and rest of every text that leaves a rest, cut as prompts are."""
    (low, high), cut = cfg.data.prompt_length, cut_at(cfg.data.prompt_unit, tokenizer)
    lengths = np.random.default_rng([cfg.data.seed, stream]).integers(low, high + 1, len(texts))
    for text, length in zip(texts, lengths.tolist(), strict=True):
        if prompt := cut(text, length):
            yield prompt, text[len(prompt) :]


def _openings(cfg: TrialConfig, heldout: pd.DataFrame, tokenizer: Any) -> Iterator[Opening]:
    """The texts as a policy would have written them: after a prompt, and cut at the length of a response."""
    for prompt, rest in _cut(cfg, heldout["text"].tolist(), tokenizer, 5):
        yield Opening(prompt, *shortened(tokenizer, prompt, rest, cfg.train.response_length))
