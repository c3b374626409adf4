"""Answers to the held-out prompts: which prompts, by which noise, and how the policy's answers compare with the
reference's.

Policy and reference never share noise. Under common random numbers both would write nearly the same text, and the share
of prompts on which the policy's is better could be anything up to 1 however little the policy differs: another quantity
than the win rate that bounds at a given KL hold for. Policies share theirs with each other, and so do references, so
that arms are compared with the same prompts, the same draws of the reference and the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.config.trial import TrialConfig
from pipeline.data.prompt_set import PromptSet
from pipeline.errors import UserError
from pipeline.models.loading import CausalLM
from pipeline.models.out_of_memory import Room
from pipeline.models.seeding import uniforms
from pipeline.rewards.base import Completions, sampled
from pipeline.run.store import Artifact

DRAWS = "draws.parquet"
Array = NDArray[np.float64]
TIE = 1e-5
"""Proxy scores that differ by no more, in standard deviations of reference samples, are equal: the score of one text
varies by rounding with the batch in which it was computed."""


def heldout_prompts(cfg: TrialConfig, prompts: Artifact) -> PromptSet:
    """The held-out prompts of this evaluation, as far as the texts gave them. Raises `UserError` where none is left."""
    there, first = int(prompts.meta["heldout_prompts"]), cfg.evaluate.first_prompt
    if there <= first:
        raise UserError(
            f"the texts give {there} held-out prompts, and this evaluation begins after prompt {first}"
            " (evaluate.first_prompt); lower evaluate.prompts, or use more texts"
        )
    return PromptSet.load(prompts, "heldout", first, cfg.evaluate.prompts)


def answers(cfg: TrialConfig, model: CausalLM, data: PromptSet, room: Room, *stream: object) -> Completions:
    """One completion of every prompt, by the noise of this name. Raises `MemoryFull`."""
    noise = uniforms(len(data.texts), cfg.train.response_length, cfg.evaluate.seed, "evaluate", *stream)
    return sampled(model, data, noise, 1.0, room)


@dataclass(frozen=True)
class Draws:
    """The reference's answers: `prompts` x `count` rows, those of one prompt next to each other."""

    table: pd.DataFrame
    count: int

    @classmethod
    def load(cls, reference: Artifact) -> Draws:
        table = pd.read_parquet(reference.path / DRAWS)
        return cls(table, int(reference.meta["draws"]))

    @property
    def parts(self) -> list[str]:
        return [column for column in self.table.columns if column.startswith(("reward/", "gold/", "mark/"))]

    def grid(self, column: str) -> Array:
        """A column as (prompts, k)."""
        return self.table[column].to_numpy(dtype=np.float64).reshape(-1, self.count)

    def first(self, column: str) -> list[object]:
        return list(self.table[column].iloc[:: self.count])


def preferences(
    gold: Array, reference_gold: Array, proxy: Array, reference_proxy: Array, lead: Array | float = 0.0
) -> dict[str, Array]:
    """The columns of ``prompts.parquet`` that compare the policy's answer with each of the reference's; each (n,).

    Scores of the policy (n,), of the reference (n, k). `lead` (n, k): what the endings of a cyclic judge add to the
    difference of the gold scores (`pipeline.rewards.grammar`). With g_j and p_j the signs of the policy's gold and
    proxy score less those of draw j, win = mean_j (1 + g_j) / 2, a U-statistic for P(policy > reference) + P(equal) / 2
    without bias for any k; agree = sum_j [g_j != 0] (1 + g_j p_j) / 2; decided = sum_j [g_j != 0].

    >>> gold, draws = np.array([2.0]), np.array([[1.0, 1.0, 3.0, 2.0]])
    >>> [one.item() for one in preferences(gold, draws, np.array([0.5]), np.array([[0.1, 0.5, 0.1, 0.9]])).values()]
    [0.625, 0.25, 0.625, 1.5, 3.0]
    """
    apart = proxy[:, None] - reference_proxy
    g, p = np.sign(gold[:, None] - (reference_gold - lead)), np.where(np.abs(apart) <= TIE, 0.0, np.sign(apart))
    return {
        "win": (g + 1).mean(1) / 2,
        "tie": (g == 0).mean(1),
        "win_proxy": (p + 1).mean(1) / 2,
        "agree": ((g != 0) * (1 + g * p) / 2).sum(1),
        "decided": (g != 0).sum(1).astype(np.float64),
    }
