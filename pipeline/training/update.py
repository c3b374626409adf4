"""Step 6 of an update: epochs x mini-batches over one rollout, or over a batch of stored pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pipeline.algorithms.aggregation import response_weights
from pipeline.algorithms.mathematics.controllers import lr_schedule
from pipeline.algorithms.mathematics.losses import value_loss
from pipeline.algorithms.registry import SURROGATES
from pipeline.algorithms.terms import Tokens, step_metrics
from pipeline.config.trial import TrialConfig
from pipeline.models.lm_head import head_backward, head_logprobs
from pipeline.models.micro_batches import MicroBatch, moved
from pipeline.models.recompute import recomputing
from pipeline.models.seeding import permutation
from pipeline.training.experience import Experience, tokens_of
from pipeline.training.grouping import groups_of
from pipeline.training.health import check_finite
from pipeline.training.learner import Learner
from pipeline.training.pair_loss import PairSlopes, of_pairs, pair_slopes
from pipeline.training.part import Step, TokenLosses
from pipeline.training.penalty import penalty_of
from pipeline.training.selfcheck import OFF_POLICY, check_first_step
from pipeline.training.surrogate_loss import SurrogateLoss, of_sequences, of_tokens, summed, to_tokens

OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class MiniBatch:
    """What the losses of a mini-batch are averaged over, in all processes together."""

    tokens: Tensor
    """() valid ones."""
    sequences: int
    pairs: PairSlopes | None = None
    """Of a loss of pairs."""


Backward = Callable[[Experience, MicroBatch, Learner, MiniBatch], dict[str, Tensor]]
"""Adds the gradient of some rows of a mini-batch to the parameters; gives the metrics' sums. A card is not waited for
meanwhile."""


def train_on(experience: Experience, learner: Learner, update: int, on_step: OnStep) -> int:
    """Take up to ``num_epochs x num_mini_batches`` gradient steps, and return how many were taken.

    `on_step` gets each step's number among the planned ones, from 1, and its metrics. Raises `Diverged` before a step
    that is not finite would be taken.
    """
    cfg, taken = learner.cfg, 0
    for position, rows in mini_batches(cfg, update):
        metrics = accumulate(experience, rows, learner)
        off_policy = metrics.pop(OFF_POLICY)
        if position == 0:
            check_first_step(metrics, off_policy, learner.precision.tolerance)
        # Decided while the gradient is still scaled: it can then be dropped, and the scaler is ready for the next one.
        planned = lr_schedule(cfg, position)
        step = learner.parts.step(metrics, planned)
        if step.ends:
            return taken
        metrics |= apply(learner, position, planned, step)
        taken += 1
        on_step(position + 1, metrics)
    return taken


def mini_batches(cfg: TrialConfig, update: int) -> Iterator[tuple[int, Tensor]]:
    """The gradient steps of an update: their places among all planned ones, and the episodes (B,) of each, on the
    host."""
    position = update * cfg.train.steps_per_update
    for epoch in range(cfg.train.num_epochs):
        together = 2 if cfg.algorithm.by_pairs else 1
        order = permutation(cfg.train.batch_size // together, cfg.train.seed, "epoch", update, epoch)
        for places in torch.split(order, cfg.train.mini_batch_size // together):
            yield position, _rows_of(places, together)
            position += 1


def _rows_of(places: Tensor, together: int) -> Tensor:
    """Row numbers (n x together,) of the places (n,), each of which holds so many consecutive rows."""
    if together == 1:
        return places
    return (places.unsqueeze(1) * together + torch.arange(together)).flatten()


def accumulate(
    experience: Experience, rows: Tensor, learner: Learner, back: Backward | None = None
) -> dict[str, float]:
    """The gradient of the mean loss over the valid tokens of the mini-batch `rows` (n,), on the host, left in the
    parameters, scaled; its metrics. The loss is that of policy and critic, unless `back` is another than `backward`.

    Micro-batches change no result. Raises `Diverged` for what is not finite, `MemoryFull` for what does not fit.
    """
    pairs = pair_slopes(experience, rows, learner) if learner.cfg.algorithm.by_pairs else None
    mask, room, mine = experience.episodes.response_mask, learner.room, learner.ranks.part(rows)
    (there,) = moved((rows.numpy(),), mask.device)
    batch = MiniBatch(mask[there].sum(), len(rows), pairs)
    sums = learner.ranks.all_fit(
        lambda: room.fit(
            lambda size: gradient(experience, experience.micro_batches(size, mine), learner, batch, back or backward)
        )
    )
    learner.ranks.add([parameter.grad for parameter in learner.actor.parameters() if parameter.grad is not None])
    learner.ranks.add(sums.values())
    means = dict(zip(sums, (torch.stack(list(sums.values())) / batch.tokens).tolist(), strict=True))
    means |= pairs.metrics if pairs else {}
    check_finite(means)
    return means


def gradient(
    experience: Experience, parts: Iterable[MicroBatch], learner: Learner, batch: MiniBatch, back: Backward
) -> dict[str, Tensor]:
    """Leave the gradient of all `parts` in the parameters, in place of what was there; the metrics' sums over their
    tokens."""
    learner.steps.clear()
    sums: dict[str, Tensor] = {}
    for part in parts:
        with learner.precision.autocast():
            for name, value in back(experience, part, learner, batch).items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value
    return sums


def backward(experience: Experience, rows: MicroBatch, learner: Learner, whole: MiniBatch) -> dict[str, Tensor]:
    """Add the gradient of the loss of `rows`, a part of the mini-batch `whole`; returns the metrics' sums."""
    cfg, actor = learner.cfg, learner.actor
    episodes = experience.episodes.take(rows)
    batch = tokens_of(experience, rows)
    scale = learner.steps.scale(1 / whole.tokens)
    with recomputing(actor.networks, learner.checkpointing):
        hidden, vpred = actor.hidden_and_values(episodes)
    groups = groups_of(episodes, cfg.kl, learner.closes) if cfg.kl.grouped_in("loss") else None
    now = None
    if (cfg.algorithm.by_sequence and not whole.pairs) or groups is not None:
        now = head_logprobs(actor.lm, hidden, episodes.labels, cfg.train.temperature)
    if whole.pairs:
        surrogate = of_pairs(whole.pairs, rows, episodes.response_mask, whole.tokens, whole.sequences)
    else:
        surrogate = surrogate_loss(batch, episodes.response_mask, now, whole, cfg, rows)
    penalty = penalty_of(batch, episodes.response_mask, now, experience.kl_coef, cfg.kl, groups, rows)

    def token_loss(part: slice, new_logprobs: Tensor, entropy: Tensor) -> Tensor:
        loss = surrogate.loss(part, new_logprobs)
        if penalty is not None:
            loss = loss + surrogate.weighted(part, penalty.loss(part, new_logprobs))
        for term in learner.parts.losses(token_losses(surrogate, batch, part, new_logprobs, lambda: entropy)):
            loss = loss + term
        return loss.sum()

    head = head_backward(actor.lm, hidden, episodes.labels, cfg.train.temperature, token_loss, scale)
    roots, gradients, metrics = [hidden], [head.gradient.to(hidden.dtype)], {"policy/entropy": head.entropy}
    if vpred is not None and batch.values is not None and batch.returns is not None:
        vf, vf_clipped = value_loss(vpred, batch.values, batch.returns, cfg.critic.cliprange)
        roots, gradients = [*roots, vf.sum()], [*gradients, cfg.critic.vf_coef * scale]
        metrics |= {"value/vf_loss": vf, "value/vf_clipfrac": vf_clipped}
    torch.autograd.backward(roots, gradients)
    with torch.no_grad():
        metrics |= step_metrics(batch, head.logprobs)
        metrics[OFF_POLICY] = (head.logprobs - batch.logprobs).abs() > learner.precision.tolerance
        if penalty is not None:
            metrics["policy/kl_loss"] = surrogate.weighted(slice(None), penalty.value(head.logprobs))
        return {**summed(metrics), **surrogate.sums(head.logprobs)}


