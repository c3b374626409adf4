"""A bonus on the policy's exact entropy: its weight is fixed, on a schedule, or driven towards a target entropy."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pipeline.algorithms.mathematics.controllers import adapted_bonus, elapsed, scheduled
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Terms, TokenLosses


class EntropyBonus(Part):
    """Asked for where its weight is above 0 in some part of the trial."""

    name = "entropy"
    keeps = ("coef",)

    def __init__(self, cfg: TrialConfig) -> None:
        super().__init__(cfg)
        self.coef = cfg.entropy.coef

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.entropy.acts

    def rollout(self, update: int, terms: Terms) -> None:
        if self.cfg.entropy.control != "adaptive":
            self.coef = scheduled(self.cfg.entropy.schedule, elapsed(self.cfg, update))
        terms.metrics["objective/ent_coef"] = self.coef

    def loss(self, tokens: TokenLosses) -> Tensor | None:
        return -(self.coef * tokens.weighted(tokens.entropy())) if self.coef else None

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        knobs = self.cfg.entropy
        if knobs.control == "adaptive" and policy_moved:
            entropy, episodes = measured["objective/entropy_per_token"], self.cfg.train.batch_size
            self.coef = adapted_bonus(self.coef, entropy, knobs.target, episodes, knobs.horizon)
        return {}
