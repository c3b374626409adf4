"""Draws the opponents of a reward: answers of a network to every training and held-out prompt, with which an answer to
the same prompt is compared. What is kept of them is in `pipeline.stages.opponent_table`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.models.loading import CausalLM
from pipeline.models.precision import Precision
from pipeline.models.sampler import EagerSampler
from pipeline.models.sampling import tokenize_prompts
from pipeline.models.seeding import uniforms
from pipeline.resources.ledger import Ledger
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.against import Numbers
from pipeline.rewards.base import Completions
from pipeline.run.store import Artifact
from pipeline.stages.common import PromptSet


def draw_opponents(
    network: CausalLM,
    cfg: TrialConfig,
    prompts: Artifact,
    room: Room,
    ledger: Ledger,
    progress: Callable[[int], None],
) -> list[Completions]:
    """`reward.opponents` answers of `network` to each different prompt, in the order of the prompts; one item a draw.

    Each draw has noise of its own, so that the first opponents are the same however many there are; no other sample has
    this noise. `progress` is given the number of the draw. Raises `MemoryFull`.
    """
    data = PromptSet.load(prompts, "train")
    texts = list(dict.fromkeys([*data.texts, *PromptSet.load(prompts, "heldout").texts]))
    device = next(network.parameters()).device
    ids, mask = (grid.to(device) for grid in tokenize_prompts(data.tokenizer, texts))
    drawn = []
    for draw in range(cfg.reward.opponents):
        progress(draw)
        noise = uniforms(len(texts), cfg.train.response_length, cfg.reward.seed, "opponents", draw)
        with ledger.timed("generate"), Precision.of(device).autocast():
            sampler = EagerSampler(network, cfg.train.temperature, room, **data.token_ids)
            episodes = sampler.sample(ids, mask, noise)
        ledger.generated_tokens += int(episodes.lengths.sum())
        drawn.append(Completions.of(data.tokenizer, episodes, texts))
    return drawn


def numbers_of(scorers: Mapping[str, Numbers], drawn: list[Completions], ledger: Ledger) -> dict[str, Tensor]:
    """By part what it gives for every opponent: (P, k) or (P, k, d), for P prompts and k draws."""
    with ledger.timed("score"), torch.no_grad():
        return {name: torch.stack([scorer(one) for one in drawn], dim=1) for name, scorer in scorers.items()}
