"""beta: fixed, on a schedule, or driven towards a target KL. Where it weighs, `kl.place` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pipeline.algorithms.mathematics.controllers import adapted, elapsed, scheduled
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Terms


class KlCoefficient(Part):
    """Acts in every trial; its value may be 0."""

    name = "kl"
    keeps = ("coef",)

    def __init__(self, cfg: TrialConfig) -> None:
        self._cfg, self.coef = cfg, cfg.kl.beta

    @classmethod
    def of(cls, cfg: TrialConfig) -> Self:
        return cls(cfg)

    def rollout(self, update: int, terms: Terms) -> None:
        if self._cfg.kl.control != "adaptive":
            self.coef = scheduled(self._cfg.kl.schedule, elapsed(self._cfg, update))
        terms.kl_coef = self.coef

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        kl = self._cfg.kl
        if kl.control == "adaptive" and policy_moved:
            episodes = self._cfg.train.batch_size
            self.coef = adapted(self.coef, measured["objective/kl"], kl.target, episodes, kl.horizon)
        return {}
