"""Conditions under which a setting has an effect, written beside its field or section.

    horizon: Annotated[StrictlyPositive, setting("kl.control", "adaptive")] = Field(10_000, description=...)
    ocr: Annotated[OcrSettings, Chosen("kind")] = OcrSettings()

A setting acts where its own conditions hold and those of the sections around it. One that cannot act is refused where
a user makes it (``--set``, an arm, a search space), because two trials that differ in it alone would differ in name
only. A profile may hold values for switches that are off, so that turning one on is enough. A section that does not act
is part of no key (`content_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline.config.base import PartSettings

Config = Any
"""A `pipeline.config.trial.TrialConfig`, which is made in the layer above."""


@dataclass(frozen=True)
class When:
    """Something that has to hold in the rest of the configuration."""

    words: str
    holds: Callable[[Config], bool]
    switch: str
    """The key whose present value a message shows."""


@dataclass(frozen=True)
class Beside(When):
    """The same of the section that the setting is in, whichever that is: `words` and `switch` begin with its field."""


@dataclass(frozen=True)
class Chosen:
    """A section that acts where the field `selector` beside it has the section's name, such as ``kind: ocr``."""

    selector: str


class Always:
    """A setting that acts even where the section around it does not."""


def setting(key: str, *values: str | int) -> When:
    """The key has one of these values."""
    listed = " or ".join(str(value).lower() for value in values)
    return When(f"{key}: {listed}", lambda config: value_at(config, key) in values, key)


def given(key: str) -> When:
    """The key is set."""
    return When(key, lambda config: value_at(config, key) is not None, key)


def absent(key: str) -> When:
    """The key is not set."""
    return When(f"no {key}", lambda config: value_at(config, key) is None, key)


def above(key: str, least: int = 0) -> When:
    """The key is more than `least`."""
    return When(f"{key} above {least}", lambda config: bool(value_at(config, key) > least), key)


def value_at(config: Any, key: str) -> Any:
    """The value of a dotted key; None below a name that a mapping of the configuration does not have."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return config


def inert(config: Config, key: str) -> str | None:
    """Explain why a setting has no effect in this configuration; None where it has one."""
    for condition in conditions(type(config), key):
        if not condition.holds(config):
            value = value_at(config, key)
            made = key if isinstance(value, Mapping | BaseModel) else f"{key} = {_word(value)}"
            now = f"{condition.switch} is {_word(value_at(config, condition.switch))}"
            return f"{made} has no effect while {now}: it needs {condition.words}; change that, or leave {key} out"
    return None


def fields_along(model: type[BaseModel], key: str) -> list[FieldInfo | None]:
    """The field of each part of a dotted key; None of a name of the user's in a mapping, and of an unknown key."""
    around: Any = model
    found: list[FieldInfo | None] = []
    for name in key.split("."):
        field = around.model_fields.get(name) if isinstance(around, type) and issubclass(around, BaseModel) else None
        around = field.annotation if field else next(iter(get_args(around)[1:]), Any)
        found.append(field)
    return found


def conditions(model: type[BaseModel], key: str) -> list[When]:
    """Everything that has to hold for a key to act: conditions of the sections around it, then its own."""
    found: list[When] = []
    names = key.split(".")
    for depth, field in enumerate(fields_along(model, key)):
        if field is not None:
            around = [] if any(isinstance(one, Always) for one in field.metadata) else found
            found = [*around, *_own(field, ".".join(names[:depth]), names[depth])]
    return found


def _own(field: FieldInfo, owner: str, name: str) -> Iterator[When]:
    """The conditions of a field of the section that is at the key `owner`."""
    for one in field.metadata:
        if isinstance(one, Beside):
            yield When(
                f"{owner}.{one.words}",
                lambda config, one=one: one.holds(value_at(config, owner)),  # type: ignore[misc]
                f"{owner}.{one.switch}",
            )
        elif isinstance(one, Chosen):
            yield setting(f"{owner}.{one.selector}", name)
        elif isinstance(one, When):
            yield one


def content_of(section: BaseModel, config: Config, acts: bool = True) -> dict[str, Any]:
    """The settings of a section, or of a whole configuration, that are part of a key, as JSON's values: those of
    sections that act. `config` is the whole configuration."""
    acts = acts and (section.acts if isinstance(section, PartSettings) else True)
    dumped, found = section.model_dump(mode="json"), dict[str, Any]()
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        sections = [value] if isinstance(value, BaseModel) else list(value.values()) if isinstance(value, dict) else []
        if any(isinstance(one, BaseModel) for one in sections):
            holds = acts and all(_holds(one, section, name, config) for one in field.metadata)
            if isinstance(value, BaseModel):
                content = content_of(value, config, holds)
            else:
                content = {key: content_of(one, config) for key, one in value.items() if holds}
            found |= {name: content} if content else {}
        elif acts or any(isinstance(one, Always) for one in field.metadata):
            found[name] = dumped[name]
    return found


def _holds(one: Any, section: BaseModel, name: str, config: Config) -> bool:
    if isinstance(one, Chosen):
        return bool(getattr(section, one.selector) == name)
    return not isinstance(one, When) or one.holds(section if isinstance(one, Beside) else config)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
