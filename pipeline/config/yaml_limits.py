"""What YAML may hold where people write it: mappings, lists, texts and numbers, of each what a person would write.

YAML can say more: a kilobyte of aliases stands for terabytes, a tag makes any value into another kind, a date is no
text. Each is refused at its line.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from pipeline.wording import control_character, shown

MOST_BYTES = 2**20
MOST_ENTRIES = 20_000
"""Values and keys of a file, those of aliases counted wherever they stand."""
MOST_LEVELS = 32
LONGEST_TEXT, LONGEST_KEY = 20_000, 200
WHOLE = 2**63
"""Whole numbers lie below this and not below minus this: 64 bits hold them."""
TEXT = "tag:yaml.org,2002:str"
FLOAT = "tag:yaml.org,2002:float"
EXPONENT = re.compile(r"[-+]?(?:[0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)[eE][-+]?[0-9]{1,3}$")
"""Numbers such as 1e-5 and 1.5e3, which YAML 1.1 takes for texts. A commit hash stays a text, since its exponent would
have more than three digits; so does a key, such as an arm that is named 1e-5."""
_DROPPED = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value", "tag:yaml.org,2002:merge")
"""What YAML makes of dates, of ``=`` and of ``<<``; here they are texts."""


class Limit(yaml.MarkedYAMLError):
    """Valid YAML that is refused."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class PlainLoader(yaml.SafeLoader):
    """SafeLoader of plain values within the limits, that also refuses a key written twice, of which YAML would keep the
    last one silently."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [
            *((tag, form) for tag, form in forms if tag not in _DROPPED),
            *([(FLOAT, EXPONENT)] if first and first in "-+.0123456789" else []),
        ]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._levels = self._entries = 0
        self._sizes: dict[str, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            anchor = str(event.anchor)
            if anchor in self.anchors and anchor not in self._sizes:
                raise Limit(f"the alias '*{shown(anchor)}' is part of itself", event.start_mark)
            self._count(self._sizes.get(anchor, 0), event)
            return super().compose_node(parent, index)
        _refuse_tag(event)
        before = self._entries
        self._count(1, event)
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise Limit(f"nested too deeply: more than {MOST_LEVELS} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self._levels -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = self._entries - before
        return node

    def _count(self, entries: int, event: yaml.Event) -> None:
        self._entries += entries
        if self._entries > MOST_ENTRIES:
            what = f"more than {MOST_ENTRIES:,} keys and values, those behind aliases counted"
            raise Limit(what, event.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError):  # digits or words that are none of their kind
            raise Limit(f"'{shown(node.value)}' cannot be read as a number", node.start_mark) from None
        if isinstance(value, str):
            _check_text(value, node)
        elif isinstance(value, int) and not -WHOLE <= value < WHOLE:
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
            if isinstance(key, str) and len(key) > LONGEST_KEY:
                what = f"the key '{shown(key, 40)}' has {len(key):,} characters; at most {LONGEST_KEY} are read"
                raise Limit(what, key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key '{key}' is written twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _refuse_tag(event: yaml.NodeEvent) -> None:
    tag = getattr(event, "tag", None)
    if tag is not None and not (tag == TEXT and isinstance(event, yaml.ScalarEvent)):
        short = shown(tag.replace("tag:yaml.org,2002:", "!!"))
        what = f"the tag '{short}' is not read; leave it out, and put a text in quotes"
        raise Limit(what, event.start_mark)


def _check_text(text: str, node: yaml.Node) -> None:
    if len(text) > LONGEST_TEXT:
        what = f"a text of {len(text):,} characters; at most {LONGEST_TEXT:,} are read"
        raise Limit(what, node.start_mark)
    if character := control_character(text):
        raise Limit(f"'{shown(text)}' holds the control character {character}", node.start_mark)


class PlainDumper(yaml.SafeDumper):
    """Writes what `PlainLoader` reads: texts that it would take for something else are quoted."""

    yaml_implicit_resolvers = PlainLoader.yaml_implicit_resolvers
