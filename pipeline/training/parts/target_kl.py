"""The epochs of an update end before a step whose KL to the policy that sampled is 1.5 times its target."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.mathematics.controllers import out_of_reach
from pipeline.config.trial import TrialConfig
from pipeline.training.part import TAKEN, Part, Step


class TargetKl(Part):
    """Asked for by `algorithm.target_kl`, in nats per token."""

    name = "target_kl"

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.algorithm.target_kl is not None

    def step(self, measured: Mapping[str, float]) -> Step:
        assert self.cfg.algorithm.target_kl is not None
        return Step(ends=out_of_reach(measured["policy/approxkl"], self.cfg.algorithm.target_kl))

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        return {TAKEN: measured[TAKEN]}
