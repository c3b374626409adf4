"""A general preference model: P(a preferred to b | prompt), which need not be transitive.

The reference's trunk embeds each answer to 1 + d numbers, a score s and a vector v of d/2 pairs. The logit is

    logit(a, b) = s(a) - s(b) + sum over l of v_2l-1(a) v_2l(b) - v_2l(a) v_2l-1(b),

antisymmetric by construction: P(a, b) + P(b, a) = 1 exactly, so the mean over both orders is either of them. The first
term is Bradley-Terry's; the blocks are the preference embeddings of Zhang 2024 (arXiv 2410.02197), which can represent
any cycle. Why embeddings and not a network that reads both answers: an answer is read once, whatever it is compared
with, so k opponents cost no more than one, and their embeddings can be kept; and antisymmetry holds without averaging.
Why a score beside the blocks: a transitive preference then needs no block, and the model has Bradley-Terry's as a case.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from pipeline.models.loading import CausalLM
from pipeline.models.seeding import seed_of
from pipeline.rewards.learned import RewardModel
from pipeline.rewards.settings import RewardConfig

VECTOR_STD = 0.5
"""Standard deviation of each number of v at the start, for states of unit variance. At 0 the blocks have no gradient,
and at 1 they drown the score in noise that training has to remove first."""


class PairwiseModel(RewardModel):
    """Embeds whole episodes; (B, 1 + d) fp32."""

    @classmethod
    def new(cls, lm: CausalLM, cfg: RewardConfig, device: torch.device) -> Self:
        """The reference's trunk under a random head: scores start near 0, vectors do not."""
        width = lm.config.hidden_size
        head = nn.Linear(width, 1 + cfg.pairwise.dimension)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed_of(cfg.seed, "pairwise head"))
            head.weight[:1].normal_(std=1 / (width + 1))
            head.weight[1:].normal_(std=VECTOR_STD / width**0.5)
            head.bias.zero_()
        return cls(lm, head).to(device)

    def _read(self, states: Tensor) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):
            numbers: Tensor = self.head(states.float())
        return numbers

    @staticmethod
    def margin(first: Tensor, second: Tensor) -> Tensor:
        """log P(first, second) / P(second, first) of embeddings (..., 1 + d) that broadcast; (...), nats."""
        (s, v), (t, w) = ((each[..., 0], each[..., 1:]) for each in (first, second))
        turned = v[..., 0::2] * w[..., 1::2] - v[..., 1::2] * w[..., 0::2]
        return s - t + turned.sum(-1)

    @staticmethod
    def against(mine: Tensor, theirs: Tensor) -> Tensor:
        """The mean probability of beating k opponents, (B,) in (0, 1); embeddings (B, 1 + d) against (B, k, 1 + d)."""
        return PairwiseModel.margin(mine.double()[:, None], theirs.double()).sigmoid().mean(1).float()
