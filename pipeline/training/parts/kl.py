"""The KL to the reference: its weight beta, and its penalty in the loss. In the reward it is
`pipeline.training.judging.shaped`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from pipeline.algorithms.kl_settings import KlConfig
from pipeline.algorithms.mathematics.controllers import adapted, elapsed, scheduled
from pipeline.algorithms.mathematics.losses import kl_loss, kl_slope
from pipeline.algorithms.mathematics.token_groups import credited, group_ends, group_sums
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import to_grid
from pipeline.training.experience import LossTerm, Rows
from pipeline.training.part import Part, Terms
from pipeline.training.parts.entropy_settings import EntropyConfig

S = TypeVar("S", bound=KlConfig | EntropyConfig)


class Coefficient(Part[S]):
    """A coefficient that is fixed, on a schedule, or driven towards a target, by ``control`` of its settings: the rule
    that beta and the entropy bonus share."""

    keeps = ("coef",)
    driven: ClassVar[str]
    """The metric of a rollout that is to come near the target."""
    rises: ClassVar[int]
    """1 where the coefficient rises while that metric is above its target, -1 where it falls."""

    def __init__(self, cfg: TrialConfig, settings: S) -> None:
        super().__init__(cfg, settings)
        self.coef = settings.start

    def rollout(self, update: int, terms: Terms) -> None:
        if self.settings.control != "adaptive":
            self.coef = scheduled(self.settings, elapsed(self.cfg, update))

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if self.settings.control == "adaptive" and policy_moved:
            error = self.rises * (measured[self.driven] / self.settings.adaptive.target - 1)
            self.coef = adapted(self.coef, error, self.cfg.train.batch_size, self.settings.adaptive.horizon)
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
