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

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, create_model

from pipeline.config.loading import ConfigFault, validated
from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.named_files import is_file
from pipeline.rewards.settings import ScorerConfig
from pipeline.wording import in_words

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.rewards.base import Completions

_folders: list[str] = []


def search_in(folder: str | None) -> None:
    """Look for the user's modules in a folder too, from now on in this process."""
    _folders[:] = [folder] if folder else []


def _places(folder: str | None) -> list[str]:
    given = [folder] if folder else _folders
    return [*given, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def file_of(kind: str, folder: str | None) -> Path | None:
    """The file of a class's module, found without importing anything; None where there is none."""
    module = Path(*kind.partition(":")[0].split("."))
    files = (Path(place, module) for place in _places(folder))
    both = (one for file in files for one in (file.with_suffix(".py"), file / "__init__.py"))
    return next(filter(is_file, both), None)


def check_file(key: str, kind: str, folder: str | None) -> Path:
    """The file of a class's module. Raises `UserError` where there is none."""
    file = file_of(kind, folder)
    if file is None:
        raise UserError(
            f"{key} = '{kind}': there is no module '{kind.partition(':')[0]}'; searched (the folder of the study file,"
            f" PYTHONPATH): {', '.join(_places(folder)) or 'nothing'}"
        )
    return file


def _class_of(key: str, kind: str, folder: str | None) -> type[Any]:
    """The class, imported. Raises `UserError` where it cannot be, or is no scorer."""
    file, (module, _, name) = check_file(key, kind, folder), kind.partition(":")
    before = sys.path[:]
    sys.path[:0] = _places(folder)
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the user's code raises
        raise UserError(f"{key} = '{kind}': {file} could not be imported ({in_words(error)})") from None
    finally:
        sys.path[:] = before
    if Path(found.__file__ or "").resolve() != file.resolve():
        raise UserError(f"{key} = '{kind}': '{module}' is already the name of {found.__file__}; rename {file}")
    made = getattr(found, name, None)
    if not isinstance(made, type):
        raise UserError(f"{key} = '{kind}': {file} has no class '{name}'{nearest(name, vars(found))}")
    if not any("__call__" in vars(base) for base in made.__mro__):
        raise UserError(f"{key} = '{kind}': the class cannot score; give it __call__(self, completions)")
    return made


def _settings_of(section: str, scorer: ScorerConfig, own: type[Any]) -> tuple[BaseModel, list[ConfigFault]]:
    """The validated settings of a class, and every fault. A class without Settings takes none."""
    given: dict[str, Any] = scorer.settings
    model: type[BaseModel] = type("Settings", (getattr(own, "Settings", BaseModel),), {}, extra="forbid")
    whole = model
    for name in reversed([*section.split("."), "settings"]):  # so that faults name the whole key
        whole, given = create_model(name, **{name: (whole, ...)}), {name: given}  # type: ignore[call-overload]
    _, faults = validated(whole, given)
    return model.model_construct() if faults else model.model_validate(scorer.settings), faults


def faults(section: str, scorer: ScorerConfig, folder: str | None) -> list[tuple[str, str]]:
    """Return the faults that keep a class from scoring: the key and the words of each."""
    try:
        own = _class_of(f"{section}.kind", scorer.kind, folder)
    except UserError as error:
        return [(f"{section}.kind", str(error))]
    return [(".".join(map(str, fault.where)), fault.text) for fault in _settings_of(section, scorer, own)[1]]


class OwnReward:
    """A `Reward` by the user's class. Scoring raises `UserError` where it fails, or does not give a finite number for
    each completion; making it where class or settings do not fit."""

    def __init__(self, section: str, scorer: ScorerConfig) -> None:
        self._name = f"{section}.kind = '{scorer.kind}'"
        own = _class_of(f"{section}.kind", scorer.kind, None)
        settings, wrong = _settings_of(section, scorer, own)
        if wrong:
            raise UserError("\n".join(fault.text for fault in wrong))
        try:
            self._score = own(settings) if hasattr(own, "Settings") else own()
        except Exception as error:  # whatever the user's code raises
            raise UserError(f"{self._name}: could not be made ({in_words(error)})") from None
        self.networks: Sequence[Any] = tuple(getattr(self._score, "networks", ()))

    def __call__(self, completions: Completions) -> Tensor:
        import torch  # a plan looks for files alone

        try:
            with torch.inference_mode():
                scores = torch.as_tensor(self._score(completions), dtype=torch.float32).cpu()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self._name}: scoring failed ({in_words(error)})") from None
        if scores.shape != (len(completions.texts),) or not bool(scores.isfinite().all()):
            raise UserError(
                f"{self._name}: it must give a finite number for each of {len(completions.texts)} completions, and gave"
                f" {scores.tolist()!r:.200}"
            )
        return scores
