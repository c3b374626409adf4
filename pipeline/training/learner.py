"""What takes gradient steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.config.trial import TrialConfig
from pipeline.models.policy import ActorCritic
from pipeline.models.precision import GradientSteps, Precision
from pipeline.resources.out_of_memory import Room
from pipeline.training.part import Parts
from pipeline.training.processes import Ranks


@dataclass(frozen=True)
class Learner:
    """The networks, their optimiser, and how the steps are taken."""

    actor: ActorCritic
    steps: GradientSteps
    precision: Precision
    ranks: Ranks
    """The processes that share the work."""
    cfg: TrialConfig
    parts: Parts
    room: Room
    """Episodes in memory at once; changes nothing."""
    checkpointing: bool = False
    """Compute activations twice instead of keeping them; changes nothing."""
    closes: Tensor | None = None
    """(V,) bool, True for tokens that end a clause or a sentence, where the KL penalty is one on these."""
