"""What `ablate serve` was asked for: STUDY/ARM/SEED, running or ended, or the folder of a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from pipeline.config.names import nearest
from pipeline.config.trial import TrialConfig
from pipeline.errors import Fault, UserError
from pipeline.run import dag
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, safe
from pipeline.run.store import Artifact, Store
from pipeline.stages import STAGES
from studies.definition.design import Cell, cells
from studies.definition.schema import IMPORTED, Study
from studies.definition.search import confirmation
from studies.execution.recorded import artifact, study_folder
from studies.serving.sources import FolderSource, Source, Training, TrialSource

NEEDED = ("prompts", "judge", "sft", "reward")
"""Stages whose artifacts serving reads."""


def find_source(name: str, layout: Layout, device: torch.device, profile: str | None = None) -> Source:
    """What `name` names. Raises `UserError` with what there is instead."""
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return _folder(folder.absolute(), device, profile)
    parts = name.split("/")
    if len(parts) != 3 or not parts[2].isdecimal():
        raise UserError(
            f"'{name}' is neither a trial nor a folder: write STUDY/ARM/SEED, for example kl_ablation/beta_0.05/10, or"
            " the path of an exported folder"
        )
    return _trial(name, parts[0], safe(parts[1]), int(parts[2]), layout, device, profile)


def _folder(folder: Path, device: torch.device, profile: str | None) -> FolderSource:
    if profile is not None:
        raise UserError(f"--profile '{profile}': it chooses among the profiles of a study, and {folder} is a folder")
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder}: a served folder holds config.json, *.safetensors and a tokenizer, as ablate export writes it"
        )
    return FolderSource(folder, device)


def _trial(
    name: str, study: str, arm: str, seed: int, layout: Layout, device: torch.device, profile: str | None
) -> TrialSource:
    folder = study_folder(layout, study, profile, started=True)
    record, store = folder.record(arm, seed), Store(layout.store)
    if record is None or "train" not in record.stages:
        config = _cell(name, arm, seed, folder, record).config
        source = _unrecorded(name, config, store, device)
        if isinstance(source, TrialSource):
            return source
        raise UserError(f"trial '{name}' has not begun to train ({source}); start it with: ablate study {study}")
    # The study may have changed since, and train the trial anew; where that cannot be told, the record stands.
    with suppress(UserError, Fault, ValueError, LookupError):
        config = _cell(name, arm, seed, folder, record).config
        if config.digest() != record.config_digest:
            source = _unrecorded(name, config, store, device)
            if isinstance(source, TrialSource):
                return source
    ref, config = record.stages["train"], TrialConfig.model_validate(record.config)
    made = {stage: artifact(folder, record, stage) for stage in NEEDED if stage in record.stages}
    return TrialSource(name, config, store, made, 1, lambda: [Training("train", ref.key)], device)


def _unrecorded(name: str, config: TrialConfig, store: Store, device: torch.device) -> TrialSource | str:
    """A trial by what is in the store, or why there is nothing to serve of it."""
    plan = dag.plan(STAGES, config, store)
    made = _made(plan, store)
    if missing := [stage for stage in ("prompts", "sft", "reward") if stage not in made]:
        return f"{', '.join(missing)} {'has' if len(missing) == 1 else 'have'} still to run"
    source = TrialSource(
        name, config, store, made, config.rounds, lambda: _trainings(dag.plan(STAGES, config, store)), device
    )
    return "it has no checkpoint yet" if source.newest() is None else source


def _made(plan: Sequence[dag.StagePlan], store: Store) -> dict[str, Artifact]:
    """What serving reads of the stages that are done, by name without the round; of a repeated stage the newest."""
    made = {}
    for one in plan:
        stage = one.stage.partition("-")[0]
        if stage in NEEDED and one.cached and one.key and (found := store.find(one.stage, one.key)):
            made[stage] = found
    return made


def _trainings(plan: Sequence[dag.StagePlan]) -> list[Training]:
    return [Training(one.stage, one.key) for one in plan if one.stage.partition("-")[0] == "train" and one.key]


def _cell(name: str, arm: str, seed: int, folder: StudyFolder, record: TrialRecord | None) -> Cell:
    """The trial as its study was last started. Raises `UserError` for one that the study does not have."""
    started = folder.started()
    records = [f"{other.arm}/{other.seed}" for other in folder.records()]
    if not started:
        raise UserError(f"trial '{name}': not recorded{nearest(f'{arm}/{seed}', records)}; there are: {_list(records)}")
    study = confirmation(Study.model_validate({**started["study"], "source": started["source"]}), folder)
    if study.kind == IMPORTED:
        raise UserError(f"trial '{name}': its study was imported, so its weights are elsewhere; serve a folder of them")
    planned = cells(study, started["profile"], started["overrides"])
    found = {f"{cell.arm}/{cell.seed}": cell for cell in planned}
    if (mine := found.get(f"{arm}/{seed}")) is not None:
        return mine
    known = [*dict.fromkeys([*found, *records])]
    ended = f" (it ended as {record.status}: {record.reason})" if record else ""
    raise UserError(
        f"trial '{name}': the study has none{nearest(f'{arm}/{seed}', known)}{ended}; there are: {_list(known)}"
    )


def _list(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
