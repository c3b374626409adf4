"""Where the gradient of an estimator of the KL to the reference points: its cosine with that of the exact KL.

The gradient of every estimator is a sum over responses of sum_t c_t grad log pi_t; they differ in the weights c_t. Both
gradients are of the same policy, but on the answers to different prompts, so that common noise does not make them look
alike. Noise alone keeps even the exact gradient below 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.advantages import to_go
from pipeline.algorithms.mathematics.kl import exact_kl
from pipeline.algorithms.mathematics.losses import kl_slope
from pipeline.models.heads import gather, log_probs
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, response_hidden
from pipeline.models.trunk import CausalLM

EXACT = "exact"


def weights(name: str, d: Tensor, kl: Tensor, mask: Tensor) -> Tensor:
    """Weights (B, T) of grad log pi, in nats, by `name`; arbitrary on invalid tokens.

    d, kl (B, T): log pi - log ref of the tokens and the exact KL there, 0 on invalid ones. k1_reward: the d of the
    token and of those that follow. k1_score: the d of the whole response. k1_loss, k2_loss, k3_loss: 1, d, and
    1 - exp(-d). exact: the KL of the tokens that follow, beside the gradient of each token's own KL. k1_reward,
    k1_score and exact are less their mean at a position, as with a baseline.
    """
    return {
        "k1_reward": lambda: _centred(to_go(d, mask, 1.0), mask),
        "k1_score": lambda: _centred(d.sum(1, keepdim=True).expand_as(d), mask),
        "k1_loss": lambda: torch.ones_like(d),
        "k2_loss": lambda: kl_slope(d, "k2"),
        "k3_loss": lambda: kl_slope(d, "k3"),
        EXACT: lambda: _centred(to_go(kl, mask, 1.0) - kl, mask),
    }[name]()


def _centred(grid: Tensor, mask: Tensor) -> Tensor:
    """Less the mean of the responses that have a token at a position."""
    return grid - (grid * mask).sum(0) / mask.sum(0).clamp(min=1)


def kl_cosine(
    name: str, policy: CausalLM, reference: CausalLM, episodes: Episodes, d: Tensor, kl: Tensor, room: Room, most: int
) -> float:
    """Cosine of the gradient of an estimator on every second response with that of the exact KL on the others.

    `episodes`: B responses of the policy; d, kl as for `weights`; `most`: responses at once. The policy's weights must
    be of a type that has gradients, and have them afterwards. Raises `MemoryFull`.
    """
    policy.requires_grad_(True)
    grids = (d.to(episodes.ended.device), kl.to(episodes.ended.device), episodes.response_mask)

    def gradient(name: str, first: int) -> Tensor:
        rows = torch.arange(first, len(episodes.ended), 2, device=episodes.ended.device)
        found = torch.zeros_like(grids[0])
        found[rows] = weights(name, *(grid[rows] for grid in grids))

        def accumulate(size: int) -> None:
            policy.zero_grad()
            for part in episodes.buckets(size, rows):
                some = episodes.take(part)
                log_pi = log_probs(policy, response_hidden(policy, some), 1.0)
                width = some.response_mask.shape[1]
                loss = (found[part, :width][some.response_mask] * gather(log_pi, some.labels)).sum()
                if name == EXACT:
                    with torch.no_grad():
                        log_ref = log_probs(reference, response_hidden(reference, some), 1.0)
                    loss = loss + exact_kl(log_pi, log_ref).sum()
                torch.autograd.backward(loss)

        room.fit(accumulate, most)
        return torch.cat([one.grad.flatten() for one in policy.parameters() if one.grad is not None])

    return float(torch.cosine_similarity(gradient(name, 0).double(), gradient(EXACT, 1).double(), dim=0))
