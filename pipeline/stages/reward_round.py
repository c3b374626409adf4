"""One of several rounds of the stage `reward`: whose samples the judge compares, and which pairs a reward learns
from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.config.rewards import RewardConfig
from pipeline.resources.ledger import Ledger
from pipeline.rewards.rankings import Ranked
from pipeline.run.layout import write_json
from pipeline.run.store import Artifact
from pipeline.stages.common import part_folder
from pipeline.stages.pair_responses import RESPONSES, read_responses
from pipeline.stages.rounds import SPENT, name_of, number_of

TEMPERATURE = "label_temperature"
"""Key of the summary: what the judge's differences are divided by, in judge points."""


@dataclass(frozen=True)
class Collection:
    """Where the pairs of a round come from."""

    number: int = 1
    count: int = 1
    last_reward: Artifact | None = None
    last_train: Artifact | None = None
    """Whose policy is sampled; None in the first round: the reference."""

    @classmethod
    def of(cls, count: int, last_reward: Artifact | None, last_train: Artifact | None) -> Collection:
        return cls(number_of(last_train), count, last_reward, last_train)

    def label(self, name: str) -> str:
        """The name of a stream of noise; each round has its own."""
        return name if self.number == 1 else f"{name}, round {self.number}"

    def rows(self, rows: Tensor, cfg: RewardConfig) -> Tensor:
        """The prompts of this round's pairs: its share of those to train on, (pairs / count,), then all held-out ones.

        No prompt that a round holds out is one that another round trains on.
        """
        each = cfg.pairs // self.count
        return torch.cat([rows[: cfg.pairs][(self.number - 1) * each : self.number * each], rows[cfg.pairs :]])

    def temperature(self, spread: float, cfg: RewardConfig, prefix: str) -> float:
        """Of the labels, in judge points: label noise times the judge's `spread` on samples of the reference.

        An annotator does not grow more exact because the policy's answers grow alike, so all rounds have that of the
        first. `prefix`: of the keys of a part's summary.
        """
        if self.last_reward is None:
            return cfg.label_noise * spread
        return float(self.last_reward.meta[f"{prefix}{TEMPERATURE}"])

    def earlier(self, name: str, composite: bool, cfg: RewardConfig) -> pd.DataFrame | None:
        """The pairs of the rounds before that this round learns from as well, as tokens."""
        if self.last_reward is None or cfg.keep_pairs == "newest":
            return None
        return pd.read_parquet(part_folder(self.last_reward.path, name, composite) / RESPONSES)

    def scales(self, cfg: RewardConfig) -> Mapping[str, Any] | None:
        """Metadata with the scales that this round has from the first; None where it sets its own.

        A trained policy is hardly ever beaten by the reference, so against it the reference's rewards are nearly equal
        and set no scale.
        """
        return self.last_reward.meta if self.last_reward is not None and cfg.against == "policy" else None

    def described(self, sft: Artifact) -> dict[str, Any]:
        """Whose samples were compared, for the metadata; nothing in a trial with one round."""
        if self.count == 1:
            return {}
        policy = name_of(self.last_train or sft)
        return {"round": {"number": self.number, "count": self.count, "policy": policy, "reference": name_of(sft)}}

    def charge(self, out: Path, ledger: Ledger) -> None:
        """Leave what a later round has spent: unlike the first reward it is made for one trial alone."""
        if self.number > 1:
            ledger.mark()
            write_json(out / SPENT, ledger.state())


def written(folder: Path, pad: int, device: torch.device) -> Ranked:
    """The pairs that were written to a folder, the preferred responses first."""
    both = read_responses(folder, pad).each(lambda column: column.to(device))
    first, second = both.take(slice(0, None, 2)), both.take(slice(1, None, 2))
    return Ranked.of_pairs(first, second, torch.ones(len(first.ended), dtype=torch.bool))
