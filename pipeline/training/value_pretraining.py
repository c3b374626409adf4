"""Value pre-training: a critic learns what the reference's responses were worth, before the policy moves (VC-PPO: Yuan
2025, arXiv 2503.01491)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pipeline.algorithms.mathematics.advantages import explained_variance
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import ActorCritic, Episodes
from pipeline.training.experience import in_turn
from pipeline.training.supervised import ShareOfLoss, Supervised

HELD_OUT = 16
"""One sample in so many is held out to measure the critic; it is not trained on."""


def pretrain(
    actor: ActorCritic,
    samples: Episodes,
    targets: Tensor,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    room: Room,
    progress: Callable[[int], None],
) -> float:
    """Fit the critic to the rewards to go of M samples, `targets` (M, T), both on the CPU: `batch` samples a step, by
    half the mean squared error over their tokens; the policy stays as it is.

    Returns the share of the variance of held-out samples' rewards to go that it explains in the end. Raises
    `MemoryFull`.
    """
    actor.lm.requires_grad_(False)
    critic = nn.ModuleList([part for part in (actor.value_head, actor.critic_trunk) if part is not None])
    device = next(critic.parameters()).device

    def take(rows: Tensor) -> tuple[Episodes, Tensor]:
        return samples.each(lambda column: column[rows].to(device)), targets[rows].to(device)

    order = torch.arange(len(targets))
    heldout, mine = order[::HELD_OUT], order[order % HELD_OUT != 0]
    fitted = Supervised(critic, actor.networks[1:], 0.0, room, False)
    for step in range(steps):
        rows = mine[in_turn(len(mine), batch, step, seed, "value pretraining")]
        fitted.step(lr, batch, _loss(actor, *take(rows)))
        progress(step + 1)
    fitted.close()
    with torch.no_grad():
        episodes, returns = take(heldout)
        (values,) = episodes.grids(1, room, lambda chunk: [_values(actor, chunk)])
        return explained_variance(values, returns, episodes.response_mask)


def _loss(actor: ActorCritic, episodes: Episodes, targets: Tensor) -> ShareOfLoss:
    """Return a function from some rows to their part of half the mean squared error over all tokens."""
    tokens = episodes.response_mask.sum()

    def share(part: slice) -> Tensor:
        mine = episodes.take(part)
        mask = mine.response_mask
        return 0.5 * (_values(actor, mine) - targets[part, : mask.shape[1]][mask]).square().sum() / tokens

    return share


def _values(actor: ActorCritic, episodes: Episodes) -> Tensor:
    """(N,) of the critic."""
    if actor.critic_trunk is not None:
        return actor.separate_values(episodes)
    values = actor.hidden_and_values(episodes)[1]
    assert values is not None
    return values.float()
