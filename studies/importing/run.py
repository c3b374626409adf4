"""What `ablate import` does: read and check everything, then publish, then put the records in place. Or nothing at
all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, safe, writable, write_atomic
from pipeline.run.store import Store
from studies.definition.schema import IMPORTED, Study, load_study, study_names
from studies.execution.driver import only_driver
from studies.importing.doubts import doubts
from studies.importing.files import Source, find_sources
from studies.importing.mapping import Mapping, check_keys_exist, load_mapping, unused
from studies.importing.problems import Problem
from studies.importing.records import ImportedTrial, ImportSummary, commit, publish, record_of
from studies.importing.rows import read_log
from studies.importing.trajectory import trajectory
from studies.tracking.repair import repair

OBJECTIVES = (
    ("eval/win_rate", "maximize"), ("objective/rlhf_reward", "maximize"), ("objective/scores", "maximize"),
    ("objective/kl_per_token", "minimize"), ("objective/kl", "minimize"),
)  # fmt: skip
"""What a study that is written here compares arms on: the first that every trial has."""


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    study: Study
    written: bool
    """Whether the study's file was written, there being none."""
    folder: StudyFolder
    records: list[TrialRecord]
    change: ImportSummary
    problems: tuple[Problem, ...]
    unused: list[str]

    @property
    def lines(self) -> list[str]:
        """What was done, for people."""
        change, arms = self.change, len({record.arm for record in self.records})
        told = [
            f"{what}: {_short(which)}" for what in ("added", "changed", "removed") if (which := getattr(change, what))
        ]
        told += [f"unchanged: {change.unchanged} trials"] if change.unchanged else []
        steps = sorted(record.steps for record in self.records)
        reach = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
        return [
            f"{self.study.name}: {len(self.records)} trials of {arms} arms, {reach} gradient steps",
            *told,
            f"Study:   {self.study.source}"
            + (" (written; say there what was asked, and add falsifiers)" if self.written else ""),
            f"Next:    ablate report {self.study.source}   or   ablate falsify {self.study.source}",
        ]


def import_folder(
    folder: Path,
    name: str,
    layout: Layout,
    map_file: Path | None = None,
    steps_per_update: int | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Imported:
    """Bring the logs below `folder` into the store as the study `name`, a YAML file here or at that path.

    Where there is no such file, one is written that lists the arms and seeds that were found. Raises
    `UserError` and changes nothing when a file cannot be understood; `tell` hears of damaged files that are set aside.
    """
    mapping = load_mapping(map_file, steps_per_update)
    file = _study_file(name)
    sources = find_sources(folder, mapping.files)
    study = load_study(file) if file.exists() else None
    if study is not None:
        _check_covers(study, sources, folder)
    trials = [_read(source, mapping, study) for source in sources]
    keys = {key for trial in trials for key in trial.found.keys}
    check_keys_exist(mapping, keys)
    text = None if study else _study_text(file.stem, trials, folder)
    study = study or Study.model_validate({"name": file.stem, "source": str(file), **yaml.safe_load(str(text))})
    writable(layout.root)
    target = layout.study(study.name, IMPORTED)
    store = Store(layout.store, tell)
    with only_driver(target, study.name):
        repair(target, tell)
        records = [_record(study, trial, mapping, layout, store) for trial in trials]
        problems = tuple(problem for trial in trials for problem in trial.problems)
        change = commit(target, records, _started(study), problems)
        if text:
            write_atomic(file, text)
    return Imported(study, text is not None, target, records, change, problems, sorted(unused(mapping, keys)))


def _short(labels: Sequence[str], most: int = 6) -> str:
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "")


def _study_file(name: str) -> Path:
    path = (
        Path(name).expanduser().absolute()
        if name.endswith((".yaml", ".yml"))
        else Path(f"{safe(name)}.yaml").absolute()
    )
    safe(path.stem)
    if path.stem in study_names():
        raise UserError(f"--name: '{path.stem}' is a study that comes with the project; choose another name")
    return path


def _read(source: Source, mapping: Mapping, study: Study | None) -> ImportedTrial:
    rows, cut = read_log(source.path)
    found = trajectory(rows, mapping, source.name)
    settings = study.arm_overrides()[source.arm] if study else {}
    problems = [*found.problems, *doubts(found, source.name, settings)]
    if cut is not None:
        problems.append(
            Problem("cut", source.name, cut, "(line)", "", "", "it ends before its line feed", 1, 0, "left out")
        )
    return ImportedTrial(source, replace(found, problems=()), tuple(problems))


def _record(study: Study, trial: ImportedTrial, mapping: Mapping, layout: Layout, store: Store) -> TrialRecord:
    artifact = publish(store, trial, mapping)
    settings = study.arm_overrides()[trial.source.arm]
    return record_of(study.name, trial, artifact, settings, mapping, layout.root)


def _check_covers(study: Study, sources: Sequence[Source], folder: Path) -> None:
    if study.kind != IMPORTED:
        raise UserError(
            f"{study.source}: runs its own trials ({study.kind}); a study of imported ones lists its arms under"
            " `imported`"
        )
    arms = list(study.arm_overrides())
    for source in sources:
        if source.arm not in arms:
            hint = nearest(source.arm, arms)
            raise UserError(
                f"{folder}: '{source.name}' is arm '{source.arm}', which {study.source} does not list under"
                f" `imported`{hint}"
            )
        if source.seed not in study.seeds:
            listed = ", ".join(map(str, study.seeds))
            raise UserError(
                f"{folder}: '{source.name}' is seed {source.seed}; the seeds of {study.source} are {listed}"
            )


def _study_text(name: str, trials: Sequence[ImportedTrial], folder: Path) -> str:
    """A study file for what was found, to be edited: its sentences say that they were written by nobody."""
    arms = list(dict.fromkeys(trial.source.arm for trial in trials))
    seeds = sorted({trial.source.seed for trial in trials})
    metric, direction = _objective(trials)
    said = "say what this arm was, for example {kl_coef: 0.05}; a known kl_coef also checks the unit of KL"
    content = {
        "question": f"What do the trials imported from {folder.resolve().name} show?",
        "hypothesis": "None was written down.",
        "refuted_if": "It cannot be, without a hypothesis.",
        "baseline": arms[0],
        "seeds": seeds,
        "objective": {"metric": metric, "direction": direction},
        "imported": {arm: {} for arm in arms},
    }
    text = yaml.safe_dump(content, sort_keys=False, width=140, allow_unicode=True)
    text = text.replace("imported:\n", f"imported:  # {said}\n")
    return f"# Study of imported trials; edit it, then: ablate report {name}\n{text}{_EXAMPLE}"


_EXAMPLE = """\
# falsifiers:
#   - name: drift
#     claim: the policy stays within 12 nats per sequence of the reference for its first 2,000 gradient steps
#     metric: objective/kl
#     op: ">"
#     threshold: 12
#     before_step: 2000
"""


def _objective(trials: Iterable[ImportedTrial]) -> tuple[str, str]:
    everywhere = set.intersection(*({*trial.found.series, *trial.found.summary} for trial in trials))
    listed = [*OBJECTIVES, *((key, "minimize") for key in sorted(everywhere))]
    return next((pair for pair in listed if pair[0] in everywhere), OBJECTIVES[0])


def _started(study: Study) -> dict[str, Any]:
    content = {"study": study.model_dump(mode="json"), "source": study.source, "profile": IMPORTED, "overrides": {}}
    return {**content, "environment": {}, "upstream": {}}