def surrogate_loss(
    batch: Tokens,
    mask: Tensor,
    now: Tensor | None,
    whole: MiniBatch,
    cfg: TrialConfig,
    micro_batch: MicroBatch | None = None,
) -> SurrogateLoss:
    """The policy's loss on some rows of a mini-batch, mask (B, T); of a loss of whole responses `now` (N,), the
    log-probs of the network at hand."""
    surrogate, lengths = SURROGATES[cfg.algorithm.trust_region], mask.sum(1)
    if not cfg.algorithm.by_sequence and cfg.algorithm.aggregation == "token_mean":
        return of_tokens(surrogate, batch, None, cfg.algorithm)
    weights = response_weights(lengths, whole.tokens, whole.sequences, cfg.train.response_length, cfg.algorithm)
    if not cfg.algorithm.by_sequence:
        return of_tokens(surrogate, batch, to_tokens(weights / lengths, mask, micro_batch), cfg.algorithm)
    assert now is not None
    per_sequence = whole.tokens / whole.sequences
    return of_sequences(surrogate, batch, mask, now, weights, per_sequence, cfg.algorithm, micro_batch)


def token_losses(
    surrogate: SurrogateLoss, batch: Tokens, part: slice, logprobs: Tensor, entropy: Callable[[], Tensor]
) -> TokenLosses:
    """Some tokens of a micro-batch, as the terms of parts see them; logprobs (n,) of the policy as it is."""
    weighted = partial(surrogate.weighted, part)
    return TokenLosses(batch.logprobs[part], batch.ref_logprobs[part], logprobs, entropy, weighted)


