"""A training program of the user's own: its command, logs and limits, and the trials that a study makes of it.

Only ``{name}`` is replaced in the words of the command, by a parameter of the arm, ``{seed}``, ``{out}``, the folder of
the trial, or ``{python}``, the interpreter that runs this program; ``{{`` and ``}}`` stand for braces. No shell reads
them.
"""

from __future__ import annotations

import glob
import hashlib
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from pipeline.config.base import Positive, Section, StrictlyPositive
from pipeline.config.names import nearest
from pipeline.config.train import StopRule
from pipeline.config.trial import CapsConfig, RuntimeConfig, canonical_json
from pipeline.errors import UserError
from pipeline.run.store import file_digest

if TYPE_CHECKING:
    from studies.definition.schema import Study

TRAINER = "trainer"
"""Stand-in for the profile of such a study."""
SEED, OUT, PYTHON = "seed", "out", "python"
"""Names that are no parameters."""
_PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}")
Value = bool | int | float | str
Window = Literal["last_tenth", "last"]


class Logs(Section):
    """The files that hold a run's series, below ``{out}``."""

    names: str = Field("plain", description="map of their columns: one of studies/importing/programs, or a .yaml file")
    files: tuple[str, ...] = Field(
        ("metrics.jsonl", "metrics.csv", "trainer_state.json", "checkpoint-*/trainer_state.json", "runs"),
        min_length=1,
        description=(
            "patterns below {out}, of which the first that matches is read, and of several files the newest; a folder:"
            " all of TensorBoard's event files below it"
        ),
    )


class Resume(Section):
    """How a run that was cut off is taken up again."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    if_: str = Field(
        alias="if",
        min_length=1,
        description="pattern of a checkpoint below {out}; where one is found, the run goes on from it",
    )
    add: tuple[str, ...] = Field(min_length=1, description="words that are then added to the end of the command")


class Trainer(Section):
    """A training program that is started once for each arm and seed."""

    folder: str = Field(".", description="folder in which the command runs, relative to the study's file")
    command: tuple[str, ...] = Field(min_length=1, description="the program and its words, with {name} in them")
    code: tuple[str, ...] | None = Field(
        None,
        description="patterns of the files that make it run again when they change (default: words that are files)",
    )
    logs: Logs = Logs()
    evaluation: str | None = Field(
        None, description="table below {out} with a row a prompt: prompt_id and outcomes, which pairs arms by prompt"
    )
    resume: Resume | None = None
    gpus: int = Field(0, ge=0, le=64, description="number of GPUs that a run can use; 0: none")
    threads: Positive = Field(1, description="CPU threads of a run, given to it as OMP_NUM_THREADS")
    steps: Positive | None = Field(None, description="gradient steps of a run, for the time left")
    wall_clock_h: StrictlyPositive = Field(
        12.0, description="longest time of a run, in hours; then it is ended, with the status `budget`"
    )
    memory_gib: StrictlyPositive = Field(
        14.6, description="largest memory of all processes of a run together (RSS), in GiB"
    )


class CommandTrial(Section):
    """Everything about one run of a trainer. It has the parts of a `TrialConfig` that hands and records ask for."""

    trainer: Trainer
    folder: Path
    """Folder of the study's file."""
    parameters: dict[str, Value]
    seed: int
    window: Window
    stop: tuple[StopRule, ...]

    @property
    def home(self) -> Path:
        return self.folder / self.trainer.folder

    @property
    def words(self) -> list[str]:
        """The command, with ``{out}`` and ``{python}`` still in it."""
        return self.filled(self.trainer.command, f"{{{OUT}}}", f"{{{PYTHON}}}")

    def filled(self, words: Iterable[str], out: str, python: str = sys.executable) -> list[str]:
        """Some words with their values."""
        values = {**self.parameters, SEED: self.seed, OUT: out, PYTHON: python}
        return [filled(word, values) for word in words]

    @property
    def runtime(self) -> RuntimeConfig:
        device: Literal["cpu", "cuda"] = "cuda" if self.trainer.gpus else "cpu"
        return RuntimeConfig(device=device, processes=max(self.trainer.gpus, 1), threads=self.trainer.threads)

    @property
    def caps(self) -> CapsConfig:
        memory = self.trainer.memory_gib / self.runtime.processes  # a cap there is that of each process
        return CapsConfig(wall_clock_h=self.trainer.wall_clock_h, memory_gib=memory)

    @property
    def gradient_steps(self) -> int:
        return self.trainer.steps or 0

    def digest(self) -> str:
        """16 hexadecimal digits that change with the command, the parameters, or how logs are read."""
        read = self.trainer.logs.model_dump(), self.trainer.evaluation, self.window
        content = [TRAINER, self.words, self.parameters, [rule.model_dump(mode="json") for rule in self.stop], read]
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]

    def code(self) -> dict[str, str]:
        """Digest of each file that the run depends on. Raises `UserError` for a pattern without files."""
        found = dict[str, str]()
        for pattern in self.trainer.code or map(glob.escape, self.words):
            there = glob.glob(pattern, root_dir=self.home, recursive=True)  # noqa: PTH207 `Path.glob` takes no absolute one
            files = [name for name in there if (self.home / name).is_file()]
            if self.trainer.code and not files:
                raise UserError(f"trainer.code: no file '{pattern}' in {self.home.resolve()}")
            found |= {name: file_digest(self.home / name) for name in files}
        return found


