"""Losses of pairs of responses, from the margin between the better and the other one.

The margin is (S_w - S_ref,w) - (S_l - S_ref,l), with S the log-probability of a response in nats, or its mean over the
tokens of the response. Averaging over pairs is left to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus


def prefers(scores: Tensor, groups: Tensor) -> Tensor:
    """1 for the better of the two responses of a group, -1 for the other, 0 for equal ones: no toss.

    scores (B,); groups (B,) int64, equal for the responses to one prompt, in any order; returns (B,). Raises
    `ValueError` for a group that is no pair.
    """
    by_group = groups.argsort(stable=True)
    pairs = groups[by_group].view(-1, 2) if len(groups) % 2 == 0 else None
    if pairs is None or bool((pairs[:, 0] != pairs[:, 1]).any()) or bool((pairs[1:, 0] == pairs[:-1, 0]).any()):
        raise ValueError("preferences need exactly two responses to every prompt")
    sorted_scores = scores[by_group].view(-1, 2)
    signs = (sorted_scores - sorted_scores.flip(1)).sign().flatten()
    return signs[by_group.argsort()]


def dpo_loss(margins: Tensor, beta: float) -> Tensor:
    """-log sigmoid(β margin), (n,). DPO: Rafailov 2023 (arXiv 2305.18290), eq. 7."""
    return softplus(-beta * margins)


def ipo_loss(margins: Tensor, beta: float) -> Tensor:
    """(margin - 1 / (2 β))², (n,). IPO: Azar 2023 (arXiv 2310.12036), eq. 17, with τ = β."""
    return (margins - 1 / (2 * beta)) ** 2


@dataclass(frozen=True)
class PairLoss:
    """A loss of pairs."""

    of: Callable[[Tensor, float], Tensor]
    """Function from margins (n,) and β to losses (n,)."""
    evened: Callable[[float], float]
    """Factor on the loss, a function of β, that makes its slope at margin 0 independent of β.

    The minimiser is the same. Without it the slopes are β / 2 for DPO and 1 / β for IPO, so that a learning rate, the
    clip of the gradient's norm and Adam's epsilon would mean something else at every β.
    """


DPO = PairLoss(dpo_loss, lambda beta: 1 / beta)
IPO = PairLoss(ipo_loss, lambda beta: beta)
