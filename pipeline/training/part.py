"""Parts that act on a trial beside the gradient of surrogate and critic; the trainer names none of them.

`pipeline.algorithms.kinds.PARTS` lists them; each reads its own settings and keeps its own state, which checkpoints
hold. Importing this needs no torch, so that a part without tensors can stand in one file with its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pipeline.algorithms.kinds import PARTS
from pipeline.config.effects import conditions, value_at

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.config.trial import TrialConfig
    from pipeline.models.loading import CausalLM
    from pipeline.training.experience import LossTerm, Rows

S = TypeVar("S")


@dataclass
class Terms:
    """Terms of a rollout; the parts fill them in."""

    kl_coef: float = 0.0
    """beta, the weight of the KL to the reference."""
    floor: tuple[str, float] | None = None
    """Name and weight of the part of the reward that has a floor; None without one."""
    behaviour: Callable[[CausalLM], CausalLM] | None = None
    """Gives the network that samples for the one in training; None: that one itself."""
    weigh: Callable[[Tensor, Tensor], tuple[Tensor, dict[str, float]]] | None = None
    """Gives weights (B, T) of advantages and metrics from log pi - log mu (B, T), mu the policy that samples, and the
    mask of valid tokens; None where the policy in training samples."""


@dataclass(frozen=True)
class Step:
    """Changes that a part makes to a gradient step."""

    factor: float = 1.0
    """Factor on the learning rate of the policy, and of a critic that shares its trunk."""
    ends: bool = False
    """The update ends before this step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Recorded with the step."""


TAKEN = "policy/update_steps"
"""Metric after an update: the gradient steps that it took."""


class Part(Generic[S]):
    """Acts on a trial in some of these places; each may be left as it is, and then does nothing. S are its settings."""

    keeps: ClassVar[tuple[str, ...]] = ()
    """Attributes that change while the trial runs, in plain values; checkpoints hold them."""
    shows: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Metrics of every rollout, each with the attribute that it records."""
    measurements: ClassVar[frozenset[str]] = frozenset()
    """Measurements that cost time, and are made for it after each update (`Learner.MEASUREMENTS`)."""

    def __init__(self, cfg: TrialConfig, settings: S) -> None:
        self.cfg, self.settings = cfg, settings

    @classmethod
    def asked(cls, cfg: TrialConfig) -> bool:
        """Return whether the configuration switches the part on, where it has no section of its own."""
        return True

    def rollout(self, update: int, terms: Terms) -> None:
        """An update begins, counted from 0. May be called twice for one."""

    def loss(self, rows: Rows) -> LossTerm | None:
        """A term of the policy's loss on these rows; None for nothing."""
        return None

    def frozen(self, position: int) -> bool:
        """Return whether the policy stays as it is in a gradient step, by its place among all planned ones, from 0."""
        return False

    def step(self, measured: Mapping[str, float]) -> Step:
        """Decide on a gradient step, whose metrics are `measured`."""
        return Step()

    def stepped(self) -> None:
        """A gradient step has been taken."""

    def after(self, measured: Mapping[str, float], policy_moved: bool) -> Mapping[str, float]:
        """An update has ended; `measured` are the metrics of its rollout and the `measurements`. Returns what is to be
        recorded behind it."""
        return {}

    def recorded(self, step: int, values: Mapping[str, float]) -> None:
        """A row of metrics was written."""

    def stop(self) -> str | None:
        """Return why the trial is to end now, in words; None to go on."""
        return None

    def state(self) -> dict[str, Any]:
        """All that changes while the trial runs."""
        return {name: getattr(self, name) for name in self.keeps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        for name in self.keeps:
            setattr(self, name, state[name])


def parts_of(cfg: TrialConfig) -> dict[str, Part[Any]]:
    """Make the parts that the configuration switches on, by name; no other one is imported."""
    from pipeline.config.trial import TrialConfig  # at the head it would import parts' settings that stand beside parts

    found = {}
    for name, kind in PARTS.items():
        section = kind.section or name
        settings = value_at(cfg, section)
        if settings.acts if kind.settings else all(one.holds(cfg) for one in conditions(TrialConfig, section)):
            part: type[Part[Any]] = resolve_name(kind.code)
            if part.asked(cfg):
                found[name] = part(cfg, settings)
    return found
