"""What a study is: one YAML file with a question, a design, seeds, a baseline and falsifiers.

Everything that can be wrong in such a file is found when it is read, before anything runs
(`studies.definition.checks`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Distinct, Section, Seed
from pipeline.config.loading import dotted_keys, load_config
from pipeline.config.messages import ConfigFault, validated
from pipeline.config.names import WORDS, meant, meant_key, nearest
from pipeline.config.presets import NAME, SHORT, spelt
from pipeline.config.yaml_files import read_yaml
from pipeline.errors import UserError
from pipeline.named_files import is_file, is_folder, place
from pipeline.run.layout import SAFE_NAME, safe
from pipeline.wording import shown
from studies.definition.arms import BASELINE, arm_name, of_factors, of_grid, short_names
from studies.definition.falsifier import Falsifier, Text
from studies.definition.hypotheses import Hypothesis
from studies.definition.replicates import PER_CHAIN, SEED_KEY, Link, Replicate, Trainings, replicates
from studies.definition.space import MOST_SEEDS, Constraint, Objective, Search, several

STUDIES = Path(__file__).parents[1]
STOP_KEY = "train.stop"
CONFIRMATION = "+confirm"
"""Ending of a study's name that stands for the same study on the seeds of its `confirm`."""
MOST_CLAIMS = 200
"""Entries of each list of a study."""
MOST_ARMS, MOST_TRIALS = 1_000, 10_000
"""Of a study: to check a thousand arms takes seconds, and a study of more is several."""
DERIVED = ("name", "source", "confirms")
"""Fields of a study that its file cannot give."""

Kind = Literal["arms", "grid", "factors", "search", "imported"]
KINDS: tuple[Kind, ...] = ("arms", "grid", "factors", "search", "imported")
IMPORTED: Kind = "imported"
"""The kind of a study whose trials other programs ran, and what stands in the place of its profile."""
FIGURES = (
    "frontier", "overoptimisation", "win_rate", "effects", "matched_kl", "interactions", "kl", "entropy", "training",
    "pareto", "tradeoff", "price", "cost",
)  # fmt: skip
"""What a study can list under `figures`; `reports.figures.registry` draws them."""


class Confirmation(Section):
    """The whole study again, on seeds that it never used."""

    seeds: tuple[Seed, ...] = Field(min_length=1, max_length=MOST_SEEDS, description="disjoint from the study's own")

    @field_validator("seeds", mode="before")
    @classmethod
    def _several_seeds(cls, value: Any) -> Any:
        return several(value)


