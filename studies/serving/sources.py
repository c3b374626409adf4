"""Where the weights come from, and which are the newest: a trial, running or ended, or an exported folder.

A trial that trains leaves checkpoints in the store, renamed into place when they are whole; at its end it leaves
``policy/``. Both are only read here, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from pipeline.config.trial import TrialConfig
from pipeline.errors import Damaged, Fault, Gone, UserError
from pipeline.faults import in_words
from pipeline.models.adapters import choose_trained, merged
from pipeline.models.loading import CausalLM, freeze, load_snapshot
from pipeline.models.quantization import load_quantized
from pipeline.run.store import Artifact, Store, checked, read_manifest
from pipeline.stages.new_actor import POLICY_KEY, load_reference
from pipeline.stages.pausing import KEPT
from pipeline.training.checkpoint import DIGITS, checkpoints
from studies.serving.revision import Revision

TRAIN = "train"
"""How the names of stages begin that train; those of later rounds have a number."""


@dataclass(frozen=True)
class Found:
    """Weights that lie somewhere: a mark that changes with them, and how to load them."""

    mark: str
    load: Callable[[], tuple[Revision, CausalLM]]
    """Raises `Fault`, also `Gone` where newer ones have taken their place meanwhile."""


class Source(Protocol):
    """What is served."""

    @property
    def name(self) -> str:
        """How clients call the policy."""

    @property
    def tokenizer(self) -> Path:
        """The folder of its tokenizer."""

    def newest(self) -> Found | None:
        """The newest weights that are whole, None where there are none."""

    def trains(self) -> bool:
        """Whether a trial, this one or another one, trains in the same output root; of a folder that is not known."""


@dataclass
class FolderSource:
    """A model folder, as `ablate export` writes it; new weights there have to be renamed into place."""

    folder: Path
    device: torch.device

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def tokenizer(self) -> Path:
        return self.folder

    def newest(self) -> Found | None:
        states = []
        for path in sorted(self.folder.glob("*.safetensors")):
            state = path.stat()
            states.append(f"{path.name} {state.st_mtime_ns} {state.st_size} {state.st_ino}")
        return Found("; ".join(states), self._load) if states else None

    def trains(self) -> bool:
        return False

    def _load(self) -> tuple[Revision, CausalLM]:
        before = self._digest()
        try:
            lm = freeze(load_snapshot(self.folder, self.device))
        except UserError:
            raise
        except Exception as error:  # each library has its own for a file that is none of its kind
            raise Damaged(self.folder, f"no causal language model loads from it ({in_words(error)})") from None
        if self._digest() != before:
            raise Gone(self.folder, "its weights changed while they were read")
        return Revision(before, None, "exported"), lm

    def _digest(self) -> str:
        whole = hashlib.sha256()
        for path in sorted(self.folder.glob("*.safetensors")):
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        return whole.hexdigest()[:20]


@dataclass(frozen=True)
class Training:
    """One round of a trial's training in the store: under `key`, or being built there."""

    stage: str
    key: str


@dataclass
class TrialSource:
    """A trial of a study. `made` is what the stages before its training left; `trainings` its rounds so far, the last
    one last, looked up anew as long as there are more to come."""

    name: str
    config: TrialConfig
    store: Store
    made: Mapping[str, Artifact]
    rounds: int
    """Trainings that there will be."""
    trainings: Callable[[], Sequence[Training]]
    device: torch.device
    _known: Sequence[Training] = field(default=(), init=False)

    @property
    def tokenizer(self) -> Path:
        return self.made["prompts"].path / "tokenizer"

    def newest(self) -> Found | None:
        if len(self._known) < self.rounds:
            self._known = self.trainings()
        for training in reversed(self._known):
            if found := self._in(training):
                return found
        return None

    def trains(self) -> bool:
        begun = self.store.root.glob(f"{TRAIN}*/.partial/*")
        return any(self.store.is_building(path.parents[1].name, path.name) for path in begun)

    def _in(self, training: Training) -> Found | None:
        # A training that is taken up again has a finished artifact too, which is the older one.
        partial = self.store.partial(training.stage, training.key) / KEPT
        if kept := checkpoints(partial):
            path = kept[-1]
            return Found(f"{training.key} {path.name}", lambda: self._checkpoint(training, path))
        final = self.store.root / training.stage / training.key
        if not final.is_dir():
            return None
        try:
            digest = read_manifest(final).digest
        except Fault:  # it is being replaced, or damaged: what answers now goes on
            return None
        return Found(f"{training.key} {digest}", lambda: self._ended(training, final))

    def _checkpoint(self, training: Training, path: Path) -> tuple[Revision, CausalLM]:
        state = read_checkpoint(path)
        sft, how = self.made["sft"].path / "model", self.config.adapter.quantize
        lm = choose_trained(load_quantized(sft, how, self.device, POLICY_KEY), self.config)
        with torch.no_grad():
            for name, tensor in lm.named_parameters():
                if tensor.requires_grad:
                    tensor.copy_(state["actor"][f"lm.{name}"])
        if self.config.adapter.kind == "lora":
            lm = merged(lm, load_reference(self.made["sft"], how, self.device))
        return Revision(training.key, int(state["taken"]), "training"), freeze(lm)

    def _ended(self, training: Training, path: Path) -> tuple[Revision, CausalLM]:
        manifest = read_manifest(path)
        for name in manifest.files:
            if name.startswith("policy/"):
                checked(path, name, manifest)
        lm = freeze(load_snapshot(path / "policy", self.device))
        return Revision(training.key, int(manifest.meta["steps"]), str(manifest.meta["status"])), lm


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A trial's checkpoint as it was written: tensors and plain values alone. Raises `Damaged`, or `Gone` where the
    trial has deleted it since."""
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS] != path.name.split(".")[1]:
                raise Damaged(path, "its content has changed since it was written (checksum differs)")
            file.seek(0)
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            return state
    except FileNotFoundError:
        raise Gone(path, "no such file") from None
