"""A loss of pairs of responses, as what the chunked head can differentiate: a slope for every response.

The loss depends on the network through the responses' sums S of log-probs alone, and those of a pair may be in
different micro-batches. So one pass without gradients measures S of the whole mini-batch, then come the slopes dL/dS,
then the usual backward with these slopes as weights of the tokens' log-probs. Exact, at one more forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.preference import LOSSES, evened
from pipeline.models.lm_head import head_logprobs
from pipeline.models.micro_batches import MicroBatch, moved
from pipeline.models.policy import response_hidden, to_grid
from pipeline.training.experience import Experience
from pipeline.training.learner import Learner
from pipeline.training.surrogate_loss import SurrogateLoss, to_tokens


@dataclass(frozen=True)
class PairSlopes:
    """Of one mini-batch."""

    slopes: Tensor
    """(B,) d(mean loss over pairs)/dS, one for each response of the batch; 0 for those outside the mini-batch."""
    metrics: dict[str, float]


def pair_slopes(experience: Experience, rows: Tensor, learner: Learner) -> PairSlopes:
    """The slopes at the present weights, for the mini-batch `rows` (n,), on the host: both responses of every pair
    stand next to each other. Pairs with equal scores are left out. Raises `MemoryFull` in all processes when a row does
    not fit."""
    cfg, mask = learner.cfg.algorithm, experience.episodes.response_mask
    lengths = mask.sum(1)
    share = 1 / lengths.double() if cfg.ratio == "sequence_mean" else torch.ones_like(lengths, dtype=torch.double)
    (there,) = moved((rows.numpy(),), mask.device)
    now = response_sums(experience, rows, learner)[there]
    then = experience.measured.ref_logprobs[there].double().sum(1)
    better = experience.advantages[there, 0].view(-1, 2)
    first_wins, judged = better[:, 0] > 0, better[:, 0] != 0
    gained = ((now - then) * share[there]).view(-1, 2)
    sign = torch.where(first_wins, 1.0, -1.0).double()
    margins = (sign * (gained[:, 0] - gained[:, 1])).requires_grad_()
    with torch.enable_grad():
        losses = torch.where(judged, LOSSES[cfg.trust_region](margins, experience.kl_coef), 0.0)
        (by_margin,) = torch.autograd.grad(losses.sum(), margins)
    pairs = judged.sum().clamp(min=1)
    by_margin = by_margin * evened(cfg.trust_region, experience.kl_coef) / pairs
    slopes = torch.zeros_like(share)
    slopes[there] = torch.stack([sign * by_margin, -sign * by_margin], dim=1).flatten() * share[there]
    return PairSlopes(
        slopes, _metrics(losses.detach(), margins.detach(), first_wins, judged, now.view(-1, 2), then.view(-1, 2))
    )


@torch.no_grad()
def response_sums(experience: Experience, rows: Tensor, learner: Learner) -> Tensor:
    """Log-probability of each response of `rows` (n,) by the network at hand, nats, the same in all processes; (B,)
    fp64, 0 for the others."""
    lm, temperature, ranks = learner.actor.lm, learner.cfg.train.temperature, learner.ranks
    sums = torch.zeros(len(experience.episodes.ended), dtype=torch.double, device=experience.episodes.ended.device)

    def over(size: int) -> None:
        sums.zero_()
        for part in experience.micro_batches(size, ranks.part(rows)):
            episodes = experience.episodes.take(part)
            with learner.precision.autocast():
                logprobs = head_logprobs(lm, response_hidden(lm, episodes), episodes.labels, temperature)
            sums[part.rows] = to_grid(logprobs, episodes.response_mask).double().sum(1)

    ranks.all_fit(lambda: learner.room.fit(over))
    ranks.add([sums])
    return sums


def of_pairs(pairs: PairSlopes, micro_batch: MicroBatch, mask: Tensor, tokens: Tensor, sequences: int) -> SurrogateLoss:
    """The loss of some rows, mask (n, T); `tokens` () and `sequences` count the whole mini-batch.

    The backward divides by `tokens`, but slopes are already means over pairs, so they are multiplied by it first. An
    entropy bonus is averaged over the tokens of a response, then over responses.
    """
    slopes = to_tokens((pairs.slopes[micro_batch.rows] * tokens).float(), mask, micro_batch)
    weight = to_tokens((tokens / (sequences * mask.sum(1))).float(), mask, micro_batch)
    return SurrogateLoss(lambda part, new: slopes[part] * new, lambda new: {}, weight)


def _metrics(
    losses: Tensor, margins: Tensor, first_wins: Tensor, judged: Tensor, now: Tensor, then: Tensor
) -> dict[str, float]:
    """Means over the pairs with a better response; now and then (n, 2) log-probs by the policy and the reference."""
    if not bool(judged.any()):
        return {}
    now, then = (torch.where(first_wins.unsqueeze(1), sums, sums.flip(1))[judged] for sums in (now, then))
    (chosen, rejected), (ref_chosen, ref_rejected) = now.unbind(1), then.unbind(1)
    return {
        "policy/pg_loss": float(losses[judged].mean()),
        "pairs/chosen_logprobs": float(chosen.mean()),
        "pairs/rejected_logprobs": float(rejected.mean()),
        "pairs/chosen_log_ratio": float((chosen - ref_chosen).mean()),
        "pairs/rejected_log_ratio": float((rejected - ref_rejected).mean()),
        "pairs/accuracy": float((margins[judged] > 0).float().mean()),
    }
