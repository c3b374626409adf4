"""What a mapping file (YAML) can state of foreign logs; everything has a default.

program: verl                     # trl-ppo, trl-grpo, trl-rloo, verl, openrlhf; default: what its keys show
steps_per_update: 16              # gradient steps taken in one update
step: {key: step, counts: updates, first: 1}        # or: episodes (with episodes_per_update), gradient_steps; or a key
length: 53                        # tokens of a response: a number, or the key that logs their mean
files: "{arm}/run{seed}"          # where arm and seed stand in a path without its suffix
columns: {arm: model, seed: seed} # or: the columns of a table of many trials that hold them; a number is every row's
include: ["*.csv"]                # patterns of the files to read, and of those to leave out
exclude: [old/*]
metrics:                          # ours: theirs
  objective/kl: {key: ppo/mean_kl, unit: bits per sequence}
  objective/scores: {key: reward, subtract: 1.2, factor: 0.5}
  policy/ratio: none              # leave a series out
prompts: {policy_gold: judge, kl: {key: kl, unit: nats per token}}      # ours: theirs, of a table of prompts
arms:                             # what is different for some arms, by patterns of their names
  grpo*: {program: trl-grpo, metrics: {objective/scores: reward}}
environment: {trl: 1.12.0}        # what the trials ran with, for the page
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Finite, Positive, Section, StrictlyPositive
from pipeline.config.messages import validate
from pipeline.config.names import nearest
from pipeline.config.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.run.metrics import METRICS, Metric, metric
from studies.importing.programs import PROGRAMS, Counts

_UNITS = {("bits", "nats"): math.log(2.0), ("percent", "fraction"): 0.01}
_PER_LENGTH = {("token", "sequence"): 1, ("sequence", "token"): -1}
PROMPT_NAMES = (
    "prompt_id", "win", "tie", "policy_gold", "reference_gold", "policy_proxy", "reference_proxy", "kl", "entropy",
    "policy_length", "policy_eos",
)  # fmt: skip
"""What can be known of a prompt: the columns that an evaluation writes."""
PER_ARM = ("program", "steps_per_update", "episodes_per_update", "step", "length", "metrics", "environment")
"""Keys that can differ from arm to arm."""


class Misfit(UserError):
    """A log that this mapping does not read; another mapping could."""


class Named(Section):
    """Where a metric of ours comes from: ``(theirs - subtract) x factor``, after its unit has been converted."""

    key: str
    unit: str | None = Field(None, description="theirs; ours when not given")
    factor: Finite = 1.0
    subtract: Finite = 0.0


class Axis(Section):
    """What the x-axis of the log is."""

    key: str | None = Field(None, description="default: step, global_step or episode, whichever is there first")
    counts: Counts | None = Field(None, description="default: what the program counts, else gradient_steps")
    first: Annotated[int, Field(ge=0, le=1)] = Field(
        1, description="number of the first update, where updates are counted"
    )


class Columns(Section):
    """The columns that tell the trials of a table apart."""

    arm: str = "arm"
    seed: str | int = Field("seed", description="a column, or the seed of all rows")


class MappingFile(Section):
    """The content of a mapping file."""

    program: str | None = None
    steps_per_update: Positive | None = None
    episodes_per_update: Positive | None = Field(
        None, description="batch_size of TRL: episodes of one rollout over all devices"
    )
    step: Axis = Axis()
    length: StrictlyPositive | str | None = None
    files: str | None = None
    columns: Columns | None = None
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    metrics: dict[str, Named | None] = Field(default_factory=dict)
    prompts: dict[str, Named] = Field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    environment: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = Field(default_factory=dict)

    @field_validator("program")
    @classmethod
    def _known_program(cls, value: str | None) -> str | None:
        if value is not None and value not in PROGRAMS:
            raise ValueError(f"no program '{value}'{nearest(value, PROGRAMS)}; known: {', '.join(PROGRAMS)}")
        return value

    @field_validator("step", mode="before")
    @classmethod
    def _key_alone(cls, value: Any) -> Any:
        return {"key": value} if isinstance(value, str) else _mapping(value, "a key or {key: ..., counts: ...}")

    @field_validator("columns", "prompts", "arms", "environment", mode="before")
    @classmethod
    def _is_mapping(cls, value: Any, info: Any) -> Any:
        plain = {} if value is None and info.field_name != "columns" else value
        return None if plain is None else _mapping(plain, "a mapping of keys to values")

    @field_validator("include", "exclude", mode="before")
    @classmethod
    def _one_pattern(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("length", mode="before")
    @classmethod
    def _number_or_key(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | str | None):
            raise ValueError(f"must be a number of tokens, or the key that logs it; it is {value!r}")
        return value

    @field_validator("metrics", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if value is None:
            return {}
        plain = {
            key: None if named in (None, "none") else _named(named, f"{key}: ")
            for key, named in _mapping(value, "a mapping of our metrics to their keys").items()
        }
        for key, named in plain.items():
            _check_target(str(key), named)
        return plain

    @field_validator("prompts", mode="before")
    @classmethod
    def _prompt_columns(cls, value: Any) -> Any:
        content = _mapping(value or {}, "a mapping of our columns to theirs")
        for key in content:
            if key not in PROMPT_NAMES:
                raise ValueError(
                    f"no column '{key}'{nearest(str(key), PROMPT_NAMES)}; there are: {', '.join(PROMPT_NAMES)}"
                )
        return {key: _named(named, f"{key}: ") for key, named in content.items()}

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        for key, named in self.metrics.items():
            if named is not None and named.unit is not None:
                conversion(named.unit, METRICS[key], self.length is not None)
        for pattern, own in self.arms.items():
            strange = [key for key in own if key not in PER_ARM]
            if strange:
                raise ValueError(
                    f"arms.{pattern}: '{strange[0]}' cannot differ from arm to arm; what can: {', '.join(PER_ARM)}"
                )
        return self

    def of_arm(self, arm: str) -> MappingFile:
        """The mapping of one arm: what its patterns say goes before what is said of all."""
        content = self.model_dump(mode="json", exclude_defaults=True, exclude={"arms"})
        for pattern, own in self.arms.items():
            if fnmatchcase(arm, pattern):
                metrics = {**content.get("metrics", {}), **(own.get("metrics") or {})}
                content = {**content, **own, **({"metrics": metrics} if metrics else {})}
        return MappingFile.model_validate(content)


def load_mapping(path: Path | None, **given: Any) -> MappingFile:
    """Read a mapping file; `given` is what the command line says. Raises `UserError` with file, key and value."""
    content = read_yaml(path) if path else {}
    for key, value in given.items():
        if value is None or value == []:
            continue
        if content.get(key, value) not in (value, value[0] if isinstance(value, list) else value):
            raise UserError(f"{path}: {key} is {content[key]} here but {value} on the command line; remove one of them")
        content = {**content, key: value}
    origin = str(path) if path else "the command line"
    mapping = validate(MappingFile, content, origin)
    for pattern in mapping.arms:  # each is read on its own, so that its faults are found here and under its name
        own = mapping.arms[pattern]
        validate(MappingFile, {**({"length": 1} if mapping.length else {}), **own}, f"{origin}: arms.{pattern}")
    return mapping


def check_arms(mapping: MappingFile, arms: Iterable[str]) -> None:
    """Refuse patterns that no arm fits. Raises `UserError`."""
    names = sorted(set(arms))
    for pattern in mapping.arms:
        if not any(fnmatchcase(arm, pattern) for arm in names):
            raise UserError(
                f"mapping: arms.{pattern}: no arm fits it{nearest(pattern, names)}; arms: {', '.join(names)}"
            )


def conversion(unit: str, target: Metric, with_length: bool) -> tuple[float, int]:
    """Factor, and the power of the response length, that turn `unit` into the target's. Raises `ValueError`."""
    theirs, ours = unit.split(" per "), target.unit.split(" per ")
    factor = 1.0 if theirs[0] == ours[0] else _UNITS.get((theirs[0], ours[0]))
    power = (
        0
        if theirs[1:] == ours[1:]
        else _PER_LENGTH.get((theirs[-1], ours[-1]))
        if len(theirs) == len(ours) == 2
        else None
    )
    if factor is None or power is None:
        known = ", ".join(
            sorted({f"{pair[0]} to {pair[1]}" for pair in _UNITS} | {"per token to per sequence and back"})
        )
        raise ValueError(
            f"metrics.{target.key}: no way from '{unit}' to '{target.unit}'; known: {known}; or give a factor"
        )
    if power and not with_length:
        raise ValueError(
            f"metrics.{target.key}: from '{unit}' to '{target.unit}' needs `length`: tokens of a response, or their key"
        )
    return factor, power


