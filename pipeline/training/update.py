"""Step 6 of an update: epochs x mini-batches over one rollout, or over a batch of stored pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import add
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter

from pipeline.algorithms.mathematics.kl import k2, k3, limited
from pipeline.algorithms.mathematics.losses import value_loss
from pipeline.config.trial import TrialConfig
from pipeline.models.heads import head_backward, head_logprobs
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import ActorCritic, response_hidden
from pipeline.models.precision import GradientSteps, Precision
from pipeline.models.seeding import permutation
from pipeline.models.trunk import recomputing
from pipeline.training.experience import Entropy, Experience, LossTerm, Rows, summed
from pipeline.training.health import OFF_POLICY, check_finite, check_first_step
from pipeline.training.part import Part, Step
from pipeline.training.processes import Ranks
from pipeline.training.surrogate import surrogate_term

OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class MiniBatch:
    """Totals of a mini-batch over all processes, by which its losses are averaged."""

    tokens: Tensor
    """() valid ones."""
    sequences: int
    slopes: Tensor | None = None
    """(B,) of a loss of pairs: d(mean loss over pairs)/d(log-prob of a response), 0 outside the mini-batch."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Measured before the gradient."""


@dataclass
class Learner:
    """Takes gradient steps on a surrogate of the policy's objective, token by token or response by response."""

    actor: ActorCritic
    steps: GradientSteps
    precision: Precision
    ranks: Ranks
    """The processes that share the work."""
    cfg: TrialConfig
    parts: Mapping[str, Part[Any]]
    room: Room
    """Episodes in memory at once; changes nothing."""

    together: ClassVar[int] = 1
    """Neighbouring rows that stay in one mini-batch."""

    def learn(self, experience: Experience, update: int, on_step: OnStep) -> int:
        """Take up to ``num_epochs x num_mini_batches`` gradient steps, and return how many were taken.

        `on_step` gets each step's number among the planned ones, from 1, and its metrics. Raises `Diverged` before a
        step that is not finite would be taken.
        """
        taken = 0
        for position, rows in self.mini_batches(update):
            metrics = self.accumulate(experience, rows)
            self.check_first(metrics, position)
            # Decided while the gradient is still scaled: it can then be dropped, and the scaler is ready for the next.
            planned = lr_schedule(self.cfg, position)
            steps = [part.step(metrics) for part in self.parts.values()]
            if any(step.ends for step in steps):
                return taken
            metrics |= self.apply(position, planned, steps)
            taken += 1
            on_step(position + 1, metrics)
        return taken

    def holds(self, position: int) -> bool:
        """Return whether some part holds the policy still in the gradient step at this place among the planned ones."""
        return any(part.frozen(position) for part in self.parts.values())

    def check_first(self, metrics: dict[str, float], position: int) -> None:
        """Take what only the first step is checked for out of its metrics; raises `SelfCheckFailed` where it does not
        hold."""
        off_policy = metrics.pop(OFF_POLICY)
        if position == 0:
            check_first_step(metrics, off_policy, self.precision.tolerance)

    def mini_batches(self, update: int) -> Iterator[tuple[int, Tensor]]:
        """The gradient steps of an update: their places among all planned ones, and the episodes (B,) of each, on the
        host."""
        train, each = self.cfg.train, self.together
        position = update * train.steps_per_update
        for epoch in range(train.num_epochs):
            order = permutation(train.batch_size // each, train.seed, "epoch", update, epoch)
            for places in torch.split(order, train.mini_batch_size // each):
                yield position, (places.unsqueeze(1) * each + torch.arange(each)).flatten()
                position += 1

    # --- the gradient ----------------------------------------------------------------------------------------

    def accumulate(
        self,
        experience: Experience,
        rows: Tensor,
        back: Callable[[Rows, MiniBatch], dict[str, Tensor]] | None = None,
    ) -> dict[str, float]:
        """The gradient of the mean loss over the valid tokens of the mini-batch `rows` (n,), on the host, left in the
        parameters, scaled; its metrics. The loss is that of policy and critic, unless `back` is another than
        `backward`.

        Micro-batches change no result. Raises `Diverged` for what is not finite, `MemoryFull` for what does not fit.
        """
        batch, mine, work = self.mini_batch(experience, rows), self.ranks.part(rows), back or self.backward

        def one(part: Rows) -> dict[str, Tensor]:
            with self.precision.autocast():
                return work(part, batch)

        def gradient(size: int) -> dict[str, Tensor]:
            self.steps.clear()
            return added(map(one, experience.micro_batches(size, mine)))

        sums = self.ranks.all_fit(lambda: self.room.fit(gradient))
        self.ranks.add([parameter.grad for parameter in self.actor.parameters() if parameter.grad is not None])
        self.ranks.add(sums.values())
        means = dict(zip(sums, (torch.stack(list(sums.values())) / batch.tokens).tolist(), strict=True))
        means |= batch.metrics
        check_finite(means)
        return means

    def mini_batch(self, experience: Experience, rows: Tensor) -> MiniBatch:
        """Build the totals of a mini-batch before its gradient; rows (n,), on the host."""
        mask = experience.episodes.response_mask
        return MiniBatch(mask[rows.to(mask.device)].sum(), len(rows))

    def backward(self, rows: Rows, whole: MiniBatch) -> dict[str, Tensor]:
        """Add the gradient of the loss of `rows`, a part of the mini-batch `whole`; returns the metrics' sums."""
        cfg, actor, labels = self.cfg, self.actor, rows.episodes.labels
        scale, temperature = self.steps.scale(1 / whole.tokens), cfg.train.temperature
        with recomputing(actor.networks, cfg.runtime.gradient_checkpointing):
            hidden, vpred = actor.hidden_and_values(rows.episodes)
        rows.now = cache(lambda: head_logprobs(actor.lm, hidden, labels, temperature))
        terms = self.terms(rows, whole)

        def token_loss(tokens: slice, logprobs: Tensor, entropy: Tensor) -> Tensor:
            return total(terms, tokens, logprobs, lambda: entropy).sum()

        head = head_backward(actor.lm, hidden, labels, temperature, token_loss, scale)
        roots, gradients, metrics = [hidden], [head.gradient.to(hidden.dtype)], {"policy/entropy": head.entropy}
        values, returns = rows.experience.measured.values, rows.experience.returns
        if vpred is not None and values is not None and returns is not None:
            vf, vf_clipped = value_loss(vpred, rows.valid(values), rows.valid(returns), cfg.critic.cliprange)
            roots, gradients = [*roots, vf.sum()], [*gradients, cfg.critic.vf_coef * scale]
            metrics |= {"value/vf_loss": vf, "value/vf_clipfrac": vf_clipped}
        torch.autograd.backward(roots, gradients)
        with torch.no_grad():
            metrics |= step_metrics(rows, head.logprobs)
            metrics[OFF_POLICY] = (head.logprobs - rows.old_logprobs).abs() > self.precision.tolerance
            sums = summed(metrics)
            for term in terms:
                sums |= summed(term.sums(head.logprobs))
            return sums

    def terms(self, rows: Rows, whole: MiniBatch) -> list[LossTerm]:
        """List the terms of the policy's loss on some rows of a mini-batch: the surrogate, then those of parts."""
        surrogate = self.surrogate(rows, whole)
        return [surrogate, *(term for part in self.parts.values() if (term := part.loss(rows)))]

    def surrogate(self, rows: Rows, whole: MiniBatch) -> LossTerm:
        """The algorithm's own term, which also sets the weight of all others."""
        return surrogate_term(rows, whole.tokens, whole.sequences, self.cfg)

    # --- the step --------------------------------------------------------------------------------------------

    def apply(self, position: int, planned: float, steps: list[Step]) -> dict[str, float]:
        """Clip the gradient in the parameters and take its step, at its place among the planned ones; the metrics of
        its size. `planned` is the factor of the schedule on all learning rates; those of the parts multiply it, in
        their order, for the policy, and for a critic that shares its trunk.

        Raises `Diverged`, before the step, for a gradient that is not finite; in fp16 the step is skipped instead, and
        has no norm.
        """
        factor = math.prod((step.factor for step in steps), start=planned)
        if held := self.holds(position):
            for parameter in self.actor.lm.parameters():
                parameter.grad = None
        size = self.clip()
        self.step(planned, factor)
        for part in self.parts.values():
            part.stepped()
        shown = {name: value for step in steps for name, value in step.metrics.items()}
        lr = 0.0 if held else self.cfg.optimiser.lr * factor
        return {**size, "policy/lr": lr, "policy/lr_factor": 1.0, **shown}

    def step(self, planned: float, factor: float) -> None:
        """Take one step of the optimiser: `planned` on all base learning rates, `factor` where the policy moves."""
        for group in self.steps.optimiser.param_groups:
            group["lr"] = group["base_lr"] * (factor if group["moves_policy"] else planned)
        self.steps.step()

    def clip(self) -> dict[str, float]:
        """Unscale the gradient and hold its norms to ``max_grad_norm``; the finite ones of the norms before that.

        With a common norm the error of a separate critic, which can be of any size, would shrink the step of a policy
        that it shares no weight with. Raises `Diverged` for a norm that is not finite, but in fp16, where its step is
        skipped.
        """
        groups = self.clipped
        norms = self.steps.clip(groups.values(), self.cfg.optimiser.max_grad_norm)
        return self.finite({name: float(norm) for name, norm in zip(groups, norms, strict=True)})

    @property
    def clipped(self) -> dict[str, list[Parameter]]:
        """Parameters whose gradients have a common norm, by its metric."""
        if self.cfg.optimiser.clip_norms == "apart" and (critic := self.separate_critic):
            return {"policy/grad_norm": list(self.actor.lm.parameters()), "value/grad_norm": critic}
        return {"policy/grad_norm": list(self.actor.parameters())}

    @property
    def separate_critic(self) -> list[Parameter]:
        """Parameters of a critic that shares none with the policy."""
        trunk, head = self.actor.critic_trunk, self.actor.value_head
        return [*trunk.parameters(), *head.parameters()] if trunk is not None and head is not None else []

    def finite(self, norms: Mapping[str, float]) -> dict[str, float]:
        """The norms that are finite. Raises `Diverged` for one that is not, but in fp16, where its step is skipped."""
        if not self.steps.skips_overflows:
            check_finite(norms)
        return {name: norm for name, norm in norms.items() if math.isfinite(norm)}

    # --- passes over a whole rollout -------------------------------------------------------------------------

    def token_means(self, experience: Experience, sums: Callable[[Rows], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Means over all valid tokens of a rollout, by all processes. ``sums(rows)`` gives sums over the tokens of some
        rows, and must change nothing.

        The cut into rows changes results by rounding alone. Raises `MemoryFull`.
        """
        mask = experience.episodes.response_mask
        mine = self.ranks.part(torch.arange(len(mask)))
        totals = self.ranks.all_fit(
            lambda: self.room.fit(lambda size: added(map(sums, experience.micro_batches(size, mine))))
        )
        self.ranks.add(totals.values())
        count = mask.sum()
        return {name: total.div_(count) for name, total in totals.items()}

    def logprobs(self, rows: Rows) -> Tensor:
        """(N,) nats, by the network as it is, without gradients."""
        lm = self.actor.lm
        with torch.no_grad(), self.precision.autocast():
            hidden = response_hidden(lm, rows.episodes)
            return head_logprobs(lm, hidden, rows.episodes.labels, self.cfg.train.temperature)

    def moved_kl(self, experience: Experience) -> float:
        """Mean KL(old || new) from the policy that sampled to the present one, nats per token; by k3 on the samples."""
        means = self.token_means(experience, lambda rows: {"kl": k3(rows.old_logprobs - self.logprobs(rows)).sum()})
        return float(means["kl"])

    MEASUREMENTS: ClassVar[Mapping[str, Callable[[Learner, Experience], float]]] = {"policy/old_kl": moved_kl}
    """Measurements after an update that a part can choose."""


def added(parts: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of micro-batches as one."""
    sums: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums[name].add_(value) if name in sums else torch.zeros_like(value).add_(value)
    return sums


def total(terms: list[LossTerm], tokens: slice, logprobs: Tensor, entropy: Entropy) -> Tensor:
    """The sum of all terms of the loss of some tokens, (n,)."""
    return reduce(add, (term.loss(tokens, logprobs, entropy) for term in terms))


def step_metrics(rows: Rows, logprobs: Tensor) -> dict[str, Tensor]:
    """Measure how far the policy is from the one that sampled, and from the reference; (N,) each."""
    log_ratio = logprobs - rows.old_logprobs
    ratio = limited(log_ratio).exp()
    return {
        "policy/approxkl": k2(log_ratio),
        "policy/approxkl_k3": k3(-log_ratio),
        "policy/ratio": ratio,
        "policy/kl_ref_per_token": ratio * (logprobs - rows.ref_logprobs),
    }


def lr_schedule(cfg: TrialConfig, position: int) -> float:
    """Factor on the learning rates at a gradient step, by its place among those planned: linear to 0, or constant."""
    return 1 - position / cfg.train.steps if cfg.optimiser.lr_schedule == "linear" else 1.0
