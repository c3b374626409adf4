"""A floor under a part of a composite reward: dual ascent on its Lagrange multiplier, which weighs that part."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.mathematics.controllers import multiplier
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Terms


class Floor(Part):
    """Asked for where `floor.part` names a part of the reward."""

    name = "floor"
    keeps = ("weight",)
    shows = (("objective/floor_weight", "weight"),)

    def __init__(self, cfg: TrialConfig) -> None:
        super().__init__(cfg)
        self.weight = cfg.floor.weight

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.floor.part is not None

    def rollout(self, update: int, terms: Terms) -> None:
        terms.floor_weight = self.weight

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        floor = self.cfg.floor
        if policy_moved:
            mean = measured[f"reward/{floor.part}"]
            self.weight = multiplier(self.weight, mean, floor.at, floor.lr, floor.max_weight)
        return {}
