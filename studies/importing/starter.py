"""A mapping file to start from, written from the columns of the logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UserError
from pipeline.run.layout import write_atomic
from pipeline.run.metrics import METRICS
from studies.importing.files import find_files
from studies.importing.mapping import PROMPT_NAMES, MappingFile, Misfit
from studies.importing.naming import AXES, axis_of, reading, suggestions
from studies.importing.programs import PROGRAMS, bare, detected
from studies.importing.rows import read_log

_FILES_READ = 20
_HEAD = """\
# How ablate reads these logs. Edit it, then:
#   ablate import {folder} --name {name} --map {map} --replace

# program: {program}
{axis}
# steps_per_update: 16    # gradient steps of one update, where the x-axis counts updates (epochs x mini-batches)
# length: 53              # tokens of a response, or the column that logs their mean: gives KL per token
# columns: {{arm: arm, seed: seed}}     # the columns of a table of many trials that tell them apart
# files: "{{arm}}/run{{seed}}"            # or: where arm and seed stand in a path without its suffix
# include: ["*.csv"]
# exclude: ["old/*"]
# arms:                                 # what is different for some arms
#   grpo*: {{program: trl-grpo}}

metrics:    # ours: theirs
"""


def write_starter(path: Path, folder: Path, name: str, mapping: MappingFile) -> bool:
    """Write a mapping for the logs below `folder`; False where the file is there, which is kept."""
    if path.exists():
        return False
    write_atomic(path, starter(headers(folder, mapping), folder, name, path, mapping))
    return True


def headers(folder: Path, mapping: MappingFile) -> list[str]:
    """The columns of the first files below `folder` that can be read."""
    try:
        files, _ = find_files(folder, mapping.files, mapping.include, mapping.exclude)
    except UserError:
        return []
    keys: dict[str, None] = {}
    for file in files[:_FILES_READ]:
        try:
            keys |= dict.fromkeys(key for row in read_log(file.path)[0] for key in row.values)
        except UserError:
            continue
    return list(keys)


def starter(keys: Sequence[str], folder: Path, name: str, path: Path, mapping: MappingFile) -> str:
    """The text of a mapping that is valid as it is, takes what is certain, and proposes the rest in comments."""
    try:
        axis, counts = axis_of(MappingFile(steps_per_update=mapping.steps_per_update), detected(keys), keys, "")
        place = f"step: {{key: {json.dumps(axis)}, counts: {counts or 'gradient_steps'}}}"
    except Misfit:
        axis, place = None, "# step: {key: COLUMN, counts: gradient_steps}"
    head = _HEAD.format(
        folder=_shell(folder),
        name=_shell(name),
        map=_shell(path.name),
        program=f"{' or '.join(PROGRAMS)}     # whose names the logs use",
        axis=f"{place}    # or: updates, episodes",
    )
    lines = [*_certain(keys, axis), *(line for key in keys if bare(key) not in AXES for line in _proposed(key))]
    listed = [f"#   {key}  [{metric.unit}]  {metric.formula}" for key, metric in METRICS.items()]
    prompts = f"# prompts: {{policy_gold: COLUMN}}    # of a table of outcomes by prompt: {', '.join(PROMPT_NAMES)}"
    return head + "\n".join([*lines, "", prompts, "", "# The metrics that there are:", *listed, ""])


def _certain(keys: Sequence[str], axis: str | None) -> list[str]:
    """Lines of what an import takes without a mapping."""
    try:
        named = reading(MappingFile(), keys, "").named if axis else {}
    except Misfit:
        return []
    plain = {ours: one.key for ours, one in named.items() if one.factor == 1.0 and one.subtract == 0.0}
    return [f"  {ours}: {json.dumps(key)}" for ours, key in plain.items()]


def _proposed(key: str) -> list[str]:
    """Comments on a column whose meaning is not certain."""
    try:
        if reading(MappingFile(), ["step", key], "").named:
            return []
    except Misfit:
        pass
    quoted = json.dumps(key)
    choices = suggestions(key)
    if not choices:
        return [f"  # {quoted}: no metric is known by this name; to take it: METRIC: {quoted}"]
    return [f"  # {ours}: {quoted}    # if it is in {METRICS[ours].unit}" for ours in choices]


def _shell(value: Path | str) -> str:
    text = str(value)
    return json.dumps(text) if " " in text else text
