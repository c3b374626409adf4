"""The weights that answer: the newest of a trial or of an exported folder, which are only read, and never unpickled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from pipeline.config.names import nearest
from pipeline.config.trial import TrialConfig
from pipeline.errors import Damaged, UserError
from pipeline.models.adapters import choose_trained, load_quantized, merged
from pipeline.models.loading import CausalLM, device_of, freeze, load_snapshot
from pipeline.resources.ledger import KEPT
from pipeline.run import dag
from pipeline.run.layout import Layout, safe
from pipeline.run.store import Store, checked, file_digest, read_manifest
from pipeline.stages.graph import STAGES
from pipeline.training.checkpoint import checkpoints
from pipeline.training.new_actor import POLICY_KEY, load_reference
from studies.definition.design import cells
from studies.definition.schema import Study
from studies.definition.search import confirmation
from studies.execution.recorded import study_folder


class Revision(NamedTuple):
    """The weights behind an answer: key of the training in the store and gradient steps, or the digest of a folder."""

    trial: str
    step: int | None
    state: str

    def __str__(self) -> str:
        return self.trial if self.step is None else f"{self.trial}@{self.step}"


Keys = Sequence[tuple[str, str]]
"""Stages in their order, and their keys in the store, empty where they are not known yet."""
Newest = tuple[str, Callable[[], tuple[Revision, CausalLM]]]
"""A mark that changes with the newest weights, and how to load them."""


class Folder:
    """A model folder, as `ablate export` writes it; new weights have to be renamed into it."""

    def __init__(self, path: Path) -> None:
        self.name, self.tokenizer, self.device = path.name, path, device_of("auto")

    def trains(self) -> bool:
        return False

    def newest(self) -> Newest:
        files = [(path, path.stat()) for path in sorted(self.tokenizer.glob("*.safetensors"))]
        return str([(path.name, state.st_mtime_ns, state.st_ino) for path, state in files]), self._load

    def _load(self) -> tuple[Revision, CausalLM]:
        digests = "".join(file_digest(path) for path in sorted(self.tokenizer.glob("*.safetensors")))
        key = hashlib.sha256(bytes.fromhex(digests)).hexdigest()[:20]
        return Revision(key, None, "exported"), load_snapshot(self.tokenizer, self.device)


class ServedTrial:
    """A trial of a study, from its stages' artifacts in the store."""

    def __init__(self, name: str, config: TrialConfig, store: Store, keys: Callable[[], Keys]) -> None:
        self.name, self.config, self.device, self._store, self._keys = name, config, device_of("auto"), store, keys
        known = {stage: key for stage, key in keys() if key}
        needed = [item for item in known.items() if item[0].startswith(("prompts", "judge", "sft", "reward"))]
        # Of a stage that is repeated in rounds the last one that has ended.
        self.made = {stage.partition("-")[0]: made for stage, key in needed if (made := store.find(stage, key))}
        self.tokenizer = store.root / "prompts" / known.get("prompts", "") / "tokenizer"
        self._trainings: Keys = []

    def newest(self) -> Newest | None:
        """The last checkpoint or the finished policy, None before the first checkpoint."""
        if len(self._trainings) < self.config.rounds:
            self._trainings = [(stage, key) for stage, key in self._keys() if stage.startswith("train") and key]
        for stage, key in reversed(self._trainings if {"prompts", "sft", "reward"} <= self.made.keys() else ()):
            # A training that is taken up again has a finished artifact too, an older one.
            if kept := checkpoints(self._store.partial(stage, key) / KEPT):
                return f"{key} {kept[-1].name}", partial(self._checkpoint, key, kept[-1])
            if (path := self._store.root / stage / key).is_dir():
                return f"{key} {read_manifest(path).digest}", partial(self._ended, key, path)
        return None

    def trains(self) -> bool:
        """Return whether a trial, this one or another, trains in the same output root."""
        begun = self._store.root.glob("train*/.partial/*")
        return any(self._store.is_building(path.parents[1].name, path.name) for path in begun)

    def reference(self) -> CausalLM:
        return freeze(load_reference(self.made["sft"], self.config.adapter.quantize, self.device))

    def _checkpoint(self, key: str, path: Path) -> tuple[Revision, CausalLM]:
        if not file_digest(path).startswith(path.name.split(".")[1]):
            raise Damaged(path, "its content has changed since it was written (checksum differs)")
        state, sft = torch.load(path, map_location="cpu", weights_only=True), self.made["sft"].path / "model"
        lm = choose_trained(load_quantized(sft, self.config.adapter.quantize, self.device, POLICY_KEY), self.config)
        # What is not trained, and the critic, are in one of the two alone.
        lm.load_state_dict({name.removeprefix("lm."): tensor for name, tensor in state["actor"].items()}, strict=False)
        lm = merged(lm, self.reference()) if self.config.adapter.kind == "lora" else lm
        return Revision(key, int(state["taken"]), "training"), lm

    def _ended(self, key: str, path: Path) -> tuple[Revision, CausalLM]:
        manifest = read_manifest(path)
        for name in manifest.files:
            checked(path, name, manifest)
        meta, lm = manifest.meta, load_snapshot(path / "policy", self.device)
        return Revision(key, meta["steps"], meta["status"]), lm


def find(name: str, layout: Layout, profile: str | None = None) -> Folder | ServedTrial:
    """STUDY/ARM/SEED, or the path of a folder. Raises `UserError` with the names that exist."""
    folder, parts = Path(name).expanduser().absolute(), name.split("/")
    if name and folder.is_dir():
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise UserError(f"{folder}: needs config.json, *.safetensors and a tokenizer, as ablate export writes them")
        return Folder(folder)
    if len(parts) != 3 or not parts[2].isdecimal():
        raise UserError(f"'{name}' is neither a folder nor a trial, STUDY/ARM/SEED, such as kl_ablation/beta_0.05/10")
    study, store = study_folder(layout, parts[0], profile, started=True), Store(layout.store)
    record, started, trials = study.record(safe(parts[1]), int(parts[2])), study.started(), list[ServedTrial]()
    content = Study.model_validate({**started["study"], "source": started["source"]})
    plan = cells(confirmation(content, study), started["profile"], started["overrides"])
    configs, cell = {f"{one.arm}/{one.seed}": one.config for one in plan}, f"{parts[1]}/{int(parts[2])}"
    if config := configs.get(cell):  # first: it may be training anew, with other settings than those of the record
        trials += [
            ServedTrial(name, config, store, lambda: [(p.stage, p.key or "") for p in dag.plan(STAGES, config, store)])
        ]
    if record:
        keys = [(stage, ref.key) for stage, ref in record.stages.items()]
        trials += [ServedTrial(name, TrialConfig.model_validate(record.config), store, lambda: keys)]
    if not trials:
        raise UserError(f"trial '{name}': the study has none{nearest(cell, configs)}; there are: {', '.join(configs)}")
    if not (found := [trial for trial in trials if trial.newest()]):
        raise UserError(f"trial '{name}' has no weights yet; start or continue it with: ablate study {parts[0]}")
    return found[0]
