"""Base of all sections of the configuration: immutability and kinds of numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema

COMMIT = re.compile(r"[0-9a-f]{40}")
"""Commit that pins a repository of the hub."""
MOST = 10**12
"""The largest value of a setting; seeds may be larger."""
Seed = Annotated[int, Field(ge=0, le=10**18)]
Positive = Annotated[int, Field(gt=0, le=MOST)]
Width = Annotated[int, Field(gt=0, le=2**16)]
"""Width of a network built here, which is then allocated."""
Layers = Annotated[int, Field(gt=0, le=1_000)]
Tokens = Annotated[int, Field(gt=0, le=2**17)]
"""Number of tokens in one text."""
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Finite = Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)]
NonNegative = Annotated[Finite, Field(ge=0.0)]
StrictlyPositive = Annotated[Finite, Field(gt=0.0)]


T = TypeVar("T")


def distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    """Refuse a list with a value that it has already. Raises `ValueError`."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"'{value}' is given more than once")
    return values


def refuse(faults: Mapping[str, bool]) -> None:
    """Raise `ValueError` with the first fault that holds, of those in words."""
    for words, holds in faults.items():
        if holds:
            raise ValueError(words)


Distinct = Annotated[tuple[str, ...], AfterValidator(distinct)]


def _make_strict(schema: Any) -> None:
    """Make numbers and truth values strict wherever they stand. pydantic's own ``strict=True`` would also refuse a list
    where a tuple is meant, and YAML has lists alone."""
    if isinstance(schema, dict):
        if schema.get("type") in ("int", "float", "bool"):
            schema["strict"] = True
        for key, part in schema.items():
            if key not in ("metadata", "default"):
                _make_strict(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _make_strict(part)


S = TypeVar("S", bound=BaseModel)


def replaced(section: S, changes: Mapping[str, Any]) -> S:
    """A copy with the values of some dotted keys changed, which are not checked."""
    for key, value in changes.items():
        name, _, inner = key.partition(".")
        own = replaced(getattr(section, name), {inner: value}) if inner else value
        section = section.model_copy(update={name: own})
    return section


class Section(BaseModel):
    """Base of all sections: immutable, a misspelt key is an error rather than a silent default, and neither ``true``
    nor a quoted text is a number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _make_strict(schema)
        return schema


class PartSettings(Section):
    """The settings of a part of training, in a section that has the part's name (`pipeline.algorithms.kinds.PARTS`)."""

    @property
    def acts(self) -> bool:
        """Return whether these values switch the part on. Where they do not, the section is part of no key."""
        raise NotImplementedError

    def check(self, config: Any) -> None:
        """Raise `ValueError` where the rest of the configuration does not fit."""


C = TypeVar("C", bound=Section)


def with_settings(kinds: Mapping[str, Any], *conditions: Any) -> Callable[[type[C]], type[C]]:
    """A decorator that adds to a section one section for each kind that has settings: those that `kind.settings` names
    as ``module:class``, under the name of the kind, each with these conditions."""

    def made(section: type[C]) -> type[C]:
        fields: dict[str, Any] = {}
        for name, kind in kinds.items():
            if kind.settings is not None:
                settings = resolve_name(kind.settings)
                fields[name] = (Annotated[settings, *conditions], settings())
        found = create_model(section.__name__, __base__=section, __module__=section.__module__, **fields)
        found.__doc__ = section.__doc__
        return found

    return made
