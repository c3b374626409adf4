"""Stage 2: supervised fine-tuning on the texts; the result is the reference snapshot, frozen from here on.

Writes ``model/`` (save_pretrained, safetensors) and ``summary.json``.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.config.model import SftConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM, device_of, pretrained_model, scratch_model
from pipeline.models.positions import check_room
from pipeline.models.precision import Precision
from pipeline.models.pretrained_tokenizer import load_tokenizer
from pipeline.models.seeding import permutation
from pipeline.resources.chunking import text_rows
from pipeline.resources.out_of_memory import Room
from pipeline.run.layout import write_json
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.stages.spending import spending
from pipeline.training.supervised import Supervised

IGNORED = -100
FINAL_LR = 0.1
MAX_POSITIONS = 1024
ENCODED = 256
"""Texts tokenised at a time: what a tokenizer says of a whole review takes many times the memory of the tokens that are
kept."""


def sft(cfg: TrialConfig, out: Path, reporter: Reporter, *, prompts: Artifact) -> dict[str, Any]:
    """Train the policy's starting point and record its perplexity on held-out texts."""
    device = device_of(cfg.runtime.device)
    with spending(out, device):
        return _sft(cfg, out, reporter, prompts, device)


def _sft(cfg: TrialConfig, out: Path, reporter: Reporter, prompts: Artifact, device: torch.device) -> dict[str, Any]:
    tokenizer = load_tokenizer(prompts.path / "tokenizer")
    if cfg.model.base is None:
        model = scratch_model(
            cfg.model, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id, MAX_POSITIONS, cfg.sft.seed
        )
    else:
        model = pretrained_model(cfg.model.base, cfg.model.revision)
    check_room(model, "sft.max_tokens", cfg.sft.max_tokens)
    model.to(device)
    rows = encode(tokenizer, pd.read_parquet(prompts.path / "sft.parquet")["text"], cfg.sft.max_tokens)
    train(model, rows, cfg.sft, reporter, cfg.runtime.gradient_checkpointing)
    texts = pd.read_parquet(prompts.path / "heldout_texts.parquet")
    heldout = encode(tokenizer, texts["text"], cfg.sft.max_tokens)
    whole = all(row[-1] == tokenizer.eos_token_id for row in heldout)
    summary = measure(
        model,
        heldout,
        text_room(model, cfg.sft, reporter),
        float(texts["nats"].mean()) if "nats" in texts and whole else None,
    )
    summary["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(out / "model")
    write_json(out / "summary.json", summary)
    return summary


def encode(tokenizer: Any, texts: pd.Series, max_tokens: int) -> list[list[int]]:
    """Token rows with EOS at the end, unless the text was cut before it."""
    every, rows = texts.tolist(), list[list[int]]()
    for start in range(0, len(every), ENCODED):
        encoded = tokenizer(every[start : start + ENCODED], add_special_tokens=False)["input_ids"]
        rows += [[*row, tokenizer.eos_token_id][:max_tokens] for row in encoded]
    return rows


def collate(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids (B, L), attention mask (B, L) and labels (B, L), by lengths alone."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    return ids.to(device), mask.long().to(device), ids.masked_fill(~mask, IGNORED).to(device)


def nats(model: CausalLM, rows: list[list[int]], device: torch.device) -> tuple[Tensor, int]:
    """Summed cross-entropy of all tokens but the first of each row, and their number."""
    ids, mask, labels = collate(rows, device)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    targets = labels[:, 1:]
    loss = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )
    return loss, int((targets != IGNORED).sum())


def train(
    model: CausalLM,
    rows: list[list[int]],
    cfg: SftConfig,
    reporter: Reporter,
    checkpointing: bool = False,
    stage: str = "sft",
) -> None:
    """AdamW with warm-up and cosine decay to a tenth; `stage` is the one that reports progress."""
    device = next(model.parameters()).device
    room = text_room(model, cfg, reporter)
    steps = Supervised(model, [model], cfg.weight_decay, room, checkpointing)
    batches = (len(rows) + cfg.batch_size - 1) // cfg.batch_size
    for step in range(cfg.steps):
        turn, place = divmod(step, batches)
        if place == 0:
            order = permutation(len(rows), cfg.seed, "sft", turn).tolist()
        batch = [rows[index] for index in order[place * cfg.batch_size : (place + 1) * cfg.batch_size]]
        tokens = max(sum(len(row) - 1 for row in batch), 1)

        def share(part: slice, batch: list[list[int]] = batch, tokens: int = tokens) -> Tensor:
            return nats(model, batch[part], device)[0] / tokens

        loss = steps.step(cfg.lr * schedule(step, cfg), len(batch), share)
        if step % 20 == 19 or step + 1 == cfg.steps:
            reporter.progress(stage, step + 1, cfg.steps, f"{float(loss):.3f} nats per token")
    steps.close()


def text_room(model: CausalLM, cfg: SftConfig, reporter: Reporter) -> Room:
    """Texts whose logits are in memory together."""
    on_card = next(model.parameters()).device.type == "cuda"
    rows = text_rows(cfg.batch_size, cfg.max_tokens, int(model.config.vocab_size), on_card)
    return Room("sft.batch_size (texts at once)", rows, reporter.warn)


def schedule(step: int, cfg: SftConfig) -> float:
    """Factor of the learning rate at `step`: linear rise, cosine fall to `FINAL_LR`."""
    warm = max(round(cfg.warmup * cfg.steps), 1)
    if step < warm:
        return (step + 1) / warm
    return FINAL_LR + (1 - FINAL_LR) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(cfg.steps - warm, 1)))


@torch.inference_mode()
def measure(model: CausalLM, rows: list[list[int]], room: Room, text_nats: float | None) -> dict[str, Any]:
    """Perplexity on held-out texts and, where the source's entropy is known, the floor that no model can beat.

    `text_nats` is the mean -log probability of these texts, end included; None where it is unknown or a text
    was cut. The model does not predict the first token of a text, so the floor leaves out that token's entropy. Raises
    `MemoryFull`.
    """
    device = next(model.parameters()).device

    def of(part: slice) -> tuple[float, int]:
        loss, count = nats(model, rows[part], device)
        return float(loss), count

    with Precision.of(device).autocast():
        sums = room.over(len(rows), of)
    total, tokens = math.fsum(loss for loss, _ in sums), sum(count for _, count in sums)
    summary: dict[str, Any] = {
        "nats_per_token": total / tokens,
        "perplexity": math.exp(total / tokens),
        "heldout_texts": len(rows),
    }
    if text_nats is not None:
        counts = Counter(row[0] for row in rows)
        first = -sum(count / len(rows) * math.log(count / len(rows)) for count in counts.values())
        summary["entropy_floor_nats_per_token"] = (text_nats - first) * len(rows) / tokens
    return summary
