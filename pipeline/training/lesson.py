"""What the epochs of an update learn from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.algorithms.terms import Tokens
from pipeline.models.policy import Episodes
from pipeline.training.judging import Measured


@dataclass(frozen=True)
class Lesson:
    """Episodes with everything the losses need; grids are (B, T), 0 on invalid tokens."""

    episodes: Episodes
    measured: Measured
    advantages: Tensor
    returns: Tensor | None
    """Of the critic's loss; None without a critic."""
    kl_coef: float
    """beta in force."""


def tokens_of(lesson: Lesson, rows: Tensor) -> Tokens:
    """The valid tokens of some rows, (B,) indices."""
    mask, measured = lesson.episodes.response_mask[rows], lesson.measured

    def flat(grid: Tensor | None) -> Tensor | None:
        return None if grid is None else grid[rows][mask]

    return Tokens(
        measured.logprobs[rows][mask],
        measured.ref_logprobs[rows][mask],
        lesson.advantages[rows][mask],
        flat(measured.values),
        flat(lesson.returns),
    )
