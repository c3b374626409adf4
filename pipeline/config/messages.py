"""Faults in what people write, one line each: the key, the value, what is allowed and the nearest right name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.config.names import meant_key, nearest
from pipeline.config.yaml_files import Where
from pipeline.errors import UserError
from pipeline.wording import shown

M = TypeVar("M", bound=BaseModel)
MOST_FAULTS = 20
"""Number of faults that are put into words: to look for the name that was meant takes milliseconds for each."""

PLAIN = {
    "tuple": "must be a list, such as [1, 2]",
    "list": "must be a list, such as [1, 2]",
    "dict": "must be a mapping of keys to values, for example {kl.beta: 0.1}",
    "model": "must be a mapping of keys to values",
    "string_too_short": "must not be empty",
    "string_type": "must be a text",
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "finite": "must be a finite number",
}
"""Beginnings of pydantic's kinds of faults whose own words are those of a programmer."""


class ConfigFault(NamedTuple):
    """One fault, and the way to the entry that has it."""

    where: Where
    text: str


def validate(model: type[M], content: Mapping[str, Any], origin: str) -> M:
    """Validate, turning pydantic's report into one `UserError` line per fault."""
    made, faults = validated(model, content)
    if made is None:
        raise UserError("\n".join(f"{origin}: {fault.text}" for fault in faults))
    return made


def validated(model: type[M], content: Mapping[str, Any]) -> tuple[M | None, list[ConfigFault]]:
    """The model, or every fault that keeps the content from being one."""
    try:
        return model.model_validate(content), []
    except ValidationError as error:
        faults = error.errors(include_url=False)[:MOST_FAULTS]
        return None, [ConfigFault(tuple(fault["loc"]), _explain(model, fault)) for fault in faults]


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return what is wrong with a key that no configuration has."""
    return f"unknown key '{shown(key)}'{meant_key(key, list(known))}"


def _explain(model: type[BaseModel], fault: Any) -> str:
    of_key = fault["loc"][-1:] == ("[key]",) and fault["type"] == "value_error"
    loc = fault["loc"][:-2] if of_key else fault["loc"]  # the text names the key itself
    key, context = ".".join(shown(part) for part in loc), fault.get("ctx", {})
    if fault["type"] == "extra_forbidden":
        outer = key.rpartition(".")[0]
        return unknown_key(key, [f"{outer}.{name}" if outer else name for name in _fields_at(model, fault["loc"][:-1])])
    if fault["type"] == "missing":
        of_list = isinstance(fault["loc"][-1], int)
        return f"{key.rpartition('.')[0]}: has too few entries" if of_list else f"key '{key}' is missing"
    if fault["type"] == "too_long":
        return f"{key}: has {context['actual_length'] or 'more'} entries; at most {context['max_length']} are allowed"
    if fault["type"] == "too_short":
        return f"{key}: has {context['actual_length']} entries; at least {context['min_length']} are needed"
    plain = next((words for kind, words in PLAIN.items() if fault["type"].startswith(kind)), None)
    message = plain or str(fault["msg"]).removeprefix("Value error, ")
    message = message[0].lower() + message[1:].replace("nput should be", "nput must be", 1)
    if fault["type"] == "literal_error":
        message += nearest(str(fault["input"]), context["expected"].split("'")[1::2])  # 'a', 'b' or 'c'
    if not key or fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    if fault["loc"][-1] == "[key]":
        outer = ".".join(str(part) for part in fault["loc"][:-2])
        return f"{outer}: the name {_yaml(fault['input'])} must be a text; put it in quotes"
    return f"{key} = {_yaml(fault['input'])}: {message.removeprefix('input ')}"


def _yaml(value: Any) -> str:
    """A value as it stands in YAML, where that differs from Python; of a long one the ends."""
    plain = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else None
    return plain or shown(repr(value))


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location:
        info = model.model_fields.get(str(part))
        annotation = info.annotation if info else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        models = [member for member in candidates if isinstance(member, type) and issubclass(member, BaseModel)]
        if models:
            model = models[0]
    return list(model.model_fields)
