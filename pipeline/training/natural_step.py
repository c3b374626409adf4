"""Step 6 of an update of TRPO: one natural-gradient step of the policy on the whole rollout, then a critic alone.

The first gradient step of an update is that of the policy, and trains the critic on the whole rollout; the others train
the critic on mini-batches. So all algorithms count the same gradient steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.controllers import lr_schedule
from pipeline.algorithms.mathematics.kl import entropy, exact_kl
from pipeline.algorithms.mathematics.losses import value_loss
from pipeline.algorithms.mathematics.natural_gradient import (
    LineSearch,
    conjugate_gradient,
    line_search,
    step_length,
)
from pipeline.algorithms.terms import Tokens
from pipeline.models.fisher import fisher_product, flat, shaped_as, swapped, trained
from pipeline.models.lm_head import chunks
from pipeline.models.micro_batches import MicroBatch
from pipeline.models.policy import gather, log_probs, response_hidden
from pipeline.models.recompute import recomputing
from pipeline.training.experience import Experience, tokens_of
from pipeline.training.health import check_finite
from pipeline.training.learner import Learner
from pipeline.training.part import Parts
from pipeline.training.penalty import Penalty, penalty_of
from pipeline.training.selfcheck import OFF_POLICY, check_first_step
from pipeline.training.surrogate_loss import SurrogateLoss, summed
from pipeline.training.update import MiniBatch, OnStep, accumulate, mini_batches, surrogate_loss, token_losses
from pipeline.training.whole_rollout import token_means


def learn_naturally(rollout: Experience, learner: Learner, update: int, on_step: OnStep) -> int:
    """Take all gradient steps of an update, and return how many there were.

    `on_step` gets each step's number and metrics. Raises `Diverged` before a step that is not finite would be taken.
    """
    taken = 0
    for position, rows in mini_batches(learner.cfg, update):
        if taken == 0:
            metrics = accumulate(rollout, torch.arange(len(rollout.advantages)), learner)
            off_policy = metrics.pop(OFF_POLICY)
            if position == 0:
                check_first_step(metrics, off_policy, learner.precision.tolerance)
            metrics |= clip_critic(learner)
            metrics |= move_policy(rollout, learner)
        else:
            metrics = accumulate(rollout, rows, learner, critic_backward)
            metrics |= clip_critic(learner)
        step_critic(learner, position)
        taken += 1
        on_step(position + 1, metrics)
    return taken


# --- the critic ----------------------------------------------------------------------------------------------


def critic_backward(rollout: Experience, rows: MicroBatch, learner: Learner, whole: MiniBatch) -> dict[str, Tensor]:
    """Add the gradient of the value loss of `rows`, a part of the mini-batch `whole`; returns the metrics' sums."""
    actor, cfg, batch = learner.actor, learner.cfg.critic, tokens_of(rollout, rows)
    assert batch.values is not None
    assert batch.returns is not None
    with recomputing(actor.networks, learner.checkpointing):
        vpred = actor.separate_values(rollout.episodes.take(rows))
    loss, clipped = value_loss(vpred, batch.values, batch.returns, cfg.cliprange)
    loss.sum().backward(cfg.vf_coef * learner.steps.scale(1 / whole.tokens))  # type: ignore[no-untyped-call]
    return summed({"value/vf_loss": loss, "value/vf_clipfrac": clipped})


def clip_critic(learner: Learner) -> dict[str, float]:
    """Unscale all gradients, and hold the critic's norm to ``max_grad_norm``; that norm before. Raises `Diverged`."""
    head, trunk = learner.actor.value_head, learner.actor.critic_trunk
    assert head is not None
    assert trunk is not None
    critic = [*trunk.parameters(), *head.parameters()]
    (norm,) = learner.steps.clip([critic], learner.cfg.optimiser.max_grad_norm)
    return _sizes(learner, {"value/grad_norm": float(norm)})


def step_critic(learner: Learner, position: int) -> None:
    """One step of the optimiser, at its place among the planned ones; the policy has no gradient any more."""
    factor = lr_schedule(learner.cfg, position)
    for group in learner.steps.optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor
    learner.steps.step()


def _sizes(learner: Learner, norms: dict[str, float]) -> dict[str, float]:
    """The norms that are finite. Raises `Diverged` for one that is not, but in fp16, where its step is skipped."""
    if not learner.steps.skips_overflows:
        check_finite(norms)
    return {name: norm for name, norm in norms.items() if math.isfinite(norm)}


# --- the policy ----------------------------------------------------------------------------------------------


def move_policy(rollout: Experience, learner: Learner) -> dict[str, float]:
    """Take the natural-gradient step by the gradient that is in the policy's parameters, unscaled, and drop it there.

    Where no point of the line search is accepted the weights stay as they are. Returns the step's metrics.
    """
    parameters = trained(learner.actor.lm)
    uphill = flat([parameter.grad for parameter in parameters], parameters).neg_()
    for parameter in parameters:
        parameter.grad = None
    size = _sizes(learner, {"policy/grad_norm": float(uphill.norm())})
    if not size:
        return _report(LineSearch(False, 0, 0.0, 0.0), 0.0)
    step = natural_step(rollout, learner, uphill)
    expected = float(uphill.dot(step))
    if not expected > 0:
        return size | _report(LineSearch(False, 0, 0.0, 0.0), 0.0)
    return size | _report(_search(rollout, learner, step), expected)


