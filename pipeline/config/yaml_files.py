"""YAML files that people write: read without surprises, and with the line of every entry for messages."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.presets import NAME, SHORT
from pipeline.config.yaml_limits import MOST_BYTES, Limit, PlainLoader
from pipeline.errors import UserError
from pipeline.named_files import require_file, state
from pipeline.wording import shown

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
    require_file(path, str(path), MOST_BYTES)
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.load(text, Loader=PlainLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        if not isinstance(error, Limit) and (opened := _open_quote(text, error)) is not None:
            raise UserError(
                f"{path}, line {opened + 1}: not valid YAML: the quote that opens here is not closed"
            ) from None
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}, line {line}: {_plainly(error)}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the scanner raises these at "\\U99999999"
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if content is None:
        raise UserError(f"{path}: the file is empty; it must be a mapping of keys to values")
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a mapping of keys to values, is a {type(content).__name__}")
    return content


def read_value(text: str) -> Any:
    """The value that a text on the command line stands for, within the limits of a file. Raises `ValueError` with what
    is wrong with it."""
    try:
        return yaml.load(text, Loader=PlainLoader)  # a SafeLoader
    except Limit as error:
        raise ValueError(str(error.problem)) from None
    except (yaml.YAMLError, ValueError, OverflowError):
        raise ValueError(f"'{shown(text)}' is not a YAML value") from None


def line_of(path: Path, where: Where) -> int | None:
    """The line on which an entry of a YAML file stands, or the nearest entry around it that the file has."""
    found = state(path)
    node = _composed(path, found.st_mtime_ns, found.st_size) if found is not None else None
    line = None
    for part in where:
        entry = _entry(node, part)
        if entry is None:
            break
        line, node = entry
    return line


@lru_cache(maxsize=4)
def _composed(path: Path, modified_ns: int, size: int) -> yaml.Node | None:
    """The nodes of a file, read once for all its faults; None where it cannot be read."""
    try:
        require_file(path, str(path), MOST_BYTES)
        node: yaml.Node | None = yaml.compose(path.read_text(encoding="utf-8"), Loader=PlainLoader)
    except (OSError, ValueError, OverflowError, yaml.YAMLError, UserError):
        return None
    return node


def _entry(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in (str(part), SHORT if part == NAME else part):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def _open_quote(text: str, error: yaml.MarkedYAMLError) -> int | None:
    """Return the line where an unclosed quote opens, or None if the error has another cause."""
    end = error.problem_mark.line if error.problem_mark else -1
    begun = error.context_mark
    if begun and begun.line < end and text[begun.index] in "'\"" and "escape" not in str(error.problem):
        return int(begun.line)
    with suppress(yaml.YAMLError, ValueError, OverflowError):
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            quoted = isinstance(token, yaml.ScalarToken) and token.style in ("'", '"')
            if quoted and token.start_mark.line < token.end_mark.line == end:
                return int(token.start_mark.line)
    return None


def _plainly(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if isinstance(error, Limit):
        return problem
    return "not valid YAML: " + next((words for sign, words in PLAIN.items() if sign in problem), problem)
