"""The schema of a study: one YAML file with a question, a design, seeds, a baseline and falsifiers.

Everything that can be wrong in such a file is found when it is read, before anything runs
(`studies.definition.checks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from pipeline.config.base import Section, distinct
from pipeline.config.loading import ConfigFault, dotted_keys, load_config, validated
from pipeline.config.names import WORDS, meant, meant_key, nearest
from pipeline.config.train import StopRule
from pipeline.config.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.named_files import is_file, is_folder, place
from pipeline.run.layout import SAFE_NAME, safe
from pipeline.wording import shown
from studies.definition.arms import BASELINE, MOST_ARMS, arm_name, of_factors, of_grid, short_names
from studies.definition.falsifier import Falsifier
from studies.definition.fields import SEED_KEY, STOP_KEY, Knob, Knobs, Levels, Link, Seeds, Text
from studies.definition.hypotheses import Hypothesis
from studies.definition.space import Constraint, Objective, Search
from studies.definition.trainer import TRAINER, Trainer, Value

STUDIES = Path(__file__).parents[1]
CONFIRMATION = "+confirm"
"""Ending of a study's name that stands for the same study on the seeds of its `confirm`."""
MOST_CLAIMS = 200
"""Entries of each list of a study."""
DERIVED = ("name", "source", "confirms")
"""Fields of a study that its file cannot give."""

Kind = Literal["arms", "grid", "factors", "search", "imported"]
KINDS: tuple[Kind, ...] = get_args(Kind)
IMPORTED: Kind = "imported"
"""Kind of a study whose trials other programs ran, and the stand-in for its profile."""
Figure = Literal[
    "frontier", "overoptimisation", "win_rate", "effects", "matched_kl", "interactions", "kl", "entropy", "training",
    "pareto", "tradeoff", "price",
]  # fmt: skip
FIGURES = get_args(Figure)
"""Figures that a study can list under `figures`; `reports.figures.registry` draws them."""


class Confirmation(Section):
    """The whole study again, on seeds that it never used."""

    seeds: Seeds = Field(description="disjoint from the study's own")


class Study(Section):
    """One question and its design, given by exactly one of `arms`, `grid`, `factors`, `search` and `imported`."""

    name: str
    source: str = Field("", exclude=True, description="the file it was read from")
    question: Text = Field(description="what is to be found out")
    hypothesis: Text | None = Field(
        None, description="what you expect, and why; without it, every finding is marked exploratory"
    )
    refuted_if: Text | None = Field(None, description="what would show the hypothesis to be wrong, for people")
    profile: str = Field("tiny", description="the complete configuration that the arms change; --profile replaces it")
    baseline: str = Field(
        BASELINE, description="the arm that all others are compared with; factors and search bring their own"
    )
    seeds: Seeds = Field(description="every arm runs with each of them, so that comparisons are paired")
    vary: Annotated[tuple[Link, ...], AfterValidator(distinct)] = Field(
        (),
        description=(
            "what a seed changes beside the training: labels (preference pairs), reward (reward model), sft (reference"
            " policy); intervals cover new draws of these alone"
        ),
    )
    objective: Objective = Objective()
    trainer: Trainer | None = Field(
        None, description="a training program of your own that the arms run, in place of ours"
    )
    parameters: dict[str, Value] = Field(
        {},
        max_length=MOST_CLAIMS,
        description="name: value; the trainer's parameters, of which an arm can change some",
    )
    arms: dict[str, Knobs] | None = Field(None, max_length=MOST_ARMS, description="name: {dotted key: value}")
    grid: Levels | None = Field(None, description="dotted key: [values]; every combination is an arm")
    factors: Levels | None = Field(None, description="dotted key: [values]; one at a time around the baseline")
    interactions: tuple[tuple[Knob, Knob], ...] = Field(
        (), max_length=MOST_CLAIMS, description="pairs of factors whose values are also combined"
    )
    search: Search | None = None
    imported: dict[str, dict[str, Any]] | None = Field(
        None, max_length=MOST_ARMS, description="name: {what: value}; arms whose records `ablate import` brought"
    )
    hypotheses: tuple[Hypothesis, ...] = Field(
        (), max_length=MOST_CLAIMS, description="the hypothesis in parts that a program can judge"
    )
    methods: dict[str, tuple[str, ...]] | None = Field(
        None,
        description=(
            "name: [arms] that differ in the strength of one method alone, such as several betas; at equal drift, other"
            " arms are compared with the method of the baseline"
        ),
    )
    falsifiers: tuple[Falsifier, ...] = Field((), max_length=MOST_CLAIMS)
    confirm: Confirmation | None = Field(None, description="fresh seeds, for `ablate study NAME+confirm`")
    confirms: str = Field("", description="name of the study that this one repeats on fresh seeds")
    constraints: tuple[Constraint, ...] = Field(
        (),
        description="bounds on metrics of the evaluation that an arm must keep to be recommended; a search has its own",
    )
    figures: Annotated[tuple[Figure, ...], AfterValidator(distinct)] | None = None

    @property
    def kind(self) -> Kind:
        """Kind of design; the confirmation of a search, whose arms are known, is still a search."""
        return "search" if self.search is not None else next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def foreign(self) -> bool:
        """Return whether another program trains: what it did is known from its logs alone."""
        return self.imported is not None or self.trainer is not None

    @model_validator(mode="before")
    @classmethod
    def _profile_of_foreign(cls, content: Any) -> Any:
        given = [key for key in (TRAINER, IMPORTED) if isinstance(content, dict) and content.get(key)]
        return {"profile": given[0], **content} if given else content

    @field_validator("search", mode="before")
    @classmethod
    def _of_our_trials(cls, search: Any, info: ValidationInfo) -> Any:
        if info.data.get("trainer"):
            raise ValueError("a search runs our own trials; a study with a trainer has arms, grid or factors")
        return search

    @property
    def argument(self) -> str:
        """The argument of commands for this study from the current folder: its name, or the path of its file."""
        if not self.source or Path(self.source).parent in (STUDIES, Path.cwd()):
            return self.name
        return self.source + (CONFIRMATION if self.confirms else "")

    def on_fresh_seeds(self) -> Study:
        """This study on its fresh seeds. Raises `UserError` where it names none."""
        if self.confirm is None:
            hint = "its search has its own confirmation" if self.kind == "search" else "add `confirm: {seeds: [...]}`"
            raise UserError(f"{self.source}: {self.name} names no seeds for a confirmation; {hint}")
        fresh = {"name": self.name + CONFIRMATION, "seeds": self.confirm.seeds, "confirm": None, "confirms": self.name}
        return self.model_copy(update=fresh)

    def stop_rules(self, arm: str) -> tuple[StopRule, ...]:
        claims = (one for one in self.falsifiers if one.stop and one.applies_to(arm, self.baseline))
        return tuple(StopRule.model_validate(claim, from_attributes=True) for claim in claims)

    def arm_overrides(self) -> dict[str, dict[str, Any]]:
        """Arm name -> dotted overrides, in the order of the file. Of a search: the baseline of its confirmation; the
        arms that it has chosen are in `studies.definition.search.confirmation`. Raises `ValueError` for two arms of one
        name."""
        if self.arms or self.imported:
            return dict(self.arms or self.imported or {})
        if self.grid:
            return of_grid(self.grid)
        return of_factors(self.factors or {}, self.interactions)


