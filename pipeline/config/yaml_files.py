"""YAML files that people write: read without surprises, and with the line of every entry for messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline.config.presets import NAME, SHORT
from pipeline.errors import UserError

PLAIN = {
    "'\\t'": "a tab stands where YAML wants spaces; indent with spaces",
    "<block end>": "the indentation does not fit the lines above",
    "mapping values are not allowed here": (
        "a colon stands where none can: indent the line as its neighbours are, or quote the text"
    ),
    "found another document": "a second document begins ('---'); a file has one",
}
"""The parser's complaints that people meet most, in other words."""
Where = tuple[str | int, ...]
"""The way to an entry: keys of mappings and positions in lists."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping; a fault is a `UserError` that names file and line."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}, line {line}: not valid YAML: {_plainly(error)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{path}: not valid YAML: nested too deeply") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if content is None:
        raise UserError(f"{path}: the file is empty; it must be a mapping of keys to values")
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a mapping of keys to values, is a {type(content).__name__}")
    return content


def line_of(path: Path, where: Where) -> int | None:
    """The line on which an entry of a YAML file stands, or the nearest entry around it that the file has."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    line = None
    for part in where:
        entry = _entry(node, part)
        if entry is None:
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


def _plainly(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    return next((words for sign, words in PLAIN.items() if sign in problem), problem)


class _UniqueKeys(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, where YAML would keep the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"key '{key}' is written twice", problem_mark=key_node.start_mark)
            if isinstance(key, str | int | float):
                seen.add(key)
        return super().construct_mapping(node, deep)