class Study(Section):
    """One question and how it is asked. Exactly one of `arms`, `grid`, `factors`, `search` and `imported` says what is
    compared."""

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
    seeds: tuple[Seed, ...] = Field(
        min_length=1,
        max_length=MOST_SEEDS,
        description="every arm runs with each of them, so that comparisons are paired",
    )
    vary: tuple[Link, ...] = Field(
        (),
        description=(
            "what a seed changes beside the training: labels (preference pairs), reward (reward model), sft (reference"
            " policy); intervals cover new draws of these alone"
        ),
    )
    trainings: Trainings | None = Field(
        None, description="several trainings on each seed's chain; intervals are over the chains"
    )
    objective: Objective = Objective()
    arms: dict[str, dict[str, Any]] | None = Field(None, description="name: {dotted key: value}")
    grid: dict[str, list[Any]] | None = Field(None, description="dotted key: [values]; the full product")
    factors: dict[str, list[Any]] | None = Field(
        None, description="dotted key: [values]; one at a time around the baseline"
    )
    interactions: tuple[tuple[str, str], ...] = Field(
        (), max_length=MOST_CLAIMS, description="pairs of factors whose values are also combined"
    )
    search: Search | None = None
    imported: dict[str, dict[str, Any]] | None = Field(
        None, description="name: {what: value}; arms that `ablate import` brings records of"
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
    figures: Distinct | None = Field(None, max_length=MOST_CLAIMS)

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
        self._bounded()
        repeated = sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1})
        if repeated:
            raise ValueError(
                f"seeds: {', '.join(map(str, repeated))} is given more than once; a repeated seed is no new evidence"
            )
        self._coherent_replicates()
        for key, values in (getattr(self, self.kind) if self.kind in ("grid", "factors") else {}).items():
            if not values:
                raise ValueError(f"{self.kind}.{key}: has no values")
        self._coherent_factors()
        if self.confirm is not None:
            self._coherent_confirmation(self.confirm.seeds)
        if self.search is not None:
            self._coherent_search(self.search)
        return self

    def _bounded(self) -> None:
        """Refuse a design that expands to more than anybody runs, before it is expanded."""
        if self.grid is not None:
            arms = math.prod(map(len, self.grid.values()))
        elif self.factors is not None:
            sizes = {key: len(values) for key, values in self.factors.items()}
            pairs = ((sizes.get(one, 0), sizes.get(other, 0)) for one, other in self.interactions)
            arms = 1 + sum(sizes.values()) + sum(one * other for one, other in pairs)
        else:
            arms = len(self.arms or self.imported or {}) or 1
        if arms > MOST_ARMS:
            raise ValueError(f"{self.kind}: {arms:,} arms; at most {MOST_ARMS:,} are planned")
        trials = arms * len(self.seeds) * (len(self.trainings.seeds) if self.trainings else 1)
        if trials > MOST_TRIALS:
            raise ValueError(f"seeds: {trials:,} trials ({arms:,} arms); at most {MOST_TRIALS:,} are planned")

    def _coherent_replicates(self) -> None:
        if len(set(self.vary)) < len(self.vary):
            raise ValueError("vary: something is named more than once")
        if self.imported is not None and (self.vary or self.trainings):
            raise ValueError("vary, trainings: imported trials were run elsewhere; leave both out")
        if self.trainings is None:
            return
        if not self.vary:
            raise ValueError("trainings: they share a seed's chain, and vary names nothing of it; give more seeds")
        if self.search is not None:
            raise ValueError("trainings: a search trains once; give more search.confirm.seeds")
        inner = self.trainings.seeds
        if len(set(inner)) < len(inner) or max(inner) >= PER_CHAIN:
            raise ValueError(f"trainings.seeds: give each seed once, and below {PER_CHAIN}")

    @property
    def replicates(self) -> tuple[Replicate, ...]:
        """The rows of the study: each arm has one trial of each."""
        return replicates(self.seeds, self.trainings)

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

    def _coherent_confirmation(self, seeds: Sequence[int]) -> None:
        if self.kind in ("search", "imported"):
            where = "under search.confirm" if self.kind == "search" else "nowhere: the trials were run elsewhere"
            raise ValueError(f"confirm: of a study of kind {self.kind} fresh seeds go {where}")
        if len(set(seeds)) < len(seeds):
            raise ValueError("confirm.seeds: a seed is given more than once")
        if used := sorted(set(self.seeds) & set(seeds)):
            raise ValueError(
                f"confirm.seeds: {used[0]} is one of the study's own seeds; a confirmation needs fresh ones"
            )

    def _coherent_search(self, search: Search) -> None:
        if self.constraints:
            raise ValueError("constraints: of a search they stand under search.constraints")
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

    def stop_rules(self, arm: str) -> list[dict[str, Any]]:
        """What ends a trial of an arm early, as the value of `STOP_KEY`."""
        return [
            falsifier.rule.model_dump(mode="json")
            for falsifier in self.falsifiers
            if falsifier.stop and falsifier.applies_to(arm, self.baseline)
        ]

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

    wanted = str(name_or_path)
    if wanted.endswith(CONFIRMATION):
        return load_study(wanted.removesuffix(CONFIRMATION)).on_fresh_seeds()
    path = _find(wanted)
    if path.stem.endswith(CONFIRMATION):
        raise UserError(f"{path}: names that end with {CONFIRMATION} are those of confirmations; rename the file")
    content = _spelt(read_yaml(path), path)
    faults = [
        ConfigFault((key,), f"unknown key '{key}'; a study is named after its file")
        for key in DERIVED
        if key in content
    ]
    study, wrong = validated(Study, {**content, "name": safe(path.stem), "source": str(path)})
    faults += [*check_names(content), *map(_knob_outside, wrong)] if study is None else check(study)
    if study is None or faults:
        raise UserError(told(str(path), [ConfigFault(fault.where, _by_name(fault.text, content)) for fault in faults]))
    return study


