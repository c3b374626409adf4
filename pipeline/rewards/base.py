"""The one interface of rewards and judges, and the training reward: weighed parts as one score, each with the affine
calibration that makes betas comparable, as is their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from pipeline.data.prompt_set import PromptSet
from pipeline.errors import UserError
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes
from pipeline.models.precision import Precision
from pipeline.models.sampling import EagerSampler, decode, text_ends
from pipeline.rewards.settings import Combine


@dataclass(frozen=True)
class Completions:
    """Responses as tokens and as text, row by row."""

    episodes: Episodes
    prompts: Sequence[str]
    texts: Sequence[str]

    @classmethod
    def of(cls, tokenizer: Any, episodes: Episodes, prompts: Sequence[str]) -> Completions:
        return cls(episodes, prompts, decode(tokenizer, episodes))

    def take(self, rows: slice | Tensor) -> Completions:
        """Some of the rows; a tensor holds their numbers."""
        places = torch.arange(len(self.texts))[rows].tolist()
        prompts, texts = ([column[place] for place in places] for column in (self.prompts, self.texts))
        return Completions(self.episodes.take(rows), prompts, texts)


def sampled(
    network: Any, data: PromptSet, noise: Tensor, temperature: float, room: Room, rows: Tensor | None = None
) -> Completions:
    """One answer to every prompt of `data`, or its `rows` (n,) int64; noise (n, T). Raises `MemoryFull`."""
    device, texts, ids, mask = next(network.parameters()).device, data.texts, data.ids, data.mask
    if rows is not None:
        ids, mask, texts = ids[rows], mask[rows], [texts[row] for row in rows.tolist()]
    with Precision.of(device).autocast():
        sampler = EagerSampler(network, temperature, room, **data.token_ids)
        episodes = sampler.sample(ids.to(device), mask.to(device), noise)
    return Completions.of(data.tokenizer, episodes, texts)


class Reward(Protocol):
    """A score for every completion."""

    @property
    def networks(self) -> Sequence[Any]:
        """Networks that it computes with, whose work is counted."""

    def __call__(self, completions: Completions) -> Tensor:
        """(B,) float32 on the CPU, finite; higher is better."""


class TextScore:
    """A `Reward` by the text alone: each kind of it scores one completion of a prompt."""

    networks: Sequence[Any] = ()

    def __call__(self, completions: Completions) -> Tensor:
        return as_scores([self.score(*row) for row in zip(completions.prompts, completions.texts, strict=True)])

    def score(self, prompt: str, text: str) -> float:
        raise NotImplementedError

    def earned(self, prompt: str, text: str) -> list[tuple[int, float]]:
        """Points of the score that are earned before the end of the text: the number of its characters after which they
        are, at least 1, and the points. They depend on these characters and the prompt alone."""
        return []


@dataclass(frozen=True)
class Calibrated:
    """(raw - mean) / std of samples of the reference, so that a beta means the same for two rewards."""

    raw: Reward
    mean: float
    std: float

    def __call__(self, completions: Completions) -> Tensor:
        return standardised(self.raw(completions), self.mean, self.std)


@dataclass(frozen=True)
class Proxy:
    """``(combined_i(weight_i part_i(x)) - mean) / std``. A reward of one kind is a single part of weight 1.

    Each part has mean 0 and standard deviation 1 on reference samples before it is weighed, so that weights compare
    like with like; the sum is calibrated again, so that a beta means the same whatever the parts.
    """

    parts: Mapping[str, Calibrated]
    weights: Mapping[str, float]
    mean: float = 0.0
    std: float = 1.0
    combine: Combine = "sum"
    caution: float = 0.0

    def __call__(self, completions: Completions) -> Tensor:
        return self.explained(completions)[0]

    def explained(self, completions: Completions) -> tuple[Tensor, dict[str, Tensor]]:
        """The calibrated sum (B,) and, of more than one part, each calibrated part by name."""
        scores = {name: part(completions) for name, part in self.parts.items()}
        return standardised(self.weigh(scores), self.mean, self.std), scores if len(scores) > 1 else {}

    def earned(self, completions: Completions, tokenizer: Any, width: int) -> Tensor:
        """Points that are earned before the end of a response, at the token with which they are: (B, `width`), float32,
        score units. The rest of the score is earned at the end. Of a reward of one kind, which scores texts."""
        (part,) = self.parts.values()
        paid = torch.zeros(len(completions.texts), width, dtype=torch.float64)
        ends = text_ends(tokenizer, completions.episodes)
        for row, texts in enumerate(zip(completions.prompts, completions.texts, strict=True)):
            for characters, points in cast(TextScore, part.raw).earned(*texts):
                paid[row, bisect_left(ends[row], characters)] += points / part.std
        return paid.float()

    @property
    def networks(self) -> list[Any]:
        return [network for part in self.parts.values() for network in part.raw.networks]

    def weigh(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the weighed parts as one score (B,): their sum, the worst, or mean - caution x variance over them. The
        last two are for ensembles (Coste 2023, arXiv 2310.02743, section 3)."""
        parts = torch.stack([self.weights[name] * score for name, score in scores.items()])
        if self.combine == "worst":
            return parts.amin(0)
        if self.combine == "cautious":
            return parts.mean(0) - self.caution * parts.var(0, correction=0)
        return parts.sum(0)


def calibration(scores: Tensor, key: str = "reward") -> tuple[float, float]:
    """Mean and standard deviation of reference scores (n,). Raises `UserError` unless they are finite and vary."""
    if lost := int((~scores.isfinite()).sum()):
        raise UserError(f"{key}: {lost} of {len(scores)} reference samples have no finite reward; use another")
    exact = scores.double()
    std = float(exact.std(correction=0))
    if not std > 0:
        raise UserError(f"{key}: all {len(scores)} reference samples have the same reward; use another")
    return float(exact.mean()), std


def standardised(scores: Tensor, mean: float, std: float) -> Tensor:
    """(scores - mean) / std, in fp32 like `scores` (B,)."""
    # In fp64: scores that lie close together compared with their mean would lose most of their digits in fp32.
    return ((scores.double() - mean) / std).float()


def as_scores(values: Sequence[float]) -> Tensor:
    """A (B,) float32 tensor."""
    return torch.tensor(list(values), dtype=torch.float32)
