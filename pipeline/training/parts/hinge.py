"""A learning rate that falls as the policy leaves the reference: by min(1, threshold / KL) in each gradient step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pipeline.algorithms.mathematics.controllers import hinge
from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Step


class Hinge(Part):
    """Asked for by `kl.hinge`, in nats per token."""

    name = "hinge"

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    @classmethod
    def of(cls, cfg: TrialConfig) -> Self | None:
        return None if cfg.kl.hinge is None else cls(cfg.kl.hinge)

    def step(self, measured: Mapping[str, float]) -> Step:
        factor = hinge(measured["policy/kl_ref_per_token"], self._threshold)
        return Step(factor, metrics={"policy/kl_hinge": factor})
