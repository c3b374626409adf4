"""Gradient steps at the beginning that are the critic's alone."""

from __future__ import annotations

from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part


class WarmUp(Part):
    """Asked for where it would train a critic."""

    name = "warm_up"

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        critic, trpo = cfg.critic, cfg.algorithm.trust_region == "trpo"
        return critic.warmup_steps > 0 and critic.kind != "none" and critic.vf_coef > 0 and not trpo

    def frozen(self, position: int) -> bool:
        return position < self.cfg.critic.warmup_steps
