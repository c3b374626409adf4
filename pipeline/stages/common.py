"""What several stages need: prompts as tokens, the judge, the trained reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.artifacts import Artifact
from pipeline.config import RuntimeConfig
from pipeline.models.generation import tokenize_prompts
from pipeline.models.loading import load_tokenizer
from pipeline.rewards.base import Calibrated, Reward
from pipeline.rewards.grammar import GrammarJudge
from pipeline.rewards.learned import LearnedReward, RewardModel
from pipeline.rewards.lexicon import LexiconReward


@dataclass(frozen=True)
class PromptSet:
    """Prompts as text and as left-padded tokens on the CPU."""

    tokenizer: Any
    texts: list[str]
    ids: Tensor
    mask: Tensor

    @classmethod
    def load(cls, prompts: Artifact, name: str, n: int | None = None) -> PromptSet:
        """The first `n` prompts of ``<name>.parquet``."""
        tokenizer = load_tokenizer(prompts.path / "tokenizer")
        texts = pd.read_parquet(prompts.path / f"{name}.parquet")["prompt"].tolist()[:n]
        return cls(tokenizer, texts, *tokenize_prompts(tokenizer, texts))

    @property
    def token_ids(self) -> dict[str, int]:
        """What sampling needs to know."""
        return {"eos_id": self.tokenizer.eos_token_id, "pad_id": self.tokenizer.pad_token_id}


def judge_of(name: str) -> Reward:
    """The gold judge; never part of training."""
    return GrammarJudge() if name == "grammar" else LexiconReward()


def reward_of(reward: Artifact, device: torch.device, batch: int) -> Calibrated:
    """The calibrated training reward that the reward stage made."""
    meta = reward.meta
    raw: Reward = LexiconReward() if meta["kind"] == "lexicon" else LearnedReward(RewardModel.load(reward.path, device), batch)
    return Calibrated(raw, meta["calibration_mean"], meta["calibration_std"])


def settle(runtime: RuntimeConfig) -> None:
    """Settings of the process that a trial relies on; harmless to repeat."""
    import transformers

    torch.set_num_threads(runtime.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
