"""A reward or a judge of the user's own: ``kind: package.module:Class``.

    class Short:
        class Settings(pydantic.BaseModel):          # optional
            longest: int = 20

        def __init__(self, settings): ...            # without `Settings` it is made without arguments

        def __call__(self, completions):             # completions.prompts, completions.texts
            return [-abs(len(text) - self.longest) for text in completions.texts]

It returns a finite number for each completion, and higher is better. The module is looked for in the folder of the
study file (`runtime.code`), then on PYTHONPATH, and imported by the commands that train, score or serve; a plan or a
report only reads its text. The digest of its file is part of the keys of what it scores. Files that it imports are
not.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.config.messages import unknown_key, validated
from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.named_files import is_file
from pipeline.rewards.settings import Scorer

_folders: list[str] = []


def search_in(folder: str | None) -> None:
    """Look for the user's modules in a folder too, from now on in this process."""
    _folders[:] = [folder] if folder else []


def file_of(kind: str, folder: str | None) -> Path | None:
    """The file of a class's module, found without importing anything; None where there is none."""
    return next((file for _, file in _found(kind, folder)), None)


def _found(kind: str, folder: str | None) -> Iterator[tuple[str, Path]]:
    """Folders that have the module, with its file."""
    module = Path(*kind.partition(":")[0].split("."))
    for place in _places(folder):
        for file in (Path(place, module).with_suffix(".py"), Path(place, module, "__init__.py")):
            if is_file(file):
                yield place, file


def _places(folder: str | None) -> list[str]:
    given = [folder] if folder else _folders
    return [*given, *(place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place)]


def check_file(key: str, kind: str, folder: str | None) -> Path:
    """The file of a class's module. Raises `UserError` where there is none, or it has no class of the name."""
    module, _, name = kind.partition(":")
    file = file_of(kind, folder)
    if file is None:
        raise UserError(
            f"{key} = '{kind}': there is no module '{module}'; searched (the folder of the study file, PYTHONPATH):"
            f" {', '.join(_places(folder)) or 'nothing'}"
        )
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{key} = '{kind}': {file} cannot be read ({error})") from None
    names = [node.name for node in body if isinstance(node, ast.ClassDef)]
    names += [one.asname or one.name for node in body if isinstance(node, ast.ImportFrom) for one in node.names]
    if not {name, "*"} & {*names}:
        raise UserError(f"{key} = '{kind}': {file} has no class '{name}'{nearest(name, names)}")
    return file


def class_of(key: str, kind: str, folder: str | None) -> type[Any]:
    """The class, imported. Raises `UserError` where it cannot be, or is no scorer."""
    file = check_file(key, kind, folder)
    module, _, name = kind.partition(":")
    place = next(place for place, found in _found(kind, folder) if found == file)
    sys.path.insert(0, place)
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"{key} = '{kind}': {file} could not be imported ({words(error)})") from None
    finally:
        sys.path.remove(place)
    if Path(found.__file__ or "").resolve() != file.resolve():
        raise UserError(f"{key} = '{kind}': '{module}' is already the name of {found.__file__}; rename {file}")
    made = getattr(found, name, None)
    if not isinstance(made, type):
        raise UserError(f"{key} = '{kind}': {file} has no class '{name}'{nearest(name, vars(found))}")
    if not any("__call__" in vars(base) for base in made.__mro__):
        raise UserError(f"{key} = '{kind}': the class cannot score; give it __call__(self, completions)")
    settings = getattr(made, "Settings", None)
    if settings is not None and not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise UserError(f"{key} = '{kind}': its Settings must be a pydantic.BaseModel")
    return made


def settings_of(key: str, made: type[Any], given: Mapping[str, Any]) -> tuple[BaseModel | None, list[tuple[str, str]]]:
    """The validated settings of a class that has some, and every fault in those that are given: its key and what is
    wrong."""
    model: type[BaseModel] | None = getattr(made, "Settings", None)
    if model is None:
        return None, [
            (f"{key}.{name}", f"{key}.{name}: {made.__name__} has no Settings; leave it out") for name in given
        ]
    known = [f"{key}.{name}" for name in model.model_fields]
    unknown = [f"{key}.{name}" for name in given if name not in model.model_fields]
    faults = [(one, unknown_key(one, known)) for one in unknown]
    settings, wrong = validated(model, given)
    faults += [(".".join([key, *map(str, fault.where)]), f"{key}.{fault.text}") for fault in wrong]
    return settings, faults


def faults(section: str, scorer: Scorer, folder: str | None) -> list[tuple[str, str]]:
    """What keeps a class from scoring: the key of each fault and its words."""
    try:
        made = class_of(f"{section}.kind", scorer.kind, folder)
    except UserError as error:
        return [(f"{section}.kind", str(error))]
    return settings_of(f"{section}.settings", made, scorer.settings)[1]


def made(section: str, scorer: Scorer) -> Any:
    """An instance of the class that a section names. Raises `UserError` where class or settings do not fit."""
    key = f"{section}.kind"
    own = class_of(key, scorer.kind, None)
    settings, wrong = settings_of(f"{section}.settings", own, scorer.settings)
    if wrong:
        raise UserError("\n".join(text for _, text in wrong))
    try:
        return own() if settings is None else own(settings)
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"{key} = '{scorer.kind}': could not be made ({words(error)})") from None


def words(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
