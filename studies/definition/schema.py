"""What a study is: one YAML file with a question, a design, seeds, a baseline and falsifiers.

Everything that can be wrong in such a file is found when it is read, before anything runs
(`studies.definition.checks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config.algorithm import StopRule
from pipeline.config.base import Positive, Section
from pipeline.config.loading import dotted_keys, load_config
from pipeline.config.messages import ConfigFault, validated
from pipeline.config.names import WORDS, meant, meant_key, nearest
from pipeline.config.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.run.layout import SAFE_NAME, safe
from studies.definition.arms import BASELINE, arm_name, of_factors, of_grid, short_names
from studies.definition.space import Finite, Objective, Search, Seed, several

STUDIES = Path(__file__).parents[1]
SEED_KEY = "ppo.seed"
STOP_KEY = "ppo.stop"

Kind = Literal["arms", "grid", "factors", "search", "imported"]
KINDS: tuple[Kind, ...] = ("arms", "grid", "factors", "search", "imported")
IMPORTED: Kind = "imported"
"""The kind of a study whose trials other programs ran, and what stands in the place of its profile."""
FIGURES = (
    "frontier", "overoptimisation", "win_rate", "effects", "matched_kl", "interactions", "kl", "entropy", "training",
    "pareto", "importance", "cost",
)  # fmt: skip
"""What a study can list under `figures`; `reports.figures.registry` draws them."""
Text = Annotated[str, Field(min_length=1)]


class Consecutive(Section):
    """An aggregation: this many successive records must all break the claim."""

    consecutive: Positive


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
    stop: bool = Field(
        False, description="end a trial as `pruned` as soon as it refutes the claim; it is evaluated as it then is"
    )

    @field_validator("aggregation", mode="before")
    @classmethod
    def _known_aggregation(cls, value: Any) -> Any:
        if value in ("any", "mean") or isinstance(value, Consecutive):
            return value
        count = value.get("consecutive") if isinstance(value, dict) and len(value) == 1 else None
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return value
        raise ValueError(f"{value!r} is not an aggregation; write any, mean or {{consecutive: N}} with N at least 1")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.stop and self.aggregation == "mean":
            raise ValueError(
                "stop: a mean is known only when all its records are; use any or {consecutive: N}, or remove stop"
            )
        return self

    @property
    def consecutive(self) -> int:
        """Successive records that must break the claim; 1 for `any`."""
        return self.aggregation.consecutive if isinstance(self.aggregation, Consecutive) else 1

    @property
    def rule(self) -> StopRule:
        """What ends a trial that refutes the claim."""
        return StopRule(
            metric=self.metric,
            op=self.op,
            threshold=self.threshold,
            consecutive=self.consecutive,
            before_step=self.before_step,
        )

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
    """One question and how it is asked. Exactly one of `arms`, `grid`, `factors`, `search` and `imported` says what is
    compared."""

    name: str
    source: str = Field("", exclude=True, description="the file it was read from")
    question: Text = Field(description="what is to be found out")
    hypothesis: Text = Field(description="what is expected, and why")
    refuted_if: Text = Field(description="what would show the hypothesis to be wrong")
    profile: str = Field("tiny", description="the complete configuration that the arms change; --profile replaces it")
    baseline: str = Field(
        BASELINE, description="the arm that all others are compared with; factors and search bring their own"
    )
    seeds: tuple[Seed, ...] = Field(
        min_length=1, description="every arm runs with each of them, so that comparisons are paired"
    )
    objective: Objective = Objective()
    arms: dict[str, dict[str, Any]] | None = Field(None, description="name: {dotted key: value}")
    grid: dict[str, list[Any]] | None = Field(None, description="dotted key: [values]; the full product")
    factors: dict[str, list[Any]] | None = Field(
        None, description="dotted key: [values]; one at a time around the baseline"
    )
    interactions: tuple[tuple[str, str], ...] = Field((), description="pairs of factors whose values are also combined")
    search: Search | None = None
    imported: dict[str, dict[str, Any]] | None = Field(
        None, description="name: {what: value}; arms that `ablate import` brings records of"
    )
    falsifiers: tuple[Falsifier, ...] = ()
    figures: tuple[str, ...] | None = None

    @property
    def kind(self) -> Kind:
        """Which of the four designs it is; the confirmation of a search, whose arms are known, is still a search."""
        return "search" if self.search is not None else next(kind for kind in KINDS if getattr(self, kind) is not None)

    @field_validator("seeds", mode="before")
    @classmethod
    def _several_seeds(cls, value: Any) -> Any:
        return several(value)

    @model_validator(mode="before")
    @classmethod
    def _profile_of_imported(cls, content: Any) -> Any:
        return {"profile": IMPORTED, **content} if isinstance(content, dict) and content.get("imported") else content

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise ValueError(f"both {given[0]} and {given[1]} are given; keep one of them")
        if not given or not getattr(self, given[0]):
            raise ValueError(
                "no arms: give at least one under arms (name: {dotted key: value}), grid or factors (dotted key:"
                " [values]), or a search"
            )
        repeated = sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1})
        if repeated:
            raise ValueError(
                f"seeds: {', '.join(map(str, repeated))} is given more than once; a repeated seed is no new evidence"
            )
        for key, values in (getattr(self, self.kind) if self.kind in ("grid", "factors") else {}).items():
            if not values:
                raise ValueError(f"{self.kind}.{key}: has no values")
        self._coherent_factors()
        if self.search is not None:
            self._coherent_search(self.search)
        return self

    def _coherent_factors(self) -> None:
        if self.interactions and self.factors is None:
            raise ValueError("interactions: they combine factors, and there are none")
        seen: set[frozenset[str]] = set()
        for pair in self.interactions:
            unknown = [key for key in pair if key not in (self.factors or {})]
            if unknown:
                raise ValueError(
                    f"interactions: '{unknown[0]}' is not a factor{nearest(unknown[0], list(self.factors or {}))}"
                )
            if len(set(pair)) < 2 or frozenset(pair) in seen:
                raise ValueError(f"interactions: [{', '.join(pair)}] must name two different factors, and once")
            seen.add(frozenset(pair))

    def _coherent_search(self, search: Search) -> None:
        if len(self.seeds) > 1:
            raise ValueError(
                f"seeds: a search trains on one seed, {len(self.seeds)} are given; fresh ones go under"
                " search.confirm.seeds"
            )
        used = sorted(set(self.seeds) & set(search.confirm.seeds))
        if used:
            raise ValueError(
                f"search.confirm.seeds: {used[0]} is the seed of the search; a confirmation needs seeds it never saw"
            )
        if search.confirm.top > search.trials:
            raise ValueError(
                f"search.confirm.top: {search.confirm.top} is more than the {search.trials} trials of the search"
            )
        if len(set(search.confirm.seeds)) < len(search.confirm.seeds):
            raise ValueError("search.confirm.seeds: a seed is given more than once")

    @property
    def argument(self) -> str:
        """What commands are to be given for this study from the current folder: its name, or the path of its file."""
        return self.name if not self.source or Path(self.source).parent in (STUDIES, Path.cwd()) else self.source

    def stop_rules(self, arm: str) -> list[dict[str, Any]]:
        """What ends a trial of an arm early, as the value of `STOP_KEY`."""
        return [one.rule.model_dump(mode="json") for one in self.falsifiers if one.stop and one.applies_to(arm)]

    def arm_overrides(self) -> dict[str, dict[str, Any]]:
        """Arm name -> dotted overrides, in the order of the file. Of a search: the baseline of its confirmation.

        The arms that a search has chosen are in `studies.definition.search.confirmation`.
        """
        if self.arms or self.imported:
            return dict(self.arms or self.imported or {})
        if self.grid:
            return of_grid(self.grid)
        return of_factors(self.factors or {}, self.interactions)


def study_names() -> list[str]:
    """Names of the studies in this folder."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name_or_path: str | Path) -> Study:
    """Read and check a study by name, or from a YAML file anywhere.

    Every arm's `TrialConfig` is built against the study's own profile, so that a bad key or value is found
    here. Raises `UserError` with one line per fault: the file, the line, the key, the value and what is allowed.
    """
    from studies.definition.checks import check, check_names, told

    path = _find(str(name_or_path))
    content = read_yaml(path)
    faults = [
        ConfigFault((key,), f"unknown key '{key}'; a study is named after its file")
        for key in ("name", "source")
        if key in content
    ]
    study, wrong = validated(Study, {**content, "name": safe(path.stem), "source": str(path)})
    faults += [*check_names(content), *map(_knob_outside, wrong)] if study is None else check(study)
    if study is None or faults:
        raise UserError(told(str(path), faults))
    return study


