"""The network that a learned reward starts from: the reference's, or a smaller or larger one that reads its tokens.

A scratch trunk learns from the pairs alone, or is first trained as a language model on the SFT texts
(`reward.learned.scratch.pretraining_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from pipeline.config.model import SftConfig
from pipeline.models.loading import CausalLM, load_snapshot, scratch_model
from pipeline.models.seeding import seed_of
from pipeline.models.texts import encode
from pipeline.models.tokenizers import load_tokenizer
from pipeline.rewards.settings import RewardConfig
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact
from pipeline.training.language_model import MAX_POSITIONS, fit


@dataclass(frozen=True)
class TrunkSource:
    """What the trunks of reward models are made from."""

    cfg: RewardConfig
    pretraining: SftConfig | None
    """How a scratch trunk becomes a language model; None: it does not."""
    prompts: Artifact
    sft: Artifact
    reference: Any
    """The configuration of the reference's network."""
    device: torch.device
    reporter: Reporter
    checkpointing: bool

    def __call__(self, seed: int) -> CausalLM:
        """A trunk to train; `seed` is of a scratch one's weights and of the order of its texts. Raises `MemoryFull`."""
        if self.cfg.learned.trunk == "reference":
            return load_snapshot(self.sft.path / "model", self.device)
        return self._scratch(seed)

    def _scratch(self, seed: int) -> CausalLM:
        tokenizer = load_tokenizer(self.prompts.path / "tokenizer")
        positions = int(getattr(self.reference, "max_position_embeddings", MAX_POSITIONS))
        # As many embeddings as the reference has: a tokenizer may name fewer tokens.
        vocabulary, special = int(self.reference.vocab_size), (tokenizer.pad_token_id, tokenizer.eos_token_id)
        model = scratch_model(
            self.cfg.learned.scratch.sizes(), vocabulary, *special, positions, seed_of(seed, "reward trunk")
        )
        model.to(self.device)
        if self.pretraining is not None:
            how = self.pretraining.model_copy(update={"seed": seed})
            texts = pd.read_parquet(self.prompts.path / "sft.parquet")["text"].tolist()
            fit(model, encode(tokenizer, texts, how.max_tokens), how, self.reporter, self.checkpointing, "reward")
        return model


def member_seed(seed: int, member: int) -> int:
    """The seed of a member of an ensemble. The first is the model that a reward without an ensemble has."""
    return seed_of(seed, "reward member", member) if member else seed
