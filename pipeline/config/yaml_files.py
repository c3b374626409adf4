"""YAML that people write: mappings, lists, texts and numbers, read without surprises, with the line of every entry.

YAML can hold more: a kilobyte of aliases stands for terabytes, a tag makes any value into another kind, a date is no
text. Each is refused at its line, as is a key that is written twice.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.presets import NAME, SHORT
from pipeline.errors import UserError
from pipeline.named_files import require_file
from pipeline.wording import control_character, shown

MOST_BYTES = 2**20
WHOLE = 2**63
"""Whole numbers lie below this and not below minus this: 64 bits hold them."""
TEXT = "tag:yaml.org,2002:str"
FLOAT = "tag:yaml.org,2002:float"
EXPONENT = re.compile(r"[-+]?(?:[0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)[eE][-+]?[0-9]{1,3}$")
"""Numbers such as 1e-5 and 1.5e3, which YAML 1.1 takes for texts. A commit hash stays a text, since its exponent would
have more than three digits; so does a key, such as an arm that is named 1e-5."""
_DROPPED = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value", "tag:yaml.org,2002:merge")
"""Tags of YAML for dates, ``=`` and ``<<``; here they are texts."""
FAULTS = (yaml.YAMLError, ValueError, OverflowError, LookupError, RecursionError)
"""Exceptions of PyYAML: its scanner raises ValueError at "\\U99999999", its composer RecursionError at deep lists."""
Where = tuple[str | int, ...]
"""The way to an entry: keys of mappings and positions in lists."""


class Limit(yaml.MarkedYAMLError):
    """Valid YAML that is refused."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class PlainLoader(yaml.SafeLoader):
    """SafeLoader of plain values."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            *((tag, form) for tag, form in forms if tag not in _DROPPED),
            *([(FLOAT, EXPONENT)] if first and first in "-+.0123456789" else []),
        ]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor is not None:
            raise Limit(f"anchors and aliases ('{shown(event.anchor)}') are not read; repeat it", event.start_mark)
        tag = getattr(event, "tag", None)
        if tag is not None and not (tag == TEXT and isinstance(event, yaml.ScalarEvent)):
            short = shown(tag.replace("tag:yaml.org,2002:", "!!"))
            raise Limit(f"the tag '{short}' is not read; leave it out, and put a text in quotes", event.start_mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError):  # digits or words that are none of their kind
            raise Limit(f"'{shown(node.value)}' cannot be read as a number", node.start_mark) from None
        if isinstance(value, str) and (character := control_character(value)):
            raise Limit(f"'{shown(value)}' holds the control character {character}", node.start_mark)
        if isinstance(value, int) and not -WHOLE <= value < WHOLE:
            raise Limit(f"{shown(node.value)} is beyond 64 bits; write a smaller number", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == FLOAT and EXPONENT.match(key_node.value):
                key_node.tag = TEXT
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float):
                raise Limit("a key must be a text or a number", key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key '{key}' is written twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class PlainDumper(yaml.SafeDumper):
    """Writes what `PlainLoader` reads: texts that it would take for something else are quoted."""

    yaml_implicit_resolvers = PlainLoader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping; a fault is a `UserError` that names file and line."""
    require_file(path, str(path), MOST_BYTES)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=PlainLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        refused = "" if isinstance(error, Limit) else "not valid YAML: "
        raise UserError(f"{path}, line {line}: {refused}{error.problem}") from None
    except FAULTS as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if content is None:
        raise UserError(f"{path}: the file is empty; it must be a mapping of keys to values")
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a mapping of keys to values, is a {type(content).__name__}")
    return content


def read_value(text: str) -> Any:
    """The value of a text on the command line. Raises `ValueError` with what is wrong with it."""
    try:
        return yaml.load(text, Loader=PlainLoader)  # a SafeLoader
    except Limit as error:
        raise ValueError(str(error.problem)) from None
    except FAULTS:
        raise ValueError(f"'{shown(text)}' is not a YAML value") from None


def line_of(path: Path, where: Where) -> int | None:
    """The line on which an entry of a YAML file stands, or the nearest entry around it that the file has."""
    line = None
    with suppress(OSError, UserError, *FAULTS):
        require_file(path, str(path), MOST_BYTES)
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=PlainLoader)
        for part in where:
            if (entry := _entry(node, part)) is None:
                break
            line, node = entry
    return line


def _entry(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in (str(part), SHORT if part == NAME else part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None
