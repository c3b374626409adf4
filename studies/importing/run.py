"""What `ablate import` does: read and check everything, then publish, then put the records in place. Or nothing at
all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.yaml_limits import PlainLoader
from pipeline.errors import UserError
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, writable, write_atomic
from pipeline.run.store import Store
from studies.definition.schema import IMPORTED, Study, load_study
from studies.execution.damage import set_damaged_aside as repair
from studies.execution.started import alone as only_driver
from studies.importing.account import Share, account
from studies.importing.doubts import doubts
from studies.importing.logs import Found, Log, Trial, find_logs
from studies.importing.mapping import MappingFile, Misfit, check_arms, check_keys_exist, load_mapping
from studies.importing.notes import caveats
from studies.importing.problems import Problem
from studies.importing.prompts import outcomes
from studies.importing.records import (
    ImportedTrial,
    ImportSummary,
    commit,
    publish,
    record_of,
    recorded_problems,
    recovered,
    refuse_changes,
    shortened,
)
from studies.importing.starter import write_starter
from studies.importing.trajectory import trajectory
from studies.importing.written import check_covers, study_file, study_text, text_digest

WRITTEN = "written"
"""Key of study.json: the digest of the study file as an import wrote it."""


@dataclass(frozen=True)
class Imported:
    """What came of an import."""

    study: Study
    written: bool
    """Whether the study's file was written."""
    folder: StudyFolder
    records: list[TrialRecord]
    """All that the study holds now."""
    change: ImportSummary
    problems: tuple[Problem, ...]
    account: tuple[str, ...]
    """What was taken, and what was left."""
    starter: Path | None
    """A mapping to start from, where some column could be read otherwise."""

    @property
    def lines(self) -> list[str]:
        """What was done, for people."""
        change, arms = self.change, len({record.arm for record in self.records})
        told = [
            f"{what}: {shortened(which)}"
            for what in ("added", "changed", "removed")
            if (which := getattr(change, what))
        ]
        told += [f"unchanged: {change.unchanged} trials"] if change.unchanged else []
        steps = sorted(record.steps for record in self.records)
        reach = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
        trained = f", {reach} gradient steps" if steps[-1] else ""
        size = f"{len(self.records)} trial{'s' * (len(self.records) > 1)} of {arms} arm{'s' * (arms > 1)}"
        compares = f"compares with {self.study.baseline} on {self.study.objective.metric}"
        return [
            f"{self.study.name}: {size}{trained}",
            *told,
            *(
                [f"Mapping: {self.starter} (to read a column otherwise, edit it and import again)"]
                if self.starter
                else []
            ),
            f"Study:   {self.study.source}"
            + (f" (written; it {compares}; say there what was asked, and add falsifiers)" if self.written else ""),
            f"Next:    ablate report {self.study.argument}   or   ablate falsify {self.study.argument}",
        ]


def import_folder(
    folder: Path,
    name: str,
    layout: Layout,
    map_file: Path | None = None,
    tell: Callable[[str], None] = lambda message: None,
    *,
    over: bool = False,
    **stated: Any,
) -> Imported:
    """Bring the logs below `folder` into the store as the study `name`, a YAML file here or at that path.

    Trials that the study does not hold are added; one that it holds from other files or with another mapping is an
    error, unless `over`: then the study holds this import's trials alone. Where there is no study file, one is
    written that lists the arms and seeds; as long as nobody edits it, it grows with them. `stated` is what the command
    line says in place of the mapping. Raises `UserError` and changes nothing of the study when a file cannot be
    understood; a mapping to start from is then written beside it. `tell` hears of damaged files that are set aside.
    """
    mapping = load_mapping(map_file, **stated)
    file = study_file(name)
    starter = file.with_name(f"{file.stem}.map.yaml")
    try:
        found = find_logs(folder, mapping)
        check_arms(mapping, (arm for arm, _ in found.trials))
        trials = [_read(found, trial, mapping) for trial in found.trials]
        _check_keys(found, mapping)
    except Misfit as error:
        new = write_starter(starter, folder, name, mapping)
        what = "Edit the mapping that was written to" if new else "Edit the mapping in"
        raise UserError(f"{error}. {what} {starter}, then import again with --map {starter.name}") from None
    guessed = map_file is None and any(_unsure(trial) for trial in trials)
    writable(layout.root)
    target = layout.study(file.stem, IMPORTED)
    with only_driver(target, file.stem):
        repair(target, tell)
        before = recovered(target)
        started = target.started()
        if not over:
            _refuse_namesake(started, file)
            refuse_changes(before, trials, name)
        kept = {} if over else {cell: record for cell, record in before.items() if cell not in found.trials}
        study, text = _study(file, trials, kept, started, folder)
        trials = [_doubted(trial, study) for trial in trials]
        store = Store(layout.store, tell)
        records = [*kept.values(), *(_record(study, trial, layout, store) for trial in trials)]
        problems = tuple(problem for trial in trials for problem in trial.problems)
        earlier = [problem for record in kept.values() for problem in recorded_problems(layout.root, record)]
        notes = caveats(records, (*earlier, *problems))
        content = _started(study, notes, text_digest(text) if text else started.get(WRITTEN))
        change = commit(target, before, records, content, (*earlier, *problems))
        if text:
            write_atomic(file, text)
        if guessed:
            write_starter(starter, folder, name, mapping)
    shown = account([share for trial in trials for share in _shares(trial)], found.ignored)
    return Imported(
        study, text is not None, target, records, change, problems, tuple(shown), starter if guessed else None
    )


