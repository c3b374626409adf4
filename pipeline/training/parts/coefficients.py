"""Weights that move: beta of the KL to the reference, with its penalty in the loss (in the reward it is
`pipeline.training.judging.shaped`), the entropy bonus, and the weight of a part of the reward that has a floor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.losses import kl_loss, kl_slope
from pipeline.algorithms.mathematics.shaping import credited, group_ends, group_sums
from pipeline.algorithms.settings import KlConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import to_grid
from pipeline.training.experience import LossTerm, Rows
from pipeline.training.part import Part, Terms
from pipeline.training.parts.settings import MAX_WEIGHT, EntropyConfig, FloorConfig

S = TypeVar("S", bound=KlConfig | EntropyConfig)
ERROR_CLIP = 0.2
"""Adaptive: the largest relative error that one rollout may report (Ziegler 2019)."""
FLOOR_LR = 0.05
"""Change of the floor's weight after a rollout for each std that the part is off its floor: 1 in 20 rollouts."""


class Coefficient(Part[S]):
    """A coefficient that is fixed, on a schedule, or driven towards a target, by ``control`` of its settings: the rule
    that beta and the entropy bonus share.

    linear: c₀ + (c₁ - c₀) p;  cosine: c₁ + (c₀ - c₁) (1 + cos πp) / 2, with c₀ = start, c₁ = end and p from 0 in the
    first update to 1 in the last. Adaptive: c becomes c (1 + clip(error, -0.2, 0.2) · episodes / horizon) after a
    rollout, with the error KL / target - 1 of beta, in nats per sequence (Ziegler 2019, arXiv 1909.08593, section 2.2),
    and 1 - H / target of the entropy bonus, in nats per token. It stays above 0 for a horizon above 0.2 · episodes,
    which the configuration demands.
    """

    keeps = ("coef",)
    driven: ClassVar[str]
    """The metric of a rollout that is to come near the target."""
    rises: ClassVar[int]
    """1 where the coefficient rises while that metric is above its target, -1 where it falls."""

    def __init__(self, cfg: TrialConfig, settings: S) -> None:
        super().__init__(cfg, settings)
        self.coef = settings.start

    def rollout(self, update: int, terms: Terms) -> None:
        start, end, progress = self.settings.start, self.settings.end, update / max(self.cfg.train.updates - 1, 1)
        if self.settings.control == "linear":
            self.coef = start + (end - start) * progress
        elif self.settings.control == "cosine":
            self.coef = end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if self.settings.control == "adaptive" and policy_moved:
            error = self.rises * (measured[self.driven] / self.settings.adaptive.target - 1)
            limited, episodes = min(max(error, -ERROR_CLIP), ERROR_CLIP), self.cfg.train.batch_size
            self.coef *= 1 + limited * episodes / self.settings.adaptive.horizon
        return {}


class KlToReference(Coefficient[KlConfig]):
    """Acts in every trial, at `kl.place`; its weight may be 0."""

    shows = (("objective/kl_coef", "coef"),)
    driven, rises = "objective/kl", 1

    def rollout(self, update: int, terms: Terms) -> None:
        super().rollout(update, terms)
        terms.kl_coef = self.coef

    def loss(self, rows: Rows) -> LossTerm | None:
        kl = self.settings
        if kl.place != "loss":
            return None
        if kl.group != "token":
            return _on_groups(rows, self.coef, kl)

        def penalty(tokens: slice, logprobs: Tensor) -> Tensor:
            return rows.weighted(tokens, self.coef * kl_loss(logprobs - rows.ref_logprobs[tokens], kl.loss_estimator))

        return LossTerm(
            lambda tokens, logprobs, entropy: penalty(tokens, logprobs),
            lambda logprobs: {"policy/kl_loss": penalty(slice(None), logprobs)},
        )


def _on_groups(rows: Rows, coef: float, kl: KlConfig) -> LossTerm:
    """β k2(D) or β k3(D) of each group, D = Σ (log π - log ref) over it. The gradient is β slope(D) ∇ log π of all its
    tokens, or of its last one alone: a first pass through the head measures D.

    As a metric the value is spread evenly over the tokens of the group.
    """
    mask = rows.mask
    assert rows.experience.groups is not None
    groups = rows.experience.groups[rows.index, : mask.shape[1]]
    whole = group_sums(to_grid(rows.now() - rows.ref_logprobs, mask), groups, mask)
    estimate, slope = kl_loss(whole, kl.loss_estimator), kl_slope(whole, kl.loss_estimator)
    paying = mask if kl.group_credit == "shared" else group_ends(groups, mask)
    slopes = torch.where(paying, coef * slope, 0.0)[mask]
    values = credited(coef * estimate, groups, mask, "shared")[mask]
    return LossTerm(
        lambda tokens, logprobs, entropy: rows.weighted(tokens, slopes[tokens] * logprobs),
        lambda logprobs: {"policy/kl_loss": rows.weighted(slice(None), values)},
    )


class EntropyBonus(Coefficient[EntropyConfig]):
    """A coefficient times the mean entropy."""

    shows = (("objective/ent_coef", "coef"),)
    driven, rises = "objective/entropy_per_token", -1

    def loss(self, rows: Rows) -> LossTerm | None:
        if not self.coef:
            return None
        return LossTerm(lambda tokens, logprobs, entropy: -(self.coef * rows.weighted(tokens, entropy())))


class Floor(Part[FloorConfig]):
    """Weighs the part of the reward that `floor.part` names: λ becomes min(max(λ + lr (floor - mean), 0), most) after a
    rollout in which that part had this mean.

    Gradient ascent on the dual of "maximise the reward while the part's mean is at least its floor". Altman 1999,
    Constrained Markov Decision Processes; for RLHF Dai et al. 2023 (arXiv 2310.12773).
    """

    keeps = ("weight",)
    shows = (("objective/floor_weight", "weight"),)

    def __init__(self, cfg: TrialConfig, settings: FloorConfig) -> None:
        super().__init__(cfg, settings)
        self.weight = settings.weight

    def rollout(self, update: int, terms: Terms) -> None:
        assert self.settings.part is not None
        terms.floor = self.settings.part, self.weight

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if policy_moved:
            mean = measured[f"reward/{self.settings.part}"]
            self.weight = min(max(self.weight + FLOOR_LR * (self.settings.at - mean), 0.0), MAX_WEIGHT)
        return {}
