"""All that changes while a trial trains: what a checkpoint holds, and where the trial stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.config.trial import TrialConfig
from pipeline.models.policy import ActorCritic
from pipeline.models.precision import GradientSteps, Precision
from pipeline.resources.ledger import Ledger
from pipeline.training.judging import Scores
from pipeline.training.part import Part

SAMPLE_TABLES = 8
SAMPLE_ROWS = 8


@dataclass(frozen=True)
class Progress:
    """Updates, gradient steps and seconds of a trial so far."""

    update: int = 0
    taken: int = 0
    wall_s: float = 0.0


@dataclass
class TrainingState:
    """State of one trial. `update` and `taken` count the updates and gradient steps so far."""

    cfg: TrialConfig
    actor: ActorCritic
    parts: Mapping[str, Part[Any]]
    ledger: Ledger
    steps: GradientSteps = field(init=False)
    update: int = 0
    taken: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table of samples."""

    def __post_init__(self) -> None:
        device = next(self.actor.parameters()).device
        optimiser = torch.optim.Adam(_groups(self.actor, self.cfg), eps=self.cfg.optimiser.adam_eps, fused=True)
        self.steps = GradientSteps(optimiser, Precision.of(device))

    @property
    def progress(self) -> Progress:
        """Progress up to now."""
        return Progress(self.update, self.taken, self.ledger.wall_s)

    @property
    def planned(self) -> int:
        """Gradient steps that the updates so far were to take. Metrics stand at planned steps, so that trials are
        compared, and claims judged, at the same episodes; those that an update leaves out stay empty."""
        return self.update * self.cfg.train.steps_per_update

    def trained(self) -> Iterator[tuple[str, Tensor]]:
        """Return what training moves; all else is as at the start, and in no checkpoint."""
        return ((name, tensor.detach()) for name, tensor in self.actor.named_parameters() if tensor.requires_grad)

    def keep_samples(self, scores: Scores) -> None:
        """Add rows of a rollout to the table, from eight updates of a trial."""
        if self.update % max(self.cfg.train.updates // SAMPLE_TABLES, 1):
            return
        each = self.cfg.train.responses_per_prompt
        columns = (scores.prompts, scores.texts, scores.proxy.tolist(), scores.gold.tolist())
        for row in list(zip(*columns, strict=True))[: SAMPLE_ROWS * each : each]:
            names = ("prompt", "completion", "proxy", "gold")
            self.samples.append({"step": self.planned, **dict(zip(names, row, strict=True))})

    def content(self, offset: int) -> dict[str, Any]:
        """Return the content of a checkpoint; `offset` is the length of the metrics file, in bytes."""
        return {
            "update": self.update,
            "taken": self.taken,
            "actor": dict(self.trained()),
            "steps": self.steps.state(),
            "parts": {name: part.state() for name, part in self.parts.items()},
            "offset": offset,
            "samples": self.samples,
            "spent": self.ledger.state(),
        }

    def load(self, content: Mapping[str, Any]) -> None:
        """Stand where a checkpoint stood."""
        self.load_learner(content)
        self.samples = list(content["samples"])
        self.ledger.load(content["spent"])

    def load_learner(self, content: Mapping[str, Any]) -> None:
        """Load what learns alone: weights, optimiser and parts."""
        self.update, self.taken = content["update"], content["taken"]
        with torch.no_grad():
            for name, tensor in self.trained():
                tensor.copy_(content["actor"][name])
        self.steps.load(content["steps"])
        for name, part in self.parts.items():
            part.load(content["parts"][name])

    def nbytes(self, *frozen: Any) -> int:
        """Memory of what training keeps from step to step, counted from the tensors: the weights of policy, critic and
        `frozen` networks, and the gradients and the optimiser's state of what is trained."""
        networks = [module for module in (self.actor, *frozen) if isinstance(module, nn.Module)]
        kept = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
        kept += [tensor for _, tensor in self.trained()]
        states = self.steps.optimiser.state.values()
        moments = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        if not moments:  # a trial that diverged in its first update has gone back to before its first step
            moments = [tensor for _, tensor in self.trained() for _ in ("mean", "square")]
        return sum(tensor.nbytes for tensor in (*kept, *moments))


def _groups(actor: ActorCritic, cfg: TrialConfig) -> list[dict[str, Any]]:
    """Parameters by base learning rate. The value head starts at zero and may have to move faster than the trunk it
    reads. A shared value head is braked with the policy, because its gradient flows through the policy's trunk."""
    rates = ((actor.lm, None), (actor.value_head, cfg.critic.head_lr), (actor.critic_trunk, cfg.critic.lr))
    groups = []
    for module, own in rates:
        if module is not None:
            rate = cfg.optimiser.lr if own is None else own
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            moves_policy = module is actor.lm or actor.critic_trunk is None
            groups.append({"params": trained, "lr": rate, "base_lr": rate, "moves_policy": moves_policy})
    return groups