def _read(found: Found, cell: Trial, mapping: MappingFile) -> ImportedTrial:
    arm, seed = cell
    own = mapping.of_arm(arm)
    log, prompts = found.series.get(cell), found.prompts.get(cell)
    series = trajectory(log.rows, own, log.name) if log else None
    outcome = outcomes(prompts.rows, own, prompts.name) if prompts else None
    problems = [*(series.problems if series else ()), *(outcome.problems if outcome else ())]
    problems += [_cut(one) for one in (log, prompts) if one is not None and one.cut is not None]
    return ImportedTrial(arm, seed, own, log, series, prompts, outcome, tuple(problems))


def _cut(log: Log) -> Problem:
    return Problem("cut", log.name, log.cut or 0, "(line)", "", "", "it ends before its line feed", 1, 0, "left out")


def _check_keys(found: Found, mapping: MappingFile) -> None:
    """Whether some log has the keys that the mapping speaks of; of arms with a mapping of their own, one of theirs."""
    if found.series:
        check_keys_exist(mapping, found.keys)
    for pattern in mapping.arms:
        logs = [log for log in found.series.values() if fnmatchcase(log.arm, pattern)]
        keys = [key for log in logs for key in log.keys]
        for arm in {log.arm: None for log in logs}:
            check_keys_exist(mapping.of_arm(arm), keys, mapping.arms[pattern], f"arms.{pattern}.")


def _unsure(trial: ImportedTrial) -> bool:
    """Whether another reading of a trial's columns is possible."""
    return (
        trial.found is not None
        and trial.found.read.program is None
        and bool(trial.found.read.ignored or trial.found.read.assumed)
    )


def _doubted(trial: ImportedTrial, study: Study) -> ImportedTrial:
    """With what its series say against each other, given what the study says of its arm."""
    if trial.found is None or trial.log is None:
        return trial
    found = doubts(trial.found, trial.log.name, study.arm_overrides()[trial.arm])
    return replace(trial, problems=(*trial.problems, *found))


def _record(study: Study, trial: ImportedTrial, layout: Layout, store: Store) -> TrialRecord:
    settings = study.arm_overrides()[trial.arm]
    return record_of(study.name, trial, publish(store, trial), settings, layout.root)


def _study(
    file: Path,
    trials: Sequence[ImportedTrial],
    kept: Mapping[Trial, TrialRecord],
    started: Mapping[str, Any],
    folder: Path,
) -> tuple[Study, str | None]:
    """The study of these trials, and the text of its file where that is to be written."""
    cells = {(trial.arm, trial.seed): str(trial.origin.get("file") or trial.origin["prompts"]) for trial in trials}
    study = load_study(file) if file.exists() else None
    if study is not None and text_digest(file.read_text("utf-8")) != started.get(WRITTEN):
        check_covers(study, cells, folder)
        return study, None
    metrics = [trial.metrics for trial in trials] + [{*record.ends, *record.summary} for record in kept.values()]
    text = study_text(file.stem, [*kept, *cells], metrics, folder.resolve().name, study)
    if study is not None and text == file.read_text("utf-8"):
        return study, None
    return Study.model_validate({"name": file.stem, "source": str(file), **yaml.load(text, Loader=PlainLoader)}), text


def _refuse_namesake(started: Mapping[str, Any], file: Path) -> None:
    """Refuse the name of another study file, whose results would be mixed with these. Raises `UserError`."""
    source = started.get("source")
    if isinstance(source, str) and Path(source) != file and Path(source).exists():
        raise UserError(
            f"--name: the results of '{file.stem}' are those of {source}; choose another name, or give --replace to"
            " let this import take their place"
        )


def _shares(trial: ImportedTrial) -> Iterable[Share]:
    if trial.found is not None:
        read, dropped = trial.found.read, trial.found.dropped
        lost = {read.named[ours].key: f"as {ours}: {why}" for ours, why in dropped.items() if ours in read.named}
        taken = {ours: named for ours, named in read.named.items() if ours not in dropped}
        yield Share(trial.arm, trial.seed, taken, {**read.ignored, **lost}, read)
    if trial.outcomes is not None:
        yield Share(trial.arm, trial.seed, trial.outcomes.named, trial.outcomes.ignored, None)


def _started(study: Study, notes: list[str], written: str | None) -> dict[str, Any]:
    content = {"study": study.model_dump(mode="json"), "source": study.source, "profile": IMPORTED, "overrides": {}}
    told = {WRITTEN: written} if written else {}
    return {**content, "environment": {}, "upstream": {}, "notes": notes, **told}
