"""The parts there are. A new one is a file here and a line in `PARTS`; their order is that of their factors on the
learning rate, and of their terms in the loss."""

from __future__ import annotations

from pipeline.config.trial import TrialConfig
from pipeline.training.part import Part
from pipeline.training.parts.brakes import Guard, Hinge, TargetKl, WarmUp
from pipeline.training.parts.entropy import EntropyBonus
from pipeline.training.parts.floor import Floor
from pipeline.training.parts.kl import KlToReference
from pipeline.training.parts.old_kl import OldKl
from pipeline.training.parts.stop import StopRules

PARTS: tuple[type[Part], ...] = (
    KlToReference, EntropyBonus, Floor, WarmUp, Guard, Hinge, OldKl, TargetKl, StopRules
)  # fmt: skip


def parts_of(cfg: TrialConfig) -> dict[str, Part]:
    """Those that the configuration asks for, by name."""
    return {kind.name: kind(cfg) for kind in PARTS if kind.asked(cfg)}
