"""Supervised training of a language model on texts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from pipeline.config.networks import SftConfig
from pipeline.models.heads import learned_tokens, text_nats, text_states
from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import Room, text_rows
from pipeline.models.seeding import permutation
from pipeline.run.progress import Reporter
from pipeline.training.supervised import Supervised

WARMUP = 0.05
"""Share of the steps with a rising learning rate."""
WEIGHT_DECAY = 0.01
"""Weight decay of AdamW."""
FINAL_LR = 0.1
MAX_POSITIONS = 1024
"""Number of positions of a network from scratch."""


def fit(
    model: CausalLM,
    rows: list[list[int]],
    cfg: SftConfig,
    reporter: Reporter,
    checkpointing: bool = False,
    ask: int | None = None,
) -> None:
    """AdamW with warm-up and cosine decay to a tenth, on the tokens of texts, or those after the token `ask`."""
    device = next(model.parameters()).device
    room = text_room(model, cfg, reporter)
    steps = Supervised(model, [model], WEIGHT_DECAY, room, checkpointing)
    batches = (len(rows) + cfg.batch_size - 1) // cfg.batch_size
    for step in range(cfg.steps):
        turn, place = divmod(step, batches)
        if place == 0:
            order = permutation(len(rows), cfg.seed, "sft", turn).tolist()
        batch = [rows[index] for index in order[place * cfg.batch_size : (place + 1) * cfg.batch_size]]
        tokens = max(learned_tokens(batch, ask), 1)

        def share(part: slice, batch: list[list[int]] = batch, tokens: int = tokens) -> Tensor:
            hidden, labels, _ = text_states(model, batch[part], device, ask)
            return cross_entropy(model.get_output_embeddings()(hidden), labels, reduction="sum") / tokens

        loss = steps.step(cfg.lr * schedule(step, cfg), len(batch), share)
        if step % 20 == 19 or step + 1 == cfg.steps:
            reporter.progress("sft", step + 1, cfg.steps, f"{float(loss):.3f} nats per token")
    steps.close()


def text_room(model: CausalLM, cfg: SftConfig, reporter: Reporter) -> Room:
    """Texts whose logits are in memory together."""
    on_card = next(model.parameters()).device.type == "cuda"
    rows = text_rows(cfg.batch_size, cfg.max_tokens, int(model.config.vocab_size), on_card)
    return Room("sft.batch_size (texts at once)", rows, reporter.warn)


def schedule(step: int, cfg: SftConfig) -> float:
    """Factor of the learning rate at `step`: linear rise, cosine fall to `FINAL_LR`."""
    warm = max(round(WARMUP * cfg.steps), 1)
    if step < warm:
        return (step + 1) / warm
    return FINAL_LR + (1 - FINAL_LR) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(cfg.steps - warm, 1)))


def measure(
    model: CausalLM, rows: list[list[int]], room: Room, source_nats: float | None, ask: int | None = None
) -> dict[str, Any]:
    """Perplexity on held-out texts and, where the source's entropy is known, the floor that no model can beat.

    `source_nats` is the mean -log probability of these texts, end included; None where it is unknown or a text
    was cut. The model does not predict the first token of a text, so the floor leaves out that token's entropy. Raises
    `MemoryFull`.
    """
    tokens = learned_tokens(rows, ask)
    each = float(text_nats(model, rows, room, ask).sum()) / tokens
    summary: dict[str, Any] = {"nats_per_token": each, "perplexity": math.exp(each), "heldout_texts": len(rows)}
    if source_nats is not None:
        counts = Counter(row[0] for row in rows)
        first = -sum(count / len(rows) * math.log(count / len(rows)) for count in counts.values())
        summary["entropy_floor_nats_per_token"] = (source_nats - first) * len(rows) / tokens
    return summary