def check_keys_exist(
    mapping: MappingFile, keys: Iterable[str], said: Mapping[str, Any] | None = None, where: str = ""
) -> None:
    """Refuse keys that the mapping speaks of and that no log has; of `said` alone, where that is given. Raises `Misfit`
    with the nearest one."""
    metrics = mapping.metrics if said is None else said.get("metrics") or {}
    stated = [(f"metrics.{ours}", named.key) for ours, named in mapping.metrics.items() if named and ours in metrics]
    if mapping.step.key and (said is None or "step" in said):
        stated.append(("step.key", mapping.step.key))
    if isinstance(mapping.length, str) and (said is None or "length" in said):
        stated.append(("length", mapping.length))
    require([(where + at, key) for at, key in stated], sorted(set(keys)))


def require(stated: Sequence[tuple[str, str]], present: Sequence[str]) -> None:
    """Refuse a stated key that is not present. Raises `Misfit`."""
    for where, key in stated:
        if key not in present:
            raise Misfit(
                f"mapping: {where}: no log has a key '{key}'{nearest(key, present)}; keys: {', '.join(present)}"
            )


def _mapping(value: Any, wanted: str, where: str = "") -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) and not isinstance(value, Section):
        raise ValueError(f"{where}must be {wanted}; it is {value!r}")
    return value  # type: ignore[return-value]


def _named(value: Any, where: str) -> Any:
    if isinstance(value, str):
        return {"key": value}
    if isinstance(value, Named):
        return value
    return _mapping(value, "a key, or {key: ..., unit: ..., factor: ..., subtract: ...}", where)


def _check_target(key: str, named: Any) -> None:
    try:
        metric(key, "")
    except UserError as error:
        raise ValueError(f"{str(error).removeprefix(': ')}; there are: {', '.join(METRICS)}") from None
    if (
        key.startswith("eval/")
        and isinstance(named, dict)
        and str(named.get("unit", "")).endswith(("per token", "per sequence"))
    ):
        raise ValueError(f"{key}: a final measurement has no length to convert it with; give a factor")