def _by_name(text: str, content: Mapping[str, Any]) -> str:
    """A fault's text with the claim that it is about called by its name: ``falsifiers.drift.op`` for
    ``falsifiers.0.op``."""

    def named(found: re.Match[str]) -> str:
        claims, index = content.get(found[1]), int(found[2])
        claim = claims[index] if isinstance(claims, list) and index < len(claims) else None
        name = claim.get("name") if isinstance(claim, dict) else None
        return f"{found[1]}.{shown(name)}" if isinstance(name, str) and name else found[0]

    return re.sub(r"\b(hypotheses|falsifiers)\.(\d+)", named, text)


def _spelt(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content of a study's file with short forms of keys written out, wherever knobs are named."""
    found = dict(content)
    try:
        for kind in ("grid", "factors"):
            if isinstance(content.get(kind), dict):
                found[kind] = spelt(content[kind])
        if isinstance(content.get("arms"), dict):
            found["arms"] = {arm: spelt(own) if isinstance(own, dict) else own for arm, own in content["arms"].items()}
        search = content.get("search")
        if isinstance(search, dict) and isinstance(search.get("space"), dict):
            found["search"] = {**search, "space": spelt(search["space"])}
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if isinstance(pairs := content.get("interactions"), list):
        found["interactions"] = [
            [NAME if key == SHORT else key for key in pair] if isinstance(pair, list) else pair for pair in pairs
        ]
    return found


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
        profile=profile,
        baseline=name,
        seeds=(seed,),
        arms={name: dict(overrides)},
    )


def _find(name: str) -> Path:
    """A shipped study, a YAML file by its path, or NAME.yaml in the current folder."""
    if name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name:
        path = place(name)
        if is_folder(path):
            raise UserError(
                f"{path} is a folder; give the path of a study's YAML file{_listed(_files(path), ', for example')}"
            )
        if not is_file(path):
            near = nearest(path.stem, [file.stem for file in _files(path.parent)])
            raise UserError(f"no study file {shown(path, 400)}{near}; {_there_are()}")
        return path
    names, here = study_names(), Path(f"{name}.yaml").absolute()
    shipped = STUDIES / here.name if name in names else None
    if shipped and is_file(here) and not here.samefile(shipped):
        raise UserError(f"two studies are named '{name}': {shipped} and {here}; give the path of the one that is meant")
    if shipped or is_file(here):
        return shipped or here
    near = nearest(name, [*names, *(path.stem for path in _files(Path.cwd()))])
    raise UserError(f"no study '{shown(name)}'{near}; {_there_are()} (or give the path of a YAML file)")


def _there_are() -> str:
    """The studies that come with the project, and those in the current folder."""
    own = [path for path in _files(Path.cwd()) if path.parent != STUDIES]
    return f"there are: {', '.join(study_names())}{_listed(own, '; in this folder:')}"


def _files(folder: Path) -> list[Path]:
    """The YAML files of a folder that could be studies; none where it cannot be read."""
    try:
        return sorted(path for path in folder.glob("*.y*ml") if path.suffix in (".yaml", ".yml") and is_file(path))
    except OSError:
        return []


def _listed(files: Sequence[Path], words: str, most: int = 12) -> str:
    names = [path.name for path in files[:most]] + (["..."] if len(files) > most else [])
    return f"{words} {', '.join(names)}" if names else ""
