"""Carry out `ablate import`: read and check everything, then write the records and the study's file; or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from pipeline.config.trial import canonical_json
from pipeline.config.yaml_files import PlainDumper
from pipeline.errors import UserError
from pipeline.named_files import place
from pipeline.run.layout import Layout, StageRef, TrialRecord, safe, sealed, writable, write_atomic
from pipeline.run.metrics import METRICS, MetricsLog, to_parquet
from pipeline.run.store import Store
from pipeline.wording import cut
from studies.definition.design import Foreign
from studies.definition.schema import IMPORTED, Study, load_study, study_names
from studies.execution.started import alone
from studies.importing.logs import Cell, find_logs
from studies.importing.maps import check_columns, load_map
from studies.importing.trials import ImportedTrial, Problem, doubts, read_trial

STAGE, FORMAT = "imported", "studies.importing/3"
"""Parts of every key: `FORMAT` is to be raised when the same log would give other series."""
PREFERRED = ("eval/win_rate", "eval/gold", "objective/gold", "eval/proxy", "objective/scores")
"""Metrics to compare arms on, in a study that is written here: the first that every trial has."""


def import_folder(
    folder: Path, name: str, layout: Layout, map_: str, steps_per_update: int | None = None, *, replace: bool = False
) -> tuple[Study, list[str]]:
    """Bring the logs below `folder` into the store as trials of the study `name`. Also returns what was done, in lines.

    A study that holds other trials, rows or another map is refused, unless `replace`: then it holds this import alone.
    Raises `UserError`, and changes nothing, where a log cannot be understood.
    """
    own, stated = load_map(map_, steps_per_update)
    logs, unread = find_logs(folder, own)
    check_columns(own, stated, sorted({str(column) for rows in logs.values() for column in rows}))
    trials = {cell: read_trial(cell, rows, own) for cell, rows in logs.items()}
    file = place(name) if name.endswith((".yaml", ".yml")) else Path(f"{safe(name)}.yaml").absolute()
    if safe(file.stem) in study_names():
        raise UserError(f"--name: '{file.stem}' is a study that comes with the project; choose another name")
    writable(layout.root)
    target = layout.study(file.stem, IMPORTED)
    with alone(target, file.stem):
        held = () if replace else target.records()
        known = {(one.arm, one.seed): (one.config["imported"], one.config["mapping"]) for one in held}
        brought = {cell: (trial.origin, stated) for cell, trial in trials.items()}
        if known and (changed := [cell for cell in known | brought if known.get(cell) != brought.get(cell)]):
            raise UserError(
                f"--name {name}: {_labels(changed)}: recorded from other logs or by another map; nothing was changed."
                f" Give --replace to put this import in the place of all of '{name}', or choose another name"
            )
        study, problems, records, store = _study(file, trials, folder), list[Problem](), [], Store(layout.store)
        for trial in trials.values():
            problems += [*trial.problems, *doubts(trial, study.arm_overrides()[trial.arm])]
            records.append(_record(study, trial, stated, store))
        for path in target.trial_files():
            path.unlink()
        for record in records:
            target.write(record)
        notes = [f"The import found: {line}." for line in lines(problems)]
        content = {"study": study.model_dump(mode="json"), "source": study.source, "profile": IMPORTED, "overrides": {}}
        write_atomic(target.study_file, sealed({**content, "environment": {}, "notes": notes}))
    return study, [
        *lines(problems),
        f"Taken: {', '.join(dict.fromkeys(one for trial in trials.values() for one in trial.taken))}",
        f"Not taken: {', '.join(dict.fromkeys(one for trial in trials.values() for one in trial.left)) or 'nothing'}",
        *(f"Not read: {name}: {why}" for name, why in unread.items()),
        f"{study.name}: {len(records)} trials of {len(study.arm_overrides())} arms, up to"
        f" {max(record.steps for record in records):,} gradient steps",
        f"Study: {study.source}; it compares with {study.baseline} on {study.objective.metric}",
        f"Next:  ablate report {study.argument}   or   ablate falsify {study.argument}   or, for MLflow, ablate sync",
    ]


def lines(problems: Iterable[Problem]) -> list[str]:
    """One line per kind and column: the first problem, and how many other logs have the same."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.kind, problem.column), []).append(problem)
    found = []
    for one, *others in groups.values():
        more = len({other.file for other in others} - {one.file})
        found.append(one.words + (f" (and the same in {more:,} other log{'s' * (more > 1)})" if more else ""))
    return found


