"""Maps: which column of another program's log is which metric here. `programs/` holds those of known programs; a user's
file has the same keys, and changes the shipped map that its `program` names."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from pipeline.config.base import Finite, Positive, Section, StrictlyPositive
from pipeline.config.loading import validate
from pipeline.config.names import nearest
from pipeline.config.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.run.metrics import METRICS, PER_PROMPT, is_measured, known

PROGRAMS = {path.stem: path for path in sorted((Path(__file__).parent / "programs").glob("*.yaml"))}
PROMPT_ID = "prompt_id"
PROMPTS = {top: "eval/gold" if below else metric for metric, (top, below) in PER_PROMPT.items()} | {
    "kl": "objective/kl", "entropy": "objective/entropy", "reference_length": "eval/length",
    "reference_eos": "eval/eos_rate", **dict.fromkeys(("agree", "decided", "reference_gold_std"), "eval/gold"),
}  # fmt: skip
"""Columns that an evaluation writes of a prompt -> a metric of the same bounds; eval/gold has none."""
_FACTORS = {("bits", "nats"): math.log(2.0), ("percent", "fraction"): 0.01}
_POWERS = {("token", "sequence"): 1, ("sequence", "token"): -1}
Keys = Annotated[tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""Columns, of which the first that is there is taken."""


class Named(Section):
    """The source of a metric: ``(theirs - subtract) x factor``, after a conversion from `unit` where it is given."""

    key: Keys
    unit: str | None = None
    factor: Finite = 1.0
    subtract: Finite = 0.0


Theirs = Annotated[Named, BeforeValidator(lambda value: {"key": value} if isinstance(value, str | list) else value)]


class Map(Section):
    """Rules for reading logs. Without `counts`, the x-axis `step` counts updates where `steps_per_update` is given,
    else gradient steps. `length` is the tokens of a response where no column holds them. The columns `arm` and `seed`
    distinguish the trials of a table; a number is the seed of all rows."""

    program: str | None = None
    step: Keys = ("step", "global_step", "training/global_step", "_step", "Step", "steps", "iteration")
    counts: Literal["updates", "gradient_steps"] | None = None
    first_update: Annotated[int, Field(ge=0, le=1)] = 1
    steps_per_update: Positive | None = None
    length: StrictlyPositive | None = None
    metrics: dict[str, Theirs | None] = Field(default_factory=dict)
    prompts: dict[str, Theirs | None] = Field(default_factory=dict)
    arm: str = "arm"
    seed: str | int = "seed"

    @field_validator("metrics", "prompts")
    @classmethod
    def _are_ours(cls, named: dict[str, Named | None], info: ValidationInfo) -> dict[str, Named | None]:
        names = [PROMPT_ID, *PROMPTS] if info.field_name == "prompts" else [*METRICS]
        for ours, theirs in named.items():
            if ours not in names and (info.field_name == "prompts" or not known(ours.replace("*", "x"))):
                raise ValueError(f"unknown '{ours}'{nearest(ours, names)}; there are: {', '.join(names)}")
            if theirs and theirs.unit and ours != PROMPT_ID:
                conversion(theirs.unit, ours)
        return named

    def outcomes(self, columns: Collection[str]) -> dict[str, tuple[str, Named]]:
        """Columns of a table with a row per prompt: those that are named here, and those that have the name of one that
        an evaluation writes."""
        found = present(self.prompts, columns)
        free = {column for column in columns if is_measured(column)} - {column for column, _ in found.values()}
        return {**{column: (column, Named(key=(column,))) for column in free}, **found}

    def series(self, columns: Collection[str]) -> dict[str, tuple[str, Named]]:
        """Metrics and columns of a log: those that are named here, and columns that have the name of a metric."""
        found = present(self.metrics, columns)
        free = {column for column in columns if known(column)} - {column for column, _ in found.values()}
        found = {**{column: (column, Named(key=(column,))) for column in free}, **found}
        column, kl = found.get("objective/kl", ("", None))
        if kl and not kl.subtract and (self.length or "objective/length" in found):
            unit = kl.unit or METRICS["objective/kl"].unit  # both are sums over the same tokens
            found.setdefault("objective/kl_per_token", (column, kl.model_copy(update={"unit": unit})))
        return {ours: one for ours, one in found.items() if self.metrics.get(ours, one) is not None}


