"""All that changes while a trial trains, and its checkpoints: atomic, two kept, a damaged one falls back to the one
before; and going on from them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.config.trial import RuntimeConfig, TrialConfig
from pipeline.models.policy import ActorCritic
from pipeline.models.precision import GradientSteps, Precision
from pipeline.resources.ledger import KEPT as FOLDER
from pipeline.resources.ledger import Ledger
from pipeline.run.metrics import MetricsLog
from pipeline.run.progress import RESUMED, Reporter
from pipeline.training.judging import Scores
from pipeline.training.part import Part
from pipeline.training.processes import Ranks

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


KEPT = 2
DIGITS = 16


def save(folder: Path, update: int, state: dict[str, Any]) -> int:
    """Write ``update_<n>.<sha256>.pt`` in one step, then delete all but the newest two. Returns the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / ".writing"
    try:
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        digest = _digest(beside)
    except BaseException:
        beside.unlink(missing_ok=True)  # on a full disk, half a checkpoint only takes space
        raise
    os.replace(beside, folder / f"update_{update:08d}.{digest}.pt")
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return size


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first."""
    return sorted(folder.glob("update_*.pt"))


def load_latest(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest checkpoint that is what was written (tensors and plain values only), or None.

    A damaged one is set aside. Its name carries the digest, since the file format detects a flipped bit in
    a weight no more than we would.
    """
    for path in reversed(checkpoints(folder)):
        if path.name.split(".")[1] == _digest(path):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
        warn(f"checkpoint {path.name} is damaged; falling back to the one before")
        os.replace(path, path.with_suffix(".damaged"))
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


class Checkpoints:
    """Checkpoints of a running trial, and its metrics file, which they refer to."""

    def __init__(
        self, out: Path, state: TrainingState, ranks: Ranks, watch: Reporter, begin: Callable[[], None] | None
    ) -> None:
        """`begin` puts the metrics and the checkpoint with which a later round begins into place."""
        self._metrics, self._folder, self._begin = out / "metrics.jsonl", out / FOLDER, begin
        self._state, self._ranks, self._watch = state, ranks, watch
        self.log: MetricsLog | None = None
        """None in a process that does not write."""
        self.saved = Progress()
        """Where the newest one was written."""

    def due(self, knobs: RuntimeConfig) -> bool:
        """Return whether one is due: enough updates after the last one, and not too large a share of the time."""
        ledger, share = self._state.ledger, knobs.checkpoint_share
        each = ledger.seconds.get("checkpoint", 0.0) / max(ledger.checkpoints, 1)
        rare = share is None or each <= share * (ledger.wall_s - self.saved.wall_s)
        return rare and self._state.update - self.saved.update >= knobs.checkpoint_updates

    def save(self) -> None:
        """Save the trial as it stood before the update at hand. Its rollout has been healthy, so the weights are good
        ones."""
        state = self._state
        if self._ranks.main:
            with state.ledger.timed("checkpoint"):
                if self.log:
                    self.log.flush()
                state.ledger.checkpoint_bytes += self.leave(self._folder)
                state.ledger.checkpoints += 1
        self.saved = state.progress

    def leave(self, folder: Path) -> int:
        """Write the trial as it stands to a folder; returns the bytes written."""
        assert self.log is not None
        return save(folder, self._state.update, self._state.content(self.log.offset))

    def newest(self) -> dict[str, Any] | None:
        """The content of the newest one that is sound."""
        return load_latest(self._folder, self._watch.warn)

    def resume(self) -> None:
        """Go on from the newest one that is sound. The main process looks first, and repairs; the others find what it
        left."""
        if self._ranks.main:
            self._open()
        self._ranks.wait()
        if not self._ranks.main:
            content = self.newest()
            assert content is not None
            self._load(content)

    def _open(self) -> None:
        content, state = self.newest(), self._state
        resumed = content is not None
        if self._begin and not resumed:
            self._begin()
            content = self.newest()
        if content is None:
            self.log = MetricsLog(self._metrics)
            self.save()
            return
        try:
            self.log = MetricsLog(self._metrics, content["offset"])
        except (ValueError, FileNotFoundError) as error:
            self._watch.warn(f"the metrics do not fit the checkpoint ({error}); starting over")
            shutil.rmtree(self._folder)
            self._open()
            return
        self._load(content)
        if resumed:
            self._watch.progress("train", state.planned, state.cfg.train.steps, RESUMED)

    def _load(self, content: Mapping[str, Any]) -> None:
        self._state.load(content)
        self.saved = self._state.progress
