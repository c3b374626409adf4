"""The parts there are. A new one is a file here and a line in `PARTS`; their order is that of their factors on the
learning rate."""

from __future__ import annotations

from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part, Parts
from pipeline.training.parts.entropy_bonus import EntropyBonus
from pipeline.training.parts.floor import Floor
from pipeline.training.parts.guard import Guard
from pipeline.training.parts.hinge import Hinge
from pipeline.training.parts.kl_coefficient import KlCoefficient
from pipeline.training.parts.old_kl import OldKl
from pipeline.training.parts.stop_rules import StopRules
from pipeline.training.parts.target_kl import TargetKl
from pipeline.training.parts.warm_up import WarmUp

PARTS: tuple[type[Part], ...] = (
    KlCoefficient, EntropyBonus, Floor, WarmUp, Guard, Hinge, OldKl, TargetKl, StopRules
)  # fmt: skip


def parts_of(cfg: TrialConfig) -> Parts:
    """Those that the configuration asks for."""
    return Parts(kind(cfg) for kind in PARTS if kind.asked(cfg))
