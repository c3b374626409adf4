"""PPO-penalty: a penalty on KL(old || new), whose coefficient is doubled or halved after each update."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.mathematics.controllers import doubled_or_halved
from pipeline.algorithms.mathematics.kl import k3
from pipeline.algorithms.settings import KlPenaltySettings
from pipeline.config.trial import TrialConfig
from pipeline.training.experience import LossTerm, Rows
from pipeline.training.part import Part, Step

LIMIT = 2.0**20
"""Largest factor between the coefficient and its start, up or down, so that it never rounds to 0 or infinity."""
MOVED = "policy/old_kl"


class OldKl(Part[KlPenaltySettings]):
    """The part of the trust region `kl_penalty`. Schulman 2017 (arXiv 1707.06347), section 4."""

    keeps = ("coef",)
    measurements = frozenset({MOVED})

    def __init__(self, cfg: TrialConfig, settings: KlPenaltySettings) -> None:
        super().__init__(cfg, settings)
        self.coef = settings.coef

    def loss(self, rows: Rows) -> LossTerm | None:
        # k3 on samples of the old policy: unbiased and never negative; its gradient is (ratio - 1) ∇ log π.
        return LossTerm(
            lambda tokens, logprobs, entropy: rows.weighted(
                tokens, self.coef * k3(rows.old_logprobs[tokens] - logprobs)
            )
        )

    def step(self, measured: Mapping[str, float]) -> Step:
        return Step(metrics={"policy/old_kl_coef": self.coef})

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if policy_moved:
            start, target = self.settings.coef, self.settings.target
            coef = doubled_or_halved(self.coef, measured[MOVED], target)
            self.coef = min(max(coef, start / LIMIT), start * LIMIT)
        return {MOVED: measured[MOVED]}
