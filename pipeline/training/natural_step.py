"""Step 6 of an update of TRPO: one natural-gradient step of the policy on the whole rollout, then a critic alone.

The first gradient step of an update is that of the policy, and trains the critic on the whole rollout; the others train
the critic on mini-batches. So all algorithms count the same gradient steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Parameter

from pipeline.algorithms.mathematics.kl import entropy, exact_kl
from pipeline.algorithms.mathematics.losses import value_loss
from pipeline.algorithms.mathematics.natural_gradient import LineSearch, conjugate_gradient, line_search
from pipeline.algorithms.settings import CG_ITERATIONS
from pipeline.config.effects import value_at
from pipeline.models.fisher import fisher_product, flat, shaped_as, swapped, trained
from pipeline.models.heads import chunks, gather, log_probs
from pipeline.models.policy import response_hidden
from pipeline.models.trunk import recomputing
from pipeline.training.experience import Experience, Rows, summed
from pipeline.training.update import Learner, MiniBatch, OnStep, lr_schedule, total

REFUSED = LineSearch(False, 0, 0.0, 0.0)
DAMPING = 0.1
"""Multiple of the identity that is added to the Fisher matrix, which few samples make nearly singular."""
POINTS = 10
"""Largest number of step lengths to try; the last is 0.13 of the first."""


class NaturalLearner(Learner):
    """Takes one natural-gradient step of the policy per rollout; the optimiser has a separate critic alone."""

    def learn(self, experience: Experience, update: int, on_step: OnStep) -> int:
        taken = 0
        for position, rows in self.mini_batches(update):
            if taken == 0:
                metrics = self.accumulate(experience, torch.arange(len(experience.advantages)))
                self.check_first(metrics, position)
                metrics |= self.clip() | self.move_policy(experience)
            else:
                metrics = self.accumulate(experience, rows, self.critic_backward)
                metrics |= self.clip()
            planned = lr_schedule(self.cfg, position)
            self.step(planned, planned)  # the policy has no gradient any more
            taken += 1
            on_step(position + 1, metrics)
        return taken

    @property
    def delta(self) -> float:
        """Bound on the mean KL of a step, nats per token."""
        return float(value_at(self.cfg, "algorithm.trpo.delta"))

    def holds(self, position: int) -> bool:
        """Never: a warm-up is one of the optimiser's steps."""
        return False

    def critic_backward(self, rows: Rows, whole: MiniBatch) -> dict[str, Tensor]:
        """Add the gradient of the value loss of `rows`, a part of the mini-batch `whole`; returns the metrics' sums."""
        cfg, values, returns = self.cfg, rows.experience.measured.values, rows.experience.returns
        assert values is not None
        assert returns is not None
        with recomputing(self.actor.networks, cfg.runtime.gradient_checkpointing):
            vpred = self.actor.values(rows.episodes)
        loss, clipped = value_loss(vpred, rows.valid(values), rows.valid(returns), cfg.critic.cliprange)
        loss.sum().backward(cfg.critic.vf_coef * self.steps.scale(1 / whole.tokens))  # type: ignore[no-untyped-call]
        return summed({"value/vf_loss": loss, "value/vf_clipfrac": clipped})

    @property
    def clipped(self) -> dict[str, list[Parameter]]:
        """Parameters of the critic; the policy's step has a length of its own."""
        return {"value/grad_norm": self.separate_critic}

    def move_policy(self, experience: Experience) -> dict[str, float]:
        """Take the natural-gradient step by the gradient that is in the policy's parameters, unscaled, and drop it
        there.

        Where no point of the line search is accepted the weights stay as they are. Returns the step's metrics.
        """
        parameters = trained(self.actor.lm)
        uphill = flat([parameter.grad for parameter in parameters], parameters).neg_()
        for parameter in parameters:
            parameter.grad = None
        size = self.finite({"policy/grad_norm": float(uphill.norm())})
        found, expected = REFUSED, 0.0
        if size:
            step = self.natural_step(experience, uphill)
            gain = float(uphill.dot(step))
            if gain > 0:
                found, expected = self._search(experience, step), gain
        return {
            **size,
            "policy/step_accepted": float(found.accepted),
            "policy/line_search": float(found.tried),
            "policy/old_kl_exact": found.kl,
            "policy/surrogate_gain": found.gain,
            "policy/expected_gain": expected,
        }

    def natural_step(self, experience: Experience, uphill: Tensor) -> Tensor:
        """The step (P,) along (F + damping)⁻¹ `uphill`, as long as the quadratic model of the KL allows: √(2 δ / s'Fs)
        times its direction s; 0 where the model has no KL at all."""
        lm, temperature = self.actor.lm, self.cfg.train.temperature
        recompute = self.cfg.runtime.gradient_checkpointing

        def fisher(vector: Tensor) -> Tensor:
            means = self.token_means(
                experience, lambda rows: {"F": fisher_product(lm, rows.episodes, vector, temperature, recompute)}
            )
            return means["F"]

        step = conjugate_gradient(lambda vector: fisher(vector).add_(DAMPING * vector), uphill, CG_ITERATIONS)
        curvature = float(step.dot(fisher(step)))
        return step.mul_(math.sqrt(2 * self.delta / curvature) if curvature > 0 else 0.0)

    @torch.no_grad()
    def _search(self, experience: Experience, step: Tensor) -> LineSearch:
        parameters = trained(self.actor.lm)
        parts = list(shaped_as(parameters, step))
        at: list[Tensor] = []

        def evaluate(share: float) -> tuple[float, float]:
            at[:] = [torch.add(parameter, part, alpha=share) for parameter, part in zip(parameters, parts, strict=True)]
            means = self.token_means(experience, lambda rows: self.gain_and_kl(rows, at))
            return float(means["gain"]), float(means["kl"])

        found = line_search(evaluate, self.delta, POINTS)
        if found.accepted:
            for parameter, moved in zip(parameters, at, strict=True):
                parameter.copy_(moved)
        return found

    @torch.no_grad()
    def gain_and_kl(self, rows: Rows, weights: list[Tensor]) -> dict[str, Tensor]:
        """Return the gain of other weights of the policy in the objective, the negated loss of the policy with all its
        terms; and their exact KL(old || new). () each, summed over the tokens of `rows`."""
        lm, temperature, labels = self.actor.lm, self.cfg.train.temperature, rows.episodes.labels
        mask = rows.experience.episodes.response_mask
        terms = self.terms(rows, MiniBatch(mask.sum(), len(mask)))
        gain, moved = (torch.zeros((), device=labels.device) for _ in range(2))
        with self.precision.autocast():
            old_hidden = response_hidden(lm, rows.episodes)
            with swapped(lm, weights):
                new_hidden = response_hidden(lm, rows.episodes)
            for part in chunks(labels, int(lm.config.vocab_size)):
                log_old = log_probs(lm, old_hidden[part], temperature)
                with swapped(lm, weights):
                    log_new = log_probs(lm, new_hidden[part], temperature)
                before, after = (
                    total(terms, part, gather(log_pi, labels[part]), lambda log_pi=log_pi: entropy(log_pi))  # type: ignore[misc]
                    for log_pi in (log_old, log_new)
                )
                gain += (before - after).sum()
                moved += exact_kl(log_old, log_new).clamp(min=0).sum()
        return {"gain": gain, "kl": moved}