def study_names() -> list[str]:
    """Names of the studies in this folder."""
    return _stems(STUDIES)


def load_study(name_or_path: str | Path) -> Study:
    """Read and check a study by name, or from a YAML file anywhere.

    Every arm's `TrialConfig` is built against the study's own profile, so that a bad value is found here. Raises
    `UserError` with one line per fault: the file, the line, the key, the value and what is allowed. Faults that can be
    seen only in a file whose keys and shapes are right are reported when these are.
    """
    from studies.definition.checks import check, fault_lines

    wanted = str(name_or_path)
    if wanted.endswith(CONFIRMATION):
        return load_study(wanted.removesuffix(CONFIRMATION)).on_fresh_seeds()
    path = _find(wanted)
    if path.stem.endswith(CONFIRMATION):
        raise UserError(f"{path}: names that end with {CONFIRMATION} are those of confirmations; rename the file")
    content = read_yaml(path)
    study, faults = validated(Study, {**content, "name": safe(path.stem), "source": str(path)})
    faults = [*map(_knob_outside, faults)] if study is None else check(study)
    derived = "a study is named after its file"
    faults += [ConfigFault((key,), f"unknown key '{key}'; {derived}") for key in DERIVED if key in content]
    if study is None or faults:
        raise UserError(fault_lines(str(path), faults))
    return study


def _knob_outside(fault: ConfigFault) -> ConfigFault:
    """A knob beside the arms instead of in one is answered with where it belongs."""
    key, knobs = str(fault.where[0]) if len(fault.where) == 1 else "", dotted_keys()
    if not fault.text.startswith("unknown key") or nearest(key, Study.model_fields, 0.8):
        return fault
    if key not in knobs and key.lower() not in WORDS and not meant(key, knobs):
        return fault
    where = "knobs stand under arms, grid, factors or search.space"
    return ConfigFault(fault.where, f"unknown key '{key}'{meant_key(key, knobs)}; {where}")


def single(profile: str, overrides: Mapping[str, Any], seed: int) -> Study:
    """A study of one trial, whose arm is named after its changes."""
    for key, giver in {SEED_KEY: "by --seed", STOP_KEY: "by a study's falsifiers (stop: true)"}.items():
        if key in overrides:
            raise UserError(f"--set: '{key}' is given {giver}")
    load_config(profile, overrides)
    ordered = dict(sorted(overrides.items()))
    name = arm_name(ordered, short_names(ordered)) or profile
    if not SAFE_NAME.fullmatch(name):
        name = "set-" + hashlib.sha256(repr(sorted(overrides.items())).encode()).hexdigest()[:12]
    return Study(
        name="single",
        question="What does this one configuration do?",
        profile=profile,
        baseline=name,
        seeds=(seed,),
        arms={name: dict(overrides)},
    )


def _find(name: str) -> Path:
    """A YAML file by its path, a shipped study, or NAME.yaml in the current folder."""
    by_path = name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name
    path = place(name if by_path else f"{name}.yaml")
    shipped = path if by_path else STUDIES / path.name
    if is_folder(path):
        raise UserError(f"{path} is a folder; give the path of a study's YAML file")
    found = [file for file in (shipped, path) if is_file(file)]
    if not found:
        names = dict.fromkeys([*study_names(), *_stems(path.parent), *_stems(Path.cwd())])
        raise UserError(
            f"no study '{shown(name, 400)}'{nearest(path.stem, names)}; there are: {', '.join(names)} (or give the path"
            " of a YAML file)"
        )
    if not found[0].samefile(found[-1]):
        raise UserError(f"two studies are named '{name}': {shipped} and {path}; give the path of the one that is meant")
    return found[0]


def _stems(folder: Path) -> list[str]:
    """Names of the files of a folder that could be studies; none where it cannot be read."""
    try:
        return sorted(path.stem for path in folder.glob("*.yaml") if is_file(path))
    except OSError:
        return []
