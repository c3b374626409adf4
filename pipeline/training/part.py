"""What acts on a trial beside the gradient of surrogate and critic: parts, of which the trainer knows no name.

`pipeline.training.parts` lists them; each reads its own settings and keeps its own state, which checkpoints hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipeline.config.trial import TrialConfig


@dataclass
class Terms:
    """What a rollout is made with; the parts fill it in."""

    kl_coef: float = 0.0
    """beta, the weight of the KL to the reference."""
    floor_weight: float | None = None
    """Of the part of the reward that has a floor; None without one."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Recorded with the rollout."""


@dataclass(frozen=True)
class TokenLosses:
    """n tokens of a mini-batch, as a term of the policy's loss sees them; nats."""

    old_logprobs: Tensor
    """(n,) of the policy that sampled."""
    ref_logprobs: Tensor
    """(n,) of the reference."""
    logprobs: Tensor
    """(n,) of the policy as it is."""
    entropy: Callable[[], Tensor]
    """Gives (n,), the exact entropy of the policy as it is."""
    weighted: Callable[[Tensor], Tensor]
    """Multiplies (n,) with the weight of a token in the loss, which the aggregation decides."""


@dataclass(frozen=True)
class Step:
    """What a part makes of a gradient step."""

    factor: float = 1.0
    """On the learning rate of the policy, and of a critic that shares its trunk."""
    ends: bool = False
    """The update ends before this step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Recorded with the step."""


PLAIN = Step()
TAKEN = "policy/update_steps"
"""Among what is measured after an update: the gradient steps that it took."""


class Part:
    """Acts on a trial in some of these places; each may be left as it is, and then does nothing."""

    name = ""
    """Its key in checkpoints."""
    wants: frozenset[str] = frozenset()
    """Measurements that cost time, and are made for it after each update (`pipeline.training.whole_rollout`)."""
    keeps: tuple[str, ...] = ()
    """Its attributes that change while the trial runs, in plain values."""

    def __init__(self, cfg: TrialConfig) -> None:
        self.cfg = cfg

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        """Whether the configuration asks for it."""
        raise NotImplementedError

    def rollout(self, update: int, terms: Terms) -> None:
        """An update begins, counted from 0. May be called twice for one."""

    def loss(self, tokens: TokenLosses) -> Tensor | None:
        """(n,) to add to the policy's loss; None for nothing."""
        return None

    def frozen(self, position: int) -> bool:
        """Whether the policy stays as it is in a gradient step, by its place among all planned ones, from 0."""
        return False

    def step(self, measured: Mapping[str, float]) -> Step:
        """Decide on a gradient step, whose metrics are `measured`."""
        return PLAIN

    def stepped(self) -> None:
        """A gradient step has been taken."""

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        """An update has ended; `measured` are the metrics of its rollout and what parts want. Returns what is to be
        recorded behind it."""
        return {}

    def recorded(self, step: int, values: Mapping[str, float]) -> None:
        """A row of metrics was written."""

    def stop(self) -> str | None:
        """Why the trial is to end now, in words; None to go on."""
        return None

    def state(self) -> dict[str, Any]:
        """All that changes while the trial runs."""
        return {name: getattr(self, name) for name in self.keeps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        for name in self.keeps:
            setattr(self, name, state[name])


class Parts:
    """The parts of a trial, asked one after the other."""

    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = {part.name: part for part in parts}
        self.wants = frozenset[str]().union(*(part.wants for part in self._parts.values()))

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts.values())

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]

    def rollout(self, update: int) -> Terms:
        """What the rollout of an update is made with."""
        terms = Terms()
        for part in self:
            part.rollout(update, terms)
        return terms

    def losses(self, tokens: TokenLosses) -> Iterator[Tensor]:
        """The terms (n,) that parts add to the loss."""
        return (loss for part in self if (loss := part.loss(tokens)) is not None)

    def frozen(self, position: int) -> bool:
        """Whether some part holds the policy still in this step."""
        return any(part.frozen(position) for part in self)

    def step(self, measured: Mapping[str, float], planned: float) -> Step:
        """The decisions of all on a step; `planned` is the factor of the schedule, which those of the parts multiply
        in their order."""
        steps = [part.step(measured) for part in self]
        metrics = {name: value for step in steps for name, value in step.metrics.items()}
        return Step(
            math.prod((step.factor for step in steps), start=planned), any(step.ends for step in steps), metrics
        )

    def stepped(self) -> None:
        """A gradient step has been taken."""
        for part in self:
            part.stepped()

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> dict[str, float]:
        """An update has ended; what is to be recorded behind it."""
        return {name: value for part in self for name, value in part.after(measured, policy_moved).items()}

    def recorded(self, step: int, values: Mapping[str, float]) -> None:
        """A row of metrics was written."""
        for part in self:
            part.recorded(step, values)

    def stop(self) -> str | None:
        """The first reason to end the trial; None without one."""
        return next(filter(None, (part.stop() for part in self)), None)

    def state(self) -> dict[str, dict[str, Any]]:
        """Of every part, by its name."""
        return {part.name: part.state() for part in self}

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from a `state`."""
        for part in self:
            part.load(state[part.name])
