"""A coefficient that is fixed, on a schedule, or driven towards a target: the rule that beta and the entropy bonus
share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pipeline.algorithms.mathematics.controllers import adapted, elapsed, scheduled
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Terms


class Coefficient(Part):
    """Moves as ``control`` of its section says. The section is a
    `pipeline.schedule_settings.Scheduled` with a section ``adaptive``."""

    keeps = ("coef",)
    section: ClassVar[str]
    """Of the configuration."""
    driven: ClassVar[str]
    """The metric of a rollout that is to come near the target."""
    rises: ClassVar[int]
    """1 where the coefficient rises while that metric is above its target, -1 where it falls."""

    def __init__(self, cfg: TrialConfig) -> None:
        super().__init__(cfg)
        self.knobs = getattr(cfg, self.section)
        self.coef: float = self.knobs.schedule.start

    def rollout(self, update: int, terms: Terms) -> None:
        if self.knobs.control != "adaptive":
            self.coef = scheduled(self.knobs.schedule, elapsed(self.cfg, update))

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if self.knobs.control == "adaptive" and policy_moved:
            error = self.rises * (measured[self.driven] / self.knobs.adaptive.target - 1)
            self.coef = adapted(self.coef, error, self.cfg.train.batch_size, self.knobs.adaptive.horizon)
        return {}
