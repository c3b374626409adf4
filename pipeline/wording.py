"""Text of a user, put into a message: no character that a terminal obeys, and no more than can be read.

Imports nothing of the project, so that every layer can use it."""

from __future__ import annotations

import re

MOST_LINES = 5
"""Lines of a refusal, at most."""
LINE = 2_000
"""Characters of one line, at most: lists of arms and of columns are long, and their ends hold the remedy."""
VALUE = 120
"""Characters of a value that a user gave."""
_CONTROL = "\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufeff"
_UNSEEN = re.compile(f"[{_CONTROL}]")
_HARMFUL = re.compile(f"(?![\\n\\t])[{_CONTROL}]")
"""Control characters of ASCII and Latin-1, separators of lines, marks of direction, halves of surrogate pairs."""


def control_character(text: str, allowed: str = "\n\t") -> str | None:
    """The first character of a text that steers a terminal or stands for nothing, as it is escaped; None where there is
    none.

    >>> control_character("a\\x1b[2J"), control_character("a\\tb")
    ('\\\\x1b', None)
    """
    return next((_escaped(found) for found in _UNSEEN.finditer(text) if found[0] not in allowed), None)


def printable(text: str) -> str:
    """The text with its control characters escaped; line feeds and tabs stay.

    >>> printable("a\\x1b[31mb\\u202e")
    'a\\\\x1b[31mb\\\\u202e'
    """
    return _HARMFUL.sub(_escaped, text)


def shown(value: object, most: int = VALUE) -> str:
    """A value on one line, its middle left out where it is longer than `most` characters.

    >>> shown("one\\ntwo"), shown("x" * 1000, 20)
    ('one\\\\ntwo', 'xxxxxxxxxxx ... xxxx')
    """
    return cut(_UNSEEN.sub(_escaped, str(value)), most)


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters: its head, and less of its end."""
    if len(text) <= most:
        return text
    end = (most - 5) * 3 // 10
    return f"{text[: most - 5 - end]} ... {text[len(text) - end :]}"


def brief(text: str, lines: int = MOST_LINES, width: int = LINE) -> str:
    """A message of at most so many printable lines, each no longer than `width`.

    >>> print(brief("a\\nb\\nc\\nd", lines=3))
    a
    b
    and 2 more
    """
    found = [cut(line, width) for line in printable(text).split("\n")]
    if len(found) <= lines:
        return "\n".join(found)
    return "\n".join([*found[: lines - 1], f"and {len(found) - lines + 1} more"])


def in_words(error: BaseException) -> str:
    """Return the type and the first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {shown(lines[0], 400)}" if lines else type(error).__name__


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
