"""A bonus on the policy's exact entropy."""

from __future__ import annotations

from pipeline.training.experience import LossTerm, Rows
from pipeline.training.parts.entropy_settings import EntropyConfig
from pipeline.training.parts.kl import Coefficient


class EntropyBonus(Coefficient[EntropyConfig]):
    """A coefficient times the mean entropy."""

    shows = (("objective/ent_coef", "coef"),)
    driven, rises = "objective/entropy_per_token", -1

    def loss(self, rows: Rows) -> LossTerm | None:
        if not self.coef:
            return None
        return LossTerm(lambda tokens, logprobs, entropy: -(self.coef * rows.weighted(tokens, entropy())))
