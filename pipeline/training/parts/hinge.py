"""A learning rate that falls as the policy leaves the reference: by min(1, threshold / KL) in each gradient step."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.algorithms.mathematics.controllers import hinge
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Step


class Hinge(Part):
    """Asked for by `kl.hinge`, in nats per token."""

    name = "hinge"

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        return cfg.kl.hinge is not None

    def step(self, measured: Mapping[str, float]) -> Step:
        assert self.cfg.kl.hinge is not None
        factor = hinge(measured["policy/kl_ref_per_token"], self.cfg.kl.hinge)
        return Step(factor, metrics={"policy/kl_hinge": factor})