def _labels(cells: Iterable[Cell]) -> str:
    return cut(", ".join(f"{arm} seed {seed}" for arm, seed in cells), 200)


def _study(file: Path, trials: Mapping[Cell, ImportedTrial], folder: Path) -> Study:
    """The study of these trials; its file is written where there is none. Raises `UserError` for a file that does not
    list them."""
    if file.exists():
        study = load_study(file)
        lost = [(arm, seed) for arm, seed in trials if arm not in study.arm_overrides() or seed not in study.seeds]
        if study.kind != IMPORTED or lost:
            raise UserError(
                f"{file}: {_labels(lost or trials)}: not listed; add the arm under `imported` and the seed under"
                " `seeds`, or delete the file, and it is written anew"
            )
        return study
    metrics = set.intersection(*({*trial.series, *trial.summary} for trial in trials.values()))
    directed = sorted(key for key in metrics if METRICS[key].direction)
    metric = next((key for key in (*PREFERRED, *directed) if key in metrics), PREFERRED[0])
    arms = list(dict.fromkeys(arm for arm, _ in trials))
    content = {
        "question": f"What do the trials imported from {folder.resolve().name} show?",
        "baseline": arms[0],
        "seeds": sorted({seed for _, seed in trials}),
        "objective": {"metric": metric, "direction": METRICS[metric].direction},
        "imported": {arm: {} for arm in arms},
    }
    body = yaml.dump(content, Dumper=PlainDumper, sort_keys=False, width=140, allow_unicode=True)
    body += "# Say what each arm was, such as {kl.beta: 0.05}: a known kl.beta checks the unit of KL.\n"
    write_atomic(file, f"# Written by ablate import\n{body}")
    return load_study(file)


def _record(study: Study, trial: ImportedTrial, stated: Mapping[str, Any], store: Store) -> TrialRecord:
    """The record of a trial, whose series and outcomes are put into the store."""
    identity = {"format": FORMAT, **trial.origin, "mapping": stated}
    key = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]
    artifact = store.build(STAGE, key, identity, partial(write, trial), resumable=False)
    made = ["train"] * (trial.prompts is None or bool(trial.series)) + ["evaluate"] * (trial.prompts is not None)
    where = StageRef(key=key, path=artifact.path.relative_to(store.root.parent).as_posix(), digest=artifact.digest)
    return TrialRecord(
        study=study.name,
        profile=IMPORTED,
        arm=trial.arm,
        seed=trial.seed,
        config={"settings": study.arm_overrides()[trial.arm], "imported": trial.origin, "mapping": stated},
        config_digest=Foreign(trial.arm, trial.seed).digest,
        status="diverged" if trial.diverged else "complete",
        reason=trial.diverged,
        steps=trial.steps,
        stages=dict.fromkeys(made, where),
        summary=trial.summary,
        ends=trial.ends(study.objective.window),
        cost={},
        environment={"environment": "not stated by the imported records"},
        finished=artifact.finished or "",
    )


def write(trial: ImportedTrial, out: Path) -> dict[str, Any]:
    """Write the artifact of a trial."""
    if trial.series or trial.prompts is None:
        with MetricsLog(out / "metrics.jsonl") as log:
            table = pd.DataFrame(trial.series).sort_index()
            for step, row in zip(table.index, table.to_dict("records"), strict=True):
                log.append(int(step), {str(ours): value for ours, value in row.items() if not np.isnan(value)})
        to_parquet(out / "metrics.jsonl", out / "metrics.parquet")
    if trial.prompts is not None:
        trial.prompts.to_parquet(out / "prompts.parquet", index=False)
    return {"steps": trial.steps}
