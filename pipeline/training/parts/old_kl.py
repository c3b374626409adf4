"""PPO-penalty: a penalty on KL(old || new), whose coefficient is doubled or halved after each update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import Tensor

from pipeline.algorithms.mathematics.controllers import doubled_or_halved
from pipeline.algorithms.mathematics.kl import k3
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Step, TokenLosses

LIMIT = 2.0**20
"""How far the coefficient may go from where it started, up or down, so that it never rounds to 0 or infinity."""
MOVED = "policy/old_kl"


class OldKl(Part):
    """Asked for by the trust region `kl_penalty`. Schulman 2017 (arXiv 1707.06347), section 4."""

    name = "old_kl"
    keeps = ("coef",)
    wants = frozenset({MOVED})

    def __init__(self, start: float, target: float) -> None:
        self._start, self._target, self.coef = start, target, start

    @classmethod
    def of(cls, cfg: TrialConfig) -> Self | None:
        knobs = cfg.algorithm
        return cls(knobs.old_kl_coef, knobs.old_kl_target) if knobs.trust_region == "kl_penalty" else None

    def loss(self, tokens: TokenLosses) -> Tensor | None:
        # k3 on samples of the old policy: unbiased and never negative; its gradient is (ratio - 1) ∇ log π.
        return tokens.weighted(self.coef * k3(tokens.old_logprobs - tokens.logprobs))

    def step(self, measured: Mapping[str, float]) -> Step:
        return Step(metrics={"policy/old_kl_coef": self.coef})

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        if policy_moved:
            coef = doubled_or_halved(self.coef, measured[MOVED], self._target)
            self.coef = min(max(coef, self._start / LIMIT), self._start * LIMIT)
        return {MOVED: measured[MOVED]}
