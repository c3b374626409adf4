"""A coefficient that is fixed, on a schedule, or driven towards a target: the rule that beta and the entropy bonus
share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

from pipeline.algorithms.kl_settings import KlConfig
from pipeline.algorithms.mathematics.controllers import adapted, elapsed, scheduled
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Terms
from pipeline.training.parts.entropy_settings import EntropyConfig

S = TypeVar("S", bound=KlConfig | EntropyConfig)


class Coefficient(Part[S]):
    """Moves by ``control`` of its settings, which have a section ``adaptive``."""

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