def _knob_outside(fault: ConfigFault) -> ConfigFault:
    """A knob beside the arms instead of in one is answered with where it belongs."""
    key = str(fault.where[0]) if len(fault.where) == 1 and fault.text.startswith("unknown key") else ""
    knobs = dotted_keys()
    if (
        not key
        or nearest(key, Study.model_fields, 0.8)
        or not (key in knobs or key.lower() in WORDS or meant(key, knobs))
    ):
        return fault
    return ConfigFault(
        fault.where,
        f"unknown key '{key}'{meant_key(key, knobs)}; knobs stand under arms, grid, factors or search.space",
    )


def single(profile: str, overrides: Mapping[str, Any], seed: int) -> Study:
    """A study of one trial, whose arm is named after what it changes."""
    if SEED_KEY in overrides:
        raise UserError(f"--set: '{SEED_KEY}' is given by --seed")
    if STOP_KEY in overrides:
        raise UserError(f"--set: '{STOP_KEY}' is given by a study's falsifiers (stop: true)")
    load_config(profile, overrides)
    ordered = dict(sorted(overrides.items()))
    name = arm_name(ordered, short_names(ordered)) or profile
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
    """A shipped study, a YAML file by its path, or NAME.yaml in the current folder."""
    if name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name:
        path = Path(name).expanduser().absolute()
        if path.is_dir():
            raise UserError(
                f"{path} is a folder; give the path of a study's YAML file{_listed(_files(path), ', for example')}"
            )
        if not path.is_file():
            near = nearest(path.stem, [one.stem for one in _files(path.parent)])
            raise UserError(f"no study file {path}{near}; {_there_are()}")
        return path
    names, here = study_names(), Path(f"{name}.yaml").absolute()
    shipped = STUDIES / here.name if name in names else None
    if shipped and here.is_file() and not here.samefile(shipped):
        raise UserError(f"two studies are named '{name}': {shipped} and {here}; give the path of the one that is meant")
    if shipped or here.is_file():
        return shipped or here
    near = nearest(name, [*names, *(path.stem for path in _files(Path.cwd()))])
    raise UserError(f"no study '{name}'{near}; {_there_are()} (or give the path of a YAML file)")


def _there_are() -> str:
    """The studies that come with the project, and those in the current folder."""
    own = [path for path in _files(Path.cwd()) if path.parent != STUDIES]
    return f"there are: {', '.join(study_names())}{_listed(own, '; in this folder:')}"


def _files(folder: Path) -> list[Path]:
    """The YAML files of a folder that could be studies; none where it cannot be read."""
    try:
        return sorted(path for path in folder.glob("*.y*ml") if path.suffix in (".yaml", ".yml") and path.is_file())
    except OSError:
        return []


def _listed(files: Sequence[Path], words: str, most: int = 12) -> str:
    names = [path.name for path in files[:most]] + (["..."] if len(files) > most else [])
    return f"{words} {', '.join(names)}" if names else ""