def apply(learner: Learner, position: int, planned: float, step: Step) -> dict[str, float]:
    """Clip the gradient in the parameters and take its step, at its place among the planned ones; the metrics of its
    size. `planned` is the factor of the schedule on all learning rates. Parts may reduce that of the policy, and of a
    critic that shares its trunk, or hold the policy still.

    Raises `Diverged`, before the step, for a gradient that is not finite; in fp16 the step is skipped instead, and has
    no norm.
    """
    cfg = learner.cfg
    if frozen := learner.parts.frozen(position):
        for parameter in learner.actor.lm.parameters():
            parameter.grad = None
    size = clip(learner)
    if not learner.steps.skips_overflows:
        check_finite(size)
    for group in learner.steps.optimiser.param_groups:
        group["lr"] = group["base_lr"] * (step.factor if group["moves_policy"] else planned)
    learner.steps.step()
    learner.parts.stepped()
    size = {name: norm for name, norm in size.items() if math.isfinite(norm)}
    lr = 0.0 if frozen else cfg.optimiser.lr * step.factor
    return {**size, "policy/lr": lr, "policy/lr_factor": 1.0, **step.metrics}


def clip(learner: Learner) -> dict[str, float]:
    """Unscale the gradient and hold its norms to ``max_grad_norm``; the norms before that.

    With a common norm the error of a separate critic, which can be of any size, would shrink the step of a policy that
    it shares no weight with.
    """
    actor = learner.actor
    groups = {"policy/grad_norm": list(actor.parameters())}
    if actor.critic_trunk is not None and actor.value_head is not None and learner.cfg.optimiser.clip_norms == "apart":
        critic = [*actor.critic_trunk.parameters(), *actor.value_head.parameters()]
        groups = {"policy/grad_norm": list(actor.lm.parameters()), "value/grad_norm": critic}
    norms = learner.steps.clip(groups.values(), learner.cfg.optimiser.max_grad_norm)
    return {name: float(norm) for name, norm in zip(groups, norms, strict=True)}