def load_map(name: str, steps_per_update: int | None = None) -> tuple[Map, dict[str, Any]]:
    """A shipped map, or that of a file over its program's; and what was stated, as records keep it. Raises `UserError`
    with file, key and value."""
    shipped = ", ".join(PROGRAMS)
    if name not in PROGRAMS and not name.endswith((".yaml", ".yml")):
        raise UserError(f"--map {name}{nearest(name, PROGRAMS)}; give one of {shipped}, or a .yaml file")
    stated: dict[str, Any] = {"program": name} if name in PROGRAMS else read_yaml(Path(name))
    stated |= {} if steps_per_update is None else {"steps_per_update": steps_per_update}
    program = str(stated.get("program", ""))
    if program and program not in PROGRAMS:
        raise UserError(f"{name}: program = {program}{nearest(program, PROGRAMS)}; there are: {shipped}")
    base = read_yaml(PROGRAMS[program]) if program else {}
    base.setdefault("prompts", read_yaml(PROGRAMS["plain"])["prompts"])
    both = [key for key in ("metrics", "prompts") if isinstance(stated.get(key), dict) and key in base]
    return validate(Map, {**base, **stated, **{key: {**base[key], **stated[key]} for key in both}}, name), stated


def check_columns(own: Map, stated: Mapping[str, Any], columns: Collection[str]) -> None:
    """Refuse a stated column that no log has, with the nearest one. Raises `UserError`."""
    keys = {"step": own.step} if "step" in stated else {}
    for section in ("metrics", "prompts"):
        named = {ours: getattr(own, section)[ours] for ours in stated.get(section, ()) if "*" not in ours}
        keys |= {f"{section}.{ours}": theirs.key for ours, theirs in named.items() if theirs}
    lost = {at: key[0] for at, key in keys.items() if not first(key, columns)}
    if lost:
        words = "; ".join(f"{at}: no log has '{key}'{nearest(key, columns)}" for at, key in lost.items())
        raise UserError(f"map: {words}; columns: {', '.join(columns)}")


def first(keys: Iterable[str], columns: Container[object]) -> str | None:
    """The first of some keys that is a column."""
    return next((key for key in keys if key in columns), None)


def present(named: Mapping[str, Named | None], columns: Collection[str]) -> dict[str, tuple[str, Named]]:
    """Ours -> the column that is there, and how it is read; `*` stands for the name of a part.

    >>> [*present({"reward/*": Named(key=("rewards/*/mean",)), "policy/lr": None}, ["rewards/format/mean"])]
    ['reward/format']
    """
    found = dict[str, tuple[str, Named]]()
    for ours, theirs in named.items():
        if theirs and "*" in ours:
            pattern = re.compile(re.escape(theirs.key[0]).replace(r"\*", "([a-z][a-z0-9_]*)"))
            parts = {fit[fit.re.groups]: fit[0] for column in columns if (fit := pattern.fullmatch(column))}
            names = {ours.replace("*", part): column for part, column in parts.items()}
            found |= {name: (column, theirs) for name, column in names.items() if known(name)}
        elif theirs and (column := first(theirs.key, columns)):
            found[ours] = (column, theirs)
    return found


def conversion(unit: str, ours: str) -> tuple[float, int]:
    """The factor, and the power of the response length, that turn `unit` into that of a metric. Raises `ValueError`."""
    target = METRICS[PROMPTS.get(ours, ours)].unit
    (theirs, _, theirs_per), (quantity, _, per) = unit.partition(" per "), target.partition(" per ")
    factor = 1.0 if theirs == quantity else _FACTORS.get((theirs, quantity))
    power = 0 if theirs_per == per else _POWERS.get((theirs_per, per))
    if factor is None or power is None:
        ways = "bits to nats, percent to fraction, per token to per sequence and back"
        raise ValueError(f"{ours}: no way from '{unit}' to '{target}'; known: {ways}; or give a factor")
    return factor, power
