"""beta: fixed, on a schedule, or driven towards a target KL. Where it weighs, `kl.place` says."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.mathematics.controllers import adapted, elapsed, scheduled
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Terms


class KlCoefficient(Part):
    """Acts in every trial; its value may be 0."""

    name = "kl"
    keeps = ("coef",)

    def __init__(self, cfg: TrialConfig) -> None:
        super().__init__(cfg)
        self.coef = cfg.kl.beta

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return True

    def rollout(self, update: int, terms: Terms) -> None:
        if self.cfg.kl.control != "adaptive":
            self.coef = scheduled(self.cfg.kl.schedule, elapsed(self.cfg, update))
        terms.kl_coef = self.coef

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        kl = self.cfg.kl
        if kl.control == "adaptive" and policy_moved:
            episodes = self.cfg.train.batch_size
            self.coef = adapted(self.coef, measured["objective/kl"], kl.target, episodes, kl.horizon)
        return {}
