"""Stages, their order, plan and run, whatever they do; a ``note`` that one returns is shown when it is built.

A stage is a plain function ``run(cfg, out, reporter, *, prompts, sft) -> dict``: its keyword-only parameters
name the stages whose artifacts it needs, so the edges are the signature. A parameter with a default names a stage that
only some trials have (`Stage.only`); in the others it is no input and part of no key. A stage can be repeated in rounds
(`Stage.rounds`): its parameter ``last_train`` is the stage ``train`` of the round before, which the first round has
not. The last round has the plain name, those before it are ``train-1``, ``train-2``: ``train`` is always what
the trial ended with. A function given as "module:function" is imported when it has to run and not before: to plan, its
signature is read from the source. Its identity (the key of its artifact) is the hash of its name, the sections of the
configuration that it declares, the precision that its networks compute in, the digests of its inputs' outputs, and its
code (`pipeline.run.code`). A stage gets only what it declares: reading another section is an `AttributeError`, so
nothing can influence a result without being part of its key.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from graphlib import TopologicalSorter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from pipeline.config.effects import content_of, value_at
from pipeline.config.trial import canonical_json, flatten
from pipeline.errors import Damaged
from pipeline.run.code import KEY_DIGITS, Code
from pipeline.run.progress import Reporter
from pipeline.run.store import Artifact, Store

PROJECT = Code(Path(__file__).parents[2])
LAST = "last_"
"""Prefix of a parameter that is an artifact of the round before."""
FREE_SECTIONS = ("runtime", "caps")
"""Sections that every stage gets and that are part of no key: the first must not change any result, the second only
where one ends."""


@dataclass(frozen=True)
class Stage:
    """One node. `sections` are attributes (``train``) or single keys (``train.temperature``) of the configuration."""

    name: str
    run: Callable[..., dict[str, Any]] | str
    """The function, or where it stands: ``pipeline.stages.sft:sft``."""
    sections: tuple[str, ...]
    kinds: Callable[[Any], Collection[str]] = lambda config: ()
    """Names of the entries of registries that the stage uses, such as the kind of a reward; their code counts."""
    resumable: bool = False
    outside: Callable[[Any], dict[str, str]] | None = None
    """Digests of what the stage reads beside its inputs (the user's own files), made from the configuration."""
    unfinished: Callable[[Any, Artifact], str | None] = lambda config, artifact: None
    """Reason to take up a finished artifact again under this configuration (a cap that ended it was raised), or
    None."""
    kept: str | None = None
    """A folder in its output that is no part of the artifact, kept so that the stage can take it up again."""
    only: Callable[[Any], bool] = lambda config: True
    """True where a trial of this configuration has the stage."""
    precision: Callable[[Any], str] | None = None
    """The precision of its networks on this machine, made from the configuration; None for a stage without networks."""
    rounds: Callable[[Any], int] | None = None
    """Number of times that a trial of this configuration has the stage; None for one that is not repeated."""
    named: Mapping[str, str] = field(default_factory=dict)
    """The stage that a parameter takes, where that has another name."""

    def inputs(self, there: Collection[str]) -> dict[str, str]:
        """The stages whose artifacts it takes, by the parameters that take them; those that not every trial has, as far
        as they are `there`."""
        if isinstance(self.run, str):
            parameters = _parameters_in_source(self.run)
        else:
            parameters = {
                one.name: one.default is one.empty
                for one in inspect.signature(self.run).parameters.values()
                if one.kind is one.KEYWORD_ONLY
            }
        named = {name: self.named.get(name, name) for name in parameters}
        return {name: stage for name, stage in named.items() if parameters[name] or stage in there}

    def function(self) -> Callable[..., dict[str, Any]]:
        """The function itself, imported. Raises `UserError` where the stage's code has changed since it was read."""
        if not isinstance(self.run, str):
            return self.run
        module, _, name = self.run.partition(":")
        function: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), name)
        PROJECT.check_unchanged(module)
        return function

    def read(self) -> None:
        if isinstance(self.run, str):
            PROJECT.modules(self.run.partition(":")[0], None)

    def code(self, config: Any) -> str:
        """Hash of its code under a configuration; empty for a function that is given itself."""
        return PROJECT.digest(self.run.partition(":")[0], self.kinds(config)) if isinstance(self.run, str) else ""


