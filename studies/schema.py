"""What a study is: one YAML file with a question, arms or a grid, seeds, a baseline and falsifiers.

Everything that can be wrong in such a file is found when it is read, before anything runs.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config import Positive, Section, dotted_keys, load_config, nearest, profile_names, read_yaml, validate
from pipeline.errors import UserError
from pipeline.layout import SAFE_NAME, safe
from pipeline.metrics import metric

STUDIES = Path(__file__).parent
SEED_KEY = "ppo.seed"

Seed = Annotated[int, Field(ge=0, strict=True)]
Text = Annotated[str, Field(min_length=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Consecutive(Section):
    """An aggregation: this many successive records must all break the claim."""

    consecutive: Positive


class Objective(Section):
    """What a trial is told to the planner as; a metric of the final evaluation."""

    metric: str = "eval/win_rate"
    direction: Literal["maximize", "minimize"] = "maximize"


class Falsifier(Section):
    """A claim, and the observation that would refute it: ``metric op threshold`` before a gradient step."""

    name: Text
    claim: Text
    metric: str
    op: Literal[">", ">=", "<", "<="]
    threshold: Finite
    before_step: Positive = Field(description="records with step < before_step count")
    aggregation: Literal["any", "mean"] | Consecutive = "any"
    arms: tuple[str, ...] = Field(("*",), min_length=1, description="patterns over arm names, as in a shell")

    @field_validator("aggregation", mode="before")
    @classmethod
    def _known_aggregation(cls, value: Any) -> Any:
        if value in ("any", "mean") or isinstance(value, Consecutive):
            return value
        count = value.get("consecutive") if isinstance(value, dict) and len(value) == 1 else None
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return value
        raise ValueError(f"{value!r} is not an aggregation; write any, mean or {{consecutive: N}} with N at least 1")

    def applies_to(self, arm: str) -> bool:
        """Whether the claim speaks of this arm."""
        return any(fnmatchcase(arm, pattern) for pattern in self.arms)

    @property
    def condition(self) -> str:
        """What would refute the claim, for people."""
        how = {"any": "", "mean": "mean of "}.get(self.aggregation) if isinstance(self.aggregation, str) else ""
        often = f" {self.aggregation.consecutive} times in a row" if isinstance(self.aggregation, Consecutive) else ""
        return f"{how}{self.metric} {self.op} {self.threshold:g}{often} before step {self.before_step}"


class Study(Section):
    """One question and how it is asked."""

    name: str
    source: str = Field("", exclude=True, description="the file it was read from")
    question: Text
    hypothesis: Text
    refuted_if: Text
    profile: str = "tiny"
    baseline: str
    seeds: tuple[Seed, ...] = Field(min_length=1)
    objective: Objective = Objective()
    arms: dict[str, dict[str, Any]] | None = None
    grid: dict[str, list[Any]] | None = None
    falsifiers: tuple[Falsifier, ...] = ()
    figures: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.arms is not None and self.grid is not None:
            raise ValueError("both arms and grid are given; keep one of them")
        if not self.arms and not self.grid:
            raise ValueError("no arms: give at least one under arms (name: {dotted key: value}) or grid (dotted key: [values])")
        repeated = sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1})
        if repeated:
            raise ValueError(f"seeds: {', '.join(map(str, repeated))} is given more than once; a repeated seed is no new evidence")
        if self.grid:
            for key, values in self.grid.items():
                if not values:
                    raise ValueError(f"grid.{key}: has no values")
        return self

    def arm_overrides(self) -> dict[str, dict[str, Any]]:
        """Arm name -> dotted overrides, in the order of the file; a grid is expanded to its full product."""
        return dict(self.arms) if self.arms else _expand(self.grid or {})


def study_names() -> list[str]:
    """Names of the studies in this folder."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name_or_path: str | Path) -> Study:
    """Read and check a study by name, or from a YAML file anywhere.

    Every arm's `TrialConfig` is built against the study's own profile, so that a bad key or value is found
    here. Raises `UserError` with the file, the key, the value and what is allowed.
    """
    path = _find(str(name_or_path))
    content = read_yaml(path)
    reserved = sorted({"name", "source"} & content.keys())
    if reserved:
        raise UserError(f"{path}: unknown key '{reserved[0]}'; a study is named after its file")
    study = validate(Study, {**content, "name": safe(path.stem), "source": str(path)}, str(path))
    _check_names(study)
    _check_arms(study)
    _check_falsifiers(study)
    return study


