"""Reads YAML and ``--set`` into a configuration, or reports every fault in them at once.

A profile (``pipeline/profiles/*.yaml``) is a complete `TrialConfig`; studies and ``--set`` change single dotted keys of
it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.config.effects import inert, value_at
from pipeline.config.names import meant_key, nearest
from pipeline.config.presets import preset_of, spelled_out
from pipeline.config.train import TrainConfig
from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import Where, line_of, read_value, read_yaml
from pipeline.errors import UserError
from pipeline.named_files import require_file
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

PROFILES = Path(__file__).parents[1] / "profiles"
MAPPINGS = ("reward.parts", "reward.settings", "judge.also", "judge.settings")
"""Keys whose values are mappings with names of the user's: single entries of them can be changed too."""


class ConfigFault(NamedTuple):
    """One fault, and the way to the entry that has it."""

    where: Where
    text: str


def profile_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def dotted_keys(model: type[BaseModel] = TrialConfig, prefix: str = "") -> list[str]:
    """Every key that ``--set`` and a study's arms can name."""
    keys: list[str] = []
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            keys += dotted_keys(info.annotation, f"{prefix}{name}.")
        elif prefix:
            keys.append(f"{prefix}{name}")
    return keys


def load_config(
    profile: str,
    overrides: Mapping[str, Any] | None = None,
    origin: str = "--set",
    below: Mapping[str, Any] | None = None,
) -> TrialConfig:
    """Read a profile and change single keys of it.

    `overrides` maps dotted keys (``kl.beta``) to values; those of `below` are changed first. Raises `UserError`
    with one line per fault: the key, the value, what is allowed and the nearest right name; `origin` is the place
    of the overrides in these lines.
    """
    config, faults = read_config(profile, overrides or {}, below or {})
    if config is None:
        where = origin if overrides or below else str(PROFILES / f"{profile}.yaml")
        raise UserError("\n".join(f"{where}: {fault.text}" for fault in faults))
    return config


def read_config(
    profile: str, overrides: Mapping[str, Any], below: Mapping[str, Any]
) -> tuple[TrialConfig | None, list[ConfigFault]]:
    """Load as `load_config` does, but return all faults, each with the key of the override that has it. Raises
    `UserError` for an unknown profile."""
    names = profile_names()
    if profile not in names:
        raise UserError(f"no profile '{profile}'{nearest(profile, names)}; there are: {', '.join(names)}")
    below, overrides = spelled_out(below), spelled_out(overrides)
    path = PROFILES / f"{profile}.yaml"
    require_file(path, str(path))
    content: dict[str, Any] = {"profile": profile, **_read_profile(path, path.stat().st_mtime_ns)}
    train = TrainConfig.model_validate(content.get("train", {}))
    content, _ = _changed(content, preset_of(train.steps_per_update, below, overrides))
    under, faults = _changed(content, below)
    content, wrong = _changed(under, overrides)
    config, refused = validated(TrialConfig, content)
    faults += [*wrong, *(ConfigFault(_override(fault, {**below, **overrides}), fault.text) for fault in refused)]
    if config is not None:
        faults += _inert(config, under, overrides)
    return (None if faults else config), faults


def _changed(content: dict[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], list[ConfigFault]]:
    """The sections with dotted keys changed, and a fault for each key that cannot be."""
    faults = []
    for key, value in changes.items():
        try:
            check_key(key)
            content = _with(content, key.split("."), value, key)
        except UserError as error:
            faults.append(ConfigFault((key,), str(error)))
    return content, faults


def _inert(config: TrialConfig, under: dict[str, Any], overrides: Mapping[str, Any]) -> list[ConfigFault]:
    """Overrides that have no effect in `config`; those that repeat what is under them are none."""
    idle = [(key, leaf, why) for key, value in overrides.items() for leaf, why in _idle(config, key, value)]
    base = validated(TrialConfig, under)[0] if idle else None
    return [
        ConfigFault((key,), why)
        for key, leaf, why in idle
        if base is None or value_at(base, leaf) != value_at(config, leaf)
    ]


def _idle(config: TrialConfig, key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The keys in an override, which can be a mapping, that have no effect, and why."""
    if why := inert(config, key):
        yield key, why
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _idle(config, f"{key}.{name}", inner)


@lru_cache(maxsize=1024)  # a study's arms have few keys
def check_key(key: str) -> None:
    """Refuse a key that no configuration has. Below a mapping (``reward.parts.<name>.weight``) it may go on."""
    known = dotted_keys()
    if key not in known and not any(key.startswith(f"{name}.") for name in MAPPINGS):
        raise UserError(f"unknown key '{shown(key)}'{meant_key(key, known)}")


def _override(fault: ConfigFault, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """The override whose value is at fault; nothing where it is a whole section, or the profile."""
    ways = (".".join(map(str, fault.where[:depth])) for depth in range(len(fault.where), 1, -1))
    return next(((way,) for way in ways if way in changes), ())


def _with(old: Mapping[str, Any], path: list[str], value: Any, key: str) -> dict[str, Any]:
    """`old` with the entry at `path` replaced. A section that is not there begins empty, but a name of the user's in a
    mapping must be there. Raises `UserError`."""
    name, *deeper = path
    if not deeper:
        return {**old, name: value}
    below, outer = old.get(name), ".".join(key.split(".")[: -len(path)])
    if not isinstance(below, Mapping):
        if outer in MAPPINGS:
            raise UserError(
                f"{key}: there is no '{name}' to change{nearest(name, list(old))}; there are:"
                f" {', '.join(old) or 'none'}"
            )
        below = {}
    return {**old, name: _with(below, deeper, value, key)}


@lru_cache(maxsize=16)
def _read_profile(path: Path, modified_ns: int) -> dict[str, Any]:
    """A profile's content, read and checked once: a large study needs it for every cell. Not to be changed by the
    caller. Raises `UserError` with file and line."""
    content = read_yaml(path)
    _, faults = validated(TrialConfig, {"profile": path.stem, **content})
    if faults:
        places = ((line_of(path, fault.where), fault.text) for fault in faults)
        raise UserError(
            "\n".join(f"{path}, line {line}: {text}" if line else f"{path}: {text}" for line, text in places)
        )
    return content


def parse_set(assignments: list[str]) -> dict[str, Any]:
    """Turn ``["kl.beta=0.1"]`` into ``{"kl.beta": 0.1}``; values are read as YAML.

    >>> parse_set(["kl.beta=0.1", "data.prompt_length=[3, 5]"])
    {'kl.beta': 0.1, 'data.prompt_length': [3, 5]}
    """
    result: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set '{shown(text)}': write it as section.key=value, for example kl.beta=0.1")
        try:
            result[key.strip()] = read_value(value)
        except ValueError as error:
            raise UserError(f"--set '{shown(text)}': {error}") from None
    return spelled_out(result)


def validate(model: type[M], content: Mapping[str, Any], origin: str) -> M:
    """Build the model. Raises `UserError` with a line per fault, each beginning with `origin`."""
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


def _explain(model: type[BaseModel], fault: Any) -> str:
    of_key = fault["loc"][-1:] == ("[key]",) and fault["type"] == "value_error"
    loc = fault["loc"][:-2] if of_key else fault["loc"]  # the text names the key itself
    key, context = ".".join(shown(part) for part in loc), fault.get("ctx", {})
    if fault["type"] == "extra_forbidden":
        outer = key.rpartition(".")[0]
        known = [f"{outer}.{name}" if outer else name for name in _fields_at(model, fault["loc"][:-1])]
        return f"unknown key '{key}'{meant_key(key, known)}"
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