@dataclass(frozen=True)
class StagePlan:
    """The plan for a stage. `key` is None while a stage above it has still to run."""

    stage: str
    key: str | None
    cached: bool
    reason: str | Callable[[], str] = field(compare=False, repr=False)
    """Gives `why`: it may read every artifact of the stage."""
    digest: str | None = None
    """Digest of the artifact that is there."""

    @cached_property
    def why(self) -> str:
        return self.reason if isinstance(self.reason, str) else self.reason()


def stages_of(stages: Sequence[Stage], config: Any) -> list[Stage]:
    """Return the stages that a trial of this configuration has, in topological order, each round of a repeated one by
    itself.

    Raises `CycleError` where stages depend on each other in a circle, and `KeyError` where one needs a stage that the
    trial does not have.
    """
    chosen = [stage for stage in stages if stage.only(config)]
    repeated = {stage.name for stage in chosen if stage.rounds}
    by_name = {one.name: one for stage in chosen for one in _in_rounds(stage, config, repeated)}
    edges = {name: stage.inputs(by_name).values() for name, stage in by_name.items()}
    return [by_name[name] for name in TopologicalSorter(edges).static_order()]


def _in_rounds(stage: Stage, config: Any, repeated: Collection[str]) -> list[Stage]:
    count = stage.rounds(config) if stage.rounds else 1
    if count == 1:
        return [stage]
    return [
        replace(
            stage,
            name=round_name(stage.name, number, count),
            named={name: round_name(name, number, count) for name in repeated}
            | {f"{LAST}{name}": round_name(name, number - 1, count) for name in repeated if number > 1},
        )
        for number in range(1, count + 1)
    ]


def round_name(stage: str, number: int, count: int) -> str:
    """Return the name of a repeated stage in one of its rounds.

    >>> [round_name("train", number, 3) for number in (1, 2, 3)]
    ['train-1', 'train-2', 'train']
    """
    return stage if number == count else f"{stage}-{number}"


def run(
    stages: Sequence[Stage], config: BaseModel, store: Store, reporter: Reporter, until: str | None = None
) -> dict[str, Artifact]:
    """Bring every stage (up to and with `until`) into the store, building only what is not there."""
    done: dict[str, Artifact] = {}
    for stage in stages_of(stages, config):
        identity = _identity(stage, config, {name: upstream.digest for name, upstream in done.items()})
        key, artifact = _key(identity), None
        with suppress(Damaged):  # `Store.build` deals with it under its lock
            artifact = store.find(stage.name, key)
        if artifact and stage.unfinished(config, artifact) is None:
            reporter.stage(stage.name, "cached", key)
        else:
            reporter.stage(stage.name, "building", key)
            inputs = {name: done[need] for name, need in stage.inputs(done).items()}
            make = partial(stage.function(), _view(stage, config), reporter=reporter, **inputs)
            artifact = store.build(
                stage.name,
                key,
                identity,
                make,
                resumable=stage.resumable,
                final=lambda found, stage=stage: stage.unfinished(config, found) is None,  # type: ignore[misc]
                kept=stage.kept,
            )
            note = artifact.meta.get("note")
            reporter.stage(stage.name, "built", f"{key}: {note}" if note else key)
        done[stage.name] = artifact
        if stage.name == until:
            break
    return done