def single(profile: str, overrides: Mapping[str, Any], seed: int) -> Study:
    """A study of one trial, whose arm is named after what it changes."""
    if SEED_KEY in overrides:
        raise UserError(f"--set: '{SEED_KEY}' is given by --seed")
    load_config(profile, overrides)
    name = "+".join(f"{key.rpartition('.')[2]}={_word(value)}" for key, value in sorted(overrides.items())) or profile
    if not SAFE_NAME.fullmatch(name):
        name = "set-" + hashlib.sha256(repr(sorted(overrides.items())).encode()).hexdigest()[:12]
    return Study(
        name="single",
        source="",
        question="What does this one configuration do?",
        hypothesis="None: a single trial, run by hand.",
        refuted_if="It cannot be; one trial tests nothing.",
        profile=profile,
        baseline=name,
        seeds=(seed,),
        arms={name: dict(overrides)},
    )


def _find(name: str) -> Path:
    if name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name:
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise UserError(f"no study file {path}; studies that come with the project: {', '.join(study_names())}")
        return path
    names = study_names()
    if name not in names:
        raise UserError(f"no study '{name}'{nearest(name, names)}; there are: {', '.join(names)} (or give the path of a YAML file)")
    return STUDIES / f"{name}.yaml"


def _expand(grid: Mapping[str, list[Any]]) -> dict[str, dict[str, Any]]:
    short = [key.rpartition(".")[2] for key in grid]
    labels = [name if short.count(name) == 1 else key for key, name in zip(grid, short, strict=True)]
    arms: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*grid.values()):
        name = "+".join(f"{label}={_word(value)}" for label, value in zip(labels, values, strict=True))
        if name in arms:
            raise UserError(f"grid: the arm '{name}' comes out more than once; give each value once")
        arms[name] = dict(zip(grid, values, strict=True))
    return arms


def _word(value: Any) -> str:
    """A value as part of an arm's name; what cannot stand in a file name is refused later by `safe`."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return "-".join(_word(one) for one in value) if isinstance(value, list | tuple) else str(value)


def _check_names(study: Study) -> None:
    arms = list(study.arm_overrides())
    if study.profile not in profile_names():
        hint = nearest(study.profile, profile_names())
        raise UserError(f"{study.source}: profile: no profile '{study.profile}'{hint}; there are: {', '.join(profile_names())}")
    if study.baseline not in arms:
        raise UserError(
            f"{study.source}: baseline '{study.baseline}' is not an arm{nearest(study.baseline, arms)}; arms: {', '.join(arms)}"
        )
    folded: dict[str, str] = {}
    for arm in arms:
        try:
            safe(arm)
        except UserError as error:
            raise UserError(f"{study.source}: arms: {error}") from None
        twin = folded.setdefault(arm.lower(), arm)
        if twin != arm:
            raise UserError(f"{study.source}: arms '{twin}' and '{arm}' differ only in case; some file systems cannot tell them apart")


def _check_arms(study: Study) -> None:
    digests: dict[str, str] = {}
    for arm, overrides in study.arm_overrides().items():
        if SEED_KEY in overrides:
            raise UserError(f"{study.source}: arms.{arm}: '{SEED_KEY}' is set by the study's seeds, so that arms stay paired")
        config = load_config(study.profile, overrides, f"{study.source}: arms.{arm}")
        twin = digests.setdefault(config.digest(), arm)
        if twin != arm:
            raise UserError(f"{study.source}: arms '{twin}' and '{arm}' are the same trial on profile '{study.profile}'; keep one")


def _check_falsifiers(study: Study) -> None:
    objective = metric(study.objective.metric, f"{study.source}: objective.metric").key
    if not objective.startswith("eval/"):
        raise UserError(f"{study.source}: objective.metric '{objective}' is a series; name a metric of the evaluation (eval/...)")
    arms = list(study.arm_overrides())
    names = [falsifier.name for falsifier in study.falsifiers]
    for index, falsifier in enumerate(study.falsifiers):
        origin = f"{study.source}: falsifiers.{index}"
        if names.count(falsifier.name) > 1:
            raise UserError(f"{origin}.name: '{falsifier.name}' is the name of two falsifiers")
        if metric(falsifier.metric, f"{origin}.metric").key.startswith("eval/"):
            raise UserError(f"{origin}.metric: '{falsifier.metric}' is measured once, after training; name a series that has steps")
        for pattern in falsifier.arms:
            if not any(fnmatchcase(arm, pattern) for arm in arms):
                raise UserError(f"{origin}.arms: no arm is named '{pattern}'{nearest(pattern, arms)}; arms: {', '.join(arms)}")


def check_overrides(study: Study, overrides: Mapping[str, Any]) -> None:
    """Refuse ``--set`` keys that are unknown, that seeds own, or that could have no effect on this study."""
    arms = study.arm_overrides()
    for key in overrides:
        if key not in dotted_keys():
            raise UserError(f"--set: unknown key '{key}'{nearest(key, dotted_keys())}")
        if key == SEED_KEY:
            raise UserError(f"--set: '{SEED_KEY}' comes from the study's seeds; change `seeds` in {study.source}")
        if all(key in own for own in arms.values()):
            raise UserError(f"--set: '{key}' would have no effect: every arm of {study.name} sets it; edit {study.source} instead")
