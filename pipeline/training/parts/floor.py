"""A floor under a part of a composite reward: dual ascent on its Lagrange multiplier, which weighs that part."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.mathematics.controllers import multiplier
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Terms
from pipeline.training.parts.floor_settings import FloorConfig


class Floor(Part[FloorConfig]):
    """Weighs the part of the reward that `floor.part` names."""

    keeps = ("weight",)
    shows = (("objective/floor_weight", "weight"),)

    def __init__(self, cfg: TrialConfig, settings: FloorConfig) -> None:
        super().__init__(cfg, settings)
        self.weight = settings.weight

    def rollout(self, update: int, terms: Terms) -> None:
        assert self.settings.part is not None
        terms.floor = self.settings.part, self.weight

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        floor = self.settings
        if policy_moved:
            mean = measured[f"reward/{floor.part}"]
            self.weight = multiplier(self.weight, mean, floor.at, floor.lr, floor.max_weight)
        return {}
