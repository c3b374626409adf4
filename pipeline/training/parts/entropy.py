"""A bonus on the policy's exact entropy."""

from __future__ import annotations

from pipeline.config.trial import TrialConfig
from pipeline.training.experience import LossTerm, Rows
from pipeline.training.parts.coefficient import Coefficient


class EntropyBonus(Coefficient):
    """Asked for where its weight is above 0 in some part of the trial."""

    name = section = "entropy"
    shows = (("objective/ent_coef", "coef"),)
    driven, rises = "objective/entropy_per_token", -1

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.entropy.acts

    def loss(self, rows: Rows) -> LossTerm | None:
        if not self.coef:
            return None
        return LossTerm(lambda tokens, logprobs, entropy: -(self.coef * rows.weighted(tokens, entropy())))