def plan(stages: Sequence[Stage], config: BaseModel, store: Store) -> list[StagePlan]:
    """Plan what `run` would do, and why; builds nothing. A stage below one that has to run has no key yet."""
    ordered = stages_of(stages, config)
    there = {stage.name for stage in ordered}
    digests: dict[str, str] = {}
    result = []
    for stage in ordered:
        if waiting := [need for need in stage.inputs(there).values() if need not in digests]:
            result.append(StagePlan(stage.name, None, False, f"waits for {', '.join(waiting)}"))
            continue
        identity = _identity(stage, config, digests)
        key, artifact, again = _key(identity), None, None
        try:
            artifact = store.find(stage.name, key, weights=False)  # a plan reads none
            again = stage.unfinished(config, artifact) if artifact else None
        except Damaged as error:
            again = f"damaged: {error.path.name}: {error.why}"
        if artifact and again is None:
            digests[stage.name] = artifact.digest
            result.append(StagePlan(stage.name, key, True, "same configuration, inputs and code", artifact.digest))
        else:
            result.append(StagePlan(stage.name, key, False, again or partial(_why, identity, store)))
    return result


def _view(stage: Stage, config: Any) -> SimpleNamespace:
    """The part of the configuration that the stage declares, and no more."""
    view = SimpleNamespace(**{name: getattr(config, name) for name in FREE_SECTIONS if hasattr(config, name)})
    for name in stage.sections:
        section, _, field = name.partition(".")
        if not field:
            setattr(view, section, getattr(config, section))
        else:
            setattr(vars(view).setdefault(section, SimpleNamespace()), field, value_at(config, name))
    return view


def likeness(stages: Sequence[Stage], config: Any) -> dict[str, str]:
    """Return, by stage, a digest of its part of the configuration and of the stages that it is made from: trials with
    equal ones share it. Reads no file."""
    found: dict[str, str] = {}
    for stage in stages_of(stages, config):
        inputs = {need: found[need] for need in stage.inputs(found).values()}
        found[stage.name] = _key({"config": _configured(stage, config), "inputs": inputs})
    return found


def _configured(stage: Stage, config: Any) -> dict[str, Any]:
    values = {name: value_at(config, name) for name in stage.sections}
    acting = {name: content_of(one, config) if isinstance(one, BaseModel) else one for name, one in values.items()}
    return dict(flatten(acting))


def _identity(stage: Stage, config: Any, digests: Mapping[str, str]) -> dict[str, Any]:
    values = _configured(stage, config)
    if stage.outside:
        values |= flatten({"outside": stage.outside(config)})
    if stage.precision:
        values["precision"] = stage.precision(config)
    return {
        "stage": stage.name,
        "config": values,
        "inputs": {need: digests[need] for need in stage.inputs(digests).values()},
        "code": stage.code(config),
    }


def _key(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:KEY_DIGITS]


def _why(identity: Mapping[str, Any], store: Store) -> str:
    """The difference to the nearest artifact of the same stage, in words."""
    differences = [_difference(identity, other) for other in store.identities(identity["stage"])]
    return min(differences, key=len) if differences else "never built"


def _difference(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    before, after = old["config"], new["config"]
    parts = [
        f"{key} {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in after
        if before.get(key) != after[key]
    ]
    parts += [f"{key} is gone" for key in before if key not in after]
    parts += [f"{need} changed" for need, digest in new["inputs"].items() if old["inputs"].get(need) != digest]
    parts += ["code changed"] if old["code"] != new["code"] else []
    return "; ".join(parts)


@lru_cache(maxsize=64)
def _parameters_in_source(reference: str) -> Mapping[str, bool]:
    """Keyword-only parameters of ``module:function``, and whether they have no default, read from its file. Raises
    `ValueError` where there is no such function."""
    module, _, name = reference.partition(":")
    tree = ast.parse((PROJECT.root / module.replace(".", "/")).with_suffix(".py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            defaults = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return {argument.arg: default is None for argument, default in defaults}
    raise ValueError(f"a stage names '{reference}', which does not exist")