def natural_step(rollout: Experience, learner: Learner, uphill: Tensor) -> Tensor:
    """The step (P,) along (F + damping)⁻¹ `uphill`, as long as the quadratic model of the KL allows."""
    knobs = learner.cfg.algorithm

    def fisher(vector: Tensor) -> Tensor:
        def sums(rows: MicroBatch) -> list[Tensor]:
            episodes = rollout.episodes.take(rows)
            return [
                fisher_product(learner.actor.lm, episodes, vector, learner.cfg.train.temperature, learner.checkpointing)
            ]

        return token_means(rollout, learner, sums)[0]

    step = conjugate_gradient(
        lambda vector: fisher(vector).add_(knobs.trpo_damping * vector), uphill, knobs.trpo_cg_iterations
    )
    return step.mul_(step_length(knobs.trpo_delta, float(step.dot(fisher(step)))))


@torch.no_grad()
def _search(rollout: Experience, learner: Learner, step: Tensor) -> LineSearch:
    """Move the policy to the first accepted point of the line search, if there is one."""
    parameters, knobs = trained(learner.actor.lm), learner.cfg.algorithm

    def point(share: float) -> list[Tensor]:
        parts = zip(parameters, shaped_as(parameters, step), strict=True)
        return [torch.add(parameter, part, alpha=share) for parameter, part in parts]

    at: list[Tensor] = []

    def evaluate(share: float) -> tuple[float, float]:
        at[:] = point(share)
        gain, kl = token_means(rollout, learner, lambda rows: gain_and_kl(rollout, rows, learner, at))
        return float(gain), float(kl)

    found = line_search(evaluate, knobs.trpo_delta, knobs.trpo_line_search)
    if found.accepted:
        for parameter, moved in zip(parameters, at, strict=True):
            parameter.copy_(moved)
    return found


@torch.no_grad()
def gain_and_kl(
    rollout: Experience, rows: Tensor | MicroBatch, learner: Learner, weights: list[Tensor]
) -> list[Tensor]:
    """What other weights of the policy would gain in the objective, and their exact KL(old || new); () each, summed
    over the tokens of `rows`."""
    lm, temperature, episodes = learner.actor.lm, learner.cfg.train.temperature, rollout.episodes.take(rows)
    batch, labels = tokens_of(rollout, rows), episodes.labels
    gain, total = (torch.zeros((), device=labels.device) for _ in range(2))
    with learner.precision.autocast():
        old_hidden = response_hidden(lm, episodes)
        with swapped(lm, weights):
            new_hidden = response_hidden(lm, episodes)
        mask, cfg = episodes.response_mask, learner.cfg
        micro_batch = rows if isinstance(rows, MicroBatch) else None
        surrogate = surrogate_loss(batch, mask, None, _whole(rollout), cfg, micro_batch)
        penalty = penalty_of(batch, mask, None, rollout.kl_coef, cfg.kl, micro_batch=micro_batch)
        for part in chunks(labels, int(lm.config.vocab_size)):
            log_old = log_probs(lm, old_hidden[part], temperature)
            with swapped(lm, weights):
                log_new = log_probs(lm, new_hidden[part], temperature)
            before, after = (
                objective(surrogate, penalty, batch, learner.parts, part, gather(log_pi, labels[part]), log_pi)
                for log_pi in (log_old, log_new)
            )
            gain += (after - before).sum()
            total += exact_kl(log_old, log_new).clamp(min=0).sum()
    return [gain, total]


def objective(
    surrogate: SurrogateLoss,
    penalty: Penalty | None,
    batch: Tokens,
    parts: Parts,
    part: slice,
    logprobs: Tensor,
    log_pi: Tensor,
) -> Tensor:
    """What the step is to raise, token by token, (n,): the policy's loss with all its terms, negated; log_pi (n, V)."""
    total = -surrogate.loss(part, logprobs)
    if penalty is not None:
        total = total - surrogate.weighted(part, penalty.loss(part, logprobs))
    for term in parts.losses(token_losses(surrogate, batch, part, logprobs, lambda: entropy(log_pi))):
        total = total - term
    return total


def _whole(rollout: Experience) -> MiniBatch:
    mask = rollout.episodes.response_mask
    return MiniBatch(mask.sum(), len(mask))


def _report(found: LineSearch, expected: float) -> dict[str, float]:
    return {
        "policy/step_accepted": float(found.accepted),
        "policy/line_search": float(found.tried),
        "policy/old_kl_exact": found.kl,
        "policy/surrogate_gain": found.gain,
        "policy/expected_gain": expected,
    }
