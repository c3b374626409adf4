"""What acts on a trial beside the gradient of surrogate and critic: parts, of which the trainer knows no name.

`pipeline.training.parts.registry` lists them; each reads its own settings and keeps its own state, which checkpoints
hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.config.trial import TrialConfig
from pipeline.training.experience import LossTerm, Rows


@dataclass
class Terms:
    """What a rollout is made with; the parts fill it in."""

    kl_coef: float = 0.0
    """beta, the weight of the KL to the reference."""
    floor_weight: float | None = None
    """Of the part of the reward that has a floor; None without one."""


@dataclass(frozen=True)
class Step:
    """What a part makes of a gradient step."""

    factor: float = 1.0
    """On the learning rate of the policy, and of a critic that shares its trunk."""
    ends: bool = False
    """The update ends before this step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Recorded with the step."""


TAKEN = "policy/update_steps"
"""Among what is measured after an update: the gradient steps that it took."""


class Part:
    """Acts on a trial in some of these places; each may be left as it is, and then does nothing."""

    name: ClassVar[str]
    """Its key in checkpoints."""
    keeps: ClassVar[tuple[str, ...]] = ()
    """Its attributes that change while the trial runs, in plain values; checkpoints hold them."""
    shows: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Metrics of every rollout, each with the attribute that it records."""
    wants: ClassVar[frozenset[str]] = frozenset()
    """Measurements that cost time, and are made for it after each update (`Learner.MEASUREMENTS`)."""

    def __init__(self, cfg: TrialConfig) -> None:
        self.cfg = cfg

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        """Whether the configuration asks for it."""
        raise NotImplementedError

    def rollout(self, update: int, terms: Terms) -> None:
        """An update begins, counted from 0. May be called twice for one."""

    def loss(self, rows: Rows) -> LossTerm | None:
        """A term of the policy's loss on these rows; None for nothing."""
        return None

    def frozen(self, position: int) -> bool:
        """Whether the policy stays as it is in a gradient step, by its place among all planned ones, from 0."""
        return False

    def step(self, measured: Mapping[str, float]) -> Step:
        """Decide on a gradient step, whose metrics are `measured`."""
        return Step()

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
