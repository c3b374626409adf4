"""Losses of pairs of responses, and batches of stored pairs to learn from in place of rollouts.

The loss depends on the network through the responses' sums S of log-probs alone, and those of a pair may be in
different micro-batches. So one pass without gradients measures S of the whole mini-batch, then come the slopes dL/dS,
then the usual backward with these slopes as weights of the tokens' log-probs. Exact, at one more forward.
"""

from __future__ import annotations

from dataclasses import replace
from pkgutil import resolve_name

import torch
from torch import Tensor

from pipeline.algorithms.kinds import TRUST_REGIONS
from pipeline.algorithms.mathematics.preference import PairLoss
from pipeline.models.policy import Episodes, to_grid
from pipeline.training.experience import Experience, LossTerm, Measured, Rows, in_turn
from pipeline.training.judging import RolloutContext, logprobs_of
from pipeline.training.update import Learner, MiniBatch


class PairLearner(Learner):
    """Takes gradient steps on a loss of pairs: both responses of a pair stand next to each other. Pairs with equal
    scores are left out."""

    together = 2

    @property
    def loss(self) -> PairLoss:
        found: PairLoss = resolve_name(TRUST_REGIONS[self.cfg.algorithm.trust_region].code)
        return found

    def mini_batch(self, experience: Experience, rows: Tensor) -> MiniBatch:
        """Add the slopes at the present weights. Raises `MemoryFull` in all processes when a row does not fit."""
        cfg, mask, beta = self.cfg.algorithm, experience.episodes.response_mask, experience.kl_coef
        lengths, loss = mask.sum(1), self.loss
        share = 1 / lengths.double() if cfg.ratio == "sequence_mean" else torch.ones_like(lengths, dtype=torch.double)
        there = rows.to(mask.device)
        now = self._response_sums(experience, rows)[there]
        then = experience.measured.ref_logprobs[there].double().sum(1)
        better = experience.advantages[there, 0].view(-1, 2)
        first_wins, judged = better[:, 0] > 0, better[:, 0] != 0
        gained = ((now - then) * share[there]).view(-1, 2)
        sign = torch.where(first_wins, 1.0, -1.0).double()
        margins = (sign * (gained[:, 0] - gained[:, 1])).requires_grad_()
        with torch.enable_grad():
            losses = torch.where(judged, loss.of(margins, beta), 0.0)
            (by_margin,) = torch.autograd.grad(losses.sum(), margins)
        by_margin = by_margin * loss.evened(beta) / judged.sum().clamp(min=1)
        slopes = torch.zeros_like(share)
        slopes[there] = torch.stack([sign * by_margin, -sign * by_margin], dim=1).flatten() * share[there]
        metrics = _metrics(losses.detach(), margins.detach(), first_wins, judged, now.view(-1, 2), then.view(-1, 2))
        return replace(super().mini_batch(experience, rows), slopes=slopes, metrics=metrics)

    def surrogate(self, rows: Rows, whole: MiniBatch) -> LossTerm:
        """The backward divides by tokens, but slopes are already means over pairs, so they are multiplied by them
        first. An entropy bonus is averaged over the tokens of a response, then over responses."""
        assert whole.slopes is not None
        slopes = rows.to_tokens((whole.slopes[rows.index] * whole.tokens).float())
        rows.weight = rows.to_tokens((whole.tokens / (whole.sequences * rows.mask.sum(1))).float())
        return LossTerm(lambda tokens, logprobs, entropy: slopes[tokens] * logprobs)

    def _response_sums(self, experience: Experience, rows: Tensor) -> Tensor:
        """Log-probability of each response of `rows` (n,) by the network at hand, nats, the same in all processes; (B,)
        fp64, 0 for the others."""
        ended = experience.episodes.ended
        sums = torch.zeros(len(ended), dtype=torch.double, device=ended.device)

        def over(size: int) -> None:
            sums.zero_()
            for part in experience.micro_batches(size, self.ranks.part(rows)):
                sums[part.index] = to_grid(self.logprobs(part), part.mask).double().sum(1)

        self.ranks.all_fit(lambda: self.room.fit(over))
        self.ranks.add([sums])
        return sums


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


def stored_experience(context: RolloutContext, stored: Episodes, update: int) -> Experience:
    """The batch of one update from n stored pairs, (2n, ...) on the CPU, the preferred response first; each pass over
    all pairs has a fresh order.

    New log-probs are compared with those of the reference, whatever the responses' source. Raises `MemoryFull` in all
    processes when a row does not fit in one.
    """
    train, ranks = context.cfg.train, context.ranks
    pairs = in_turn(len(stored.ended) // 2, train.batch_size // 2, update, train.seed, "stored pairs")
    rows = torch.stack([2 * pairs, 2 * pairs + 1], dim=1).flatten()
    device = next(context.actor.parameters()).device
    episodes = stored.take(rows).each(lambda column: column.to(device))
    share = ranks.share(range(len(rows)))
    mine = episodes.each(lambda column: column[share])

    with context.timed("score"):
        logprobs = ranks.gathered(ranks.all_fit(lambda: logprobs_of(context, context.reference, mine)))
    nothing = torch.zeros_like(logprobs)
    preferred = torch.tensor([1.0, -1.0], device=device).repeat(len(pairs)).unsqueeze(1)
    advantages = torch.where(episodes.response_mask, preferred, 0.0)
    measured = Measured(logprobs, logprobs, nothing, nothing, None)
    return Experience(episodes, measured, advantages, None, context.terms.kl_coef)