def filled(word: str, values: Mapping[str, Any]) -> str:
    """A word of the command with its values: texts as they are, numbers as Python writes them.

    >>> filled("--lr={lr} {{x}}", {"lr": 1e-6}), filled('{"optimiser": {"lr": 1}}', {})
    ('--lr=1e-06 {x}', '{"optimiser": {"lr": 1}}')
    """

    def one(fit: re.Match[str]) -> str:
        if not fit[1]:
            return fit[0][0] if "{{" in word else fit[0]  # without an escaped brace, `}}` ends nested JSON
        value = values[fit[1]]
        return value if isinstance(value, str) else repr(value)

    return _PLACE.sub(one, word)


def faults(study: Study) -> Iterator[tuple[tuple[str, ...], str]]:
    """Places and words of what is wrong with a trainer beside its study's parameters and arms, or without a trainer."""
    trainer, own, at = study.trainer, study.parameters, ("trainer", "command")
    if not study.foreign and study.objective.model_fields_set & {"window", "worst"}:
        yield ("objective",), "window and worst are for trials of other programs; leave them out"
    if trainer is None:
        yield from [(("parameters",), "belong to a study with a trainer of its own; leave them out")] * bool(own)
        return
    if study.imported:
        yield (study.kind,), "has a trainer, whose arms stand under arms, grid or factors"
    known = [*own, SEED, OUT, PYTHON]
    words = [*trainer.command, *(trainer.resume.add if trainer.resume else ())]
    used = dict.fromkeys(fit[1] for word in words for fit in _PLACE.finditer(word) if fit[1])
    for name in (name for name in used if name not in known):
        why = f"no parameter is named '{name}'{nearest(name, known)}; write {{{{ for a brace"
        yield at, f"{why}; there are: {', '.join(known)}"
    for name in (name for name in known if name not in (*used, PYTHON)):
        why = "arms would not differ by it" if name in own else "without it, runs would not differ"
        yield at, f"{{{name}}} stands in no word of the command; {why}"
    for name in {SEED, OUT, PYTHON} & own.keys():
        yield ("parameters", name), f"'{name}' is given to each run; choose another name"
    seen = dict[str, str]()
    for arm, changes in study.arm_overrides().items():
        for name, value in changes.items():
            if name not in own:
                why = f"'{name}' is no parameter{nearest(name, own)}; there are: {', '.join(own)}"
                yield (study.kind, arm, name), why
            elif not isinstance(value, str) and not (isinstance(value, int | float) and math.isfinite(value)):
                yield (study.kind, arm, name), f"{name} = {value}: a text, a number, true or false is expected"
        twin = seen.setdefault(repr(sorted({**own, **changes}.items())), arm)
        if twin != arm:
            yield (study.kind, arm), f"arms '{twin}' and '{arm}' are the same run; keep one"
