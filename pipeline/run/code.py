"""The code of a stage: its module and all modules that it imports, directly or not, as far as they decide results.

Sources are parsed and never imported. Imports are followed inside the project and cut at `CUT`. A
registry's YAML file maps names to implementations, "module:name", and nothing of it counts but the
implementations of the entries that the configuration chooses: neither a new entry nor an edit of an unused one changes
the code of a stage.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from pipeline.errors import UserError

CUT = re.compile(
    r"pipeline\.(config|errors|named_files|resources|run|wording)(\.|$)|.*(settings|kinds)$",
)
"""Modules that decide no result: settings (their values are in the key), storage, measurements, messages."""
REGISTRIES = ("pipeline.algorithms.kinds", "pipeline.rewards.kinds")
TARGET = re.compile(r"[\w.]+:\w+")
KEY_DIGITS = 20


@dataclass(frozen=True)
class Statements:
    """Statements that count together."""

    digest: str
    """Digest of their syntax trees, without docstrings."""
    imports: frozenset[str]


@dataclass(frozen=True)
class Source:
    """A file, as it was when it was first needed."""

    path: Path
    state: list[tuple[int, int]]
    """Time [ns] and size [bytes]; of the YAML file of the same name beside it as well."""
    body: Statements
    entries: Mapping[str, Statements]
    """Entries of a registry, by name."""

    def parts(self, chosen: Collection[str] | None) -> list[Statements]:
        """The parts that count where the configuration chooses these entries; all of them for None."""
        return [self.body, *(part for name, part in self.entries.items() if chosen is None or name in chosen)]


class Code:
    """The sources below a folder, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._source, self._modules, self._digest = cache(self._read), cache(self._reached), cache(self._hash)

    def modules(self, module: str, chosen: Iterable[str] | None = ()) -> tuple[str, ...]:
        """Names of the modules that count for a stage in `module`; None chooses every entry of the registries.

        Raises `ValueError` for a module that does not exist.
        """
        return self._modules(module, None if chosen is None else frozenset(chosen))

    def digest(self, module: str, chosen: Iterable[str] = ()) -> str:
        """Hash of the code of a stage in `module`."""
        return self._digest(module, frozenset(chosen))

    def check_unchanged(self, module: str) -> None:
        """Raise `UserError` where code of a stage in `module` has been edited since it was read."""
        for name in self.modules(module, None):
            was = self._source(name)
            if _state(was.path) != was.state and self._read(name).parts(None) != was.parts(None):
                raise UserError(f"{was.path} was edited while this command was running; run the same command again")

    def _hash(self, module: str, chosen: frozenset[str]) -> str:
        parts = [part for name in self.modules(module, chosen) for part in self._source(name).parts(chosen)]
        return hashlib.sha256("\n".join(part.digest for part in parts).encode()).hexdigest()[:KEY_DIGITS]

    def _reached(self, module: str, chosen: frozenset[str] | None) -> tuple[str, ...]:
        if self._path(module) is None:
            raise ValueError(f"a stage names the module '{module}', which does not exist")
        waiting, reached = {module}, set[str]()
        while waiting:
            name = waiting.pop()
            reached.add(name)
            found = {one for part in self._source(name).parts(chosen) for one in part.imports}
            waiting |= {one for one in found - reached if one in REGISTRIES or not CUT.match(one)}
        return tuple(sorted(reached))

    def _read(self, module: str) -> Source:
        path = self._path(module)
        assert path is not None
        tree, data = _without_docstrings(ast.parse(path.read_text("utf-8"))), path.with_suffix(".yaml")
        text = data.read_text("utf-8") if data.is_file() else ""
        if module in REGISTRIES:
            entries = {name: self._part("\n".join(found), found) for name, found in _entries(text).items()}
            return Source(path, _state(path), self._part("", ()), entries)
        imports = list[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                imports += [start + alias.name for alias in node.names]
        return Source(path, _state(path), self._part(ast.dump(tree) + text, imports), {})

    def _part(self, text: str, names: Iterable[str]) -> Statements:
        """`names` are those of modules, or of what they have; the packages around a module count, too."""
        paths = [name.replace(":", ".").split(".") for name in names]
        around = {".".join(parts[:end]) for parts in paths for end in range(1, len(parts) + 1)}
        found = frozenset(name for name in around if self._path(name))
        return Statements(hashlib.sha256(text.encode()).hexdigest(), found)

    def _path(self, module: str) -> Path | None:
        """The file of a module of the project, None of another one."""
        place = self.root.joinpath(*module.split("."))
        return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _state(path: Path) -> list[tuple[int, int]]:
    stats = [file.stat() for file in (path, path.with_suffix(".yaml")) if file.is_file()]
    return [(stat.st_mtime_ns, stat.st_size) for stat in stats]


def _entries(data: str) -> dict[str, list[str]]:
    """The implementations in all tables of a YAML file, by name."""
    entries: dict[str, list[str]] = {}
    for rows in yaml.safe_load(data).values():
        for name, entry in rows.items():
            entries.setdefault(name, []).extend(str(one) for one in entry.values() if TARGET.fullmatch(str(one)))
    return entries


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Strings that stand alone are docstrings, of functions, classes, modules or of what they follow."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            texts = [one for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)]
            node.body = [one for one in body if one not in texts]  # type: ignore[attr-defined]
    return tree
