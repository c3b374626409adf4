"""What is wrong with a log, said so that it can be found: file, line, key, value, how often, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

DETAILS = "import.json"
"""Beside a trial's series: which file they were read from, and its problems."""
Kind = Literal["cut", "text", "range", "diverged", "back", "repeated", "doubt"]


@dataclass(frozen=True)
class Problem:
    """One kind of fault of one series of one log."""

    kind: Kind
    file: str
    line: int
    """Of its first occurrence; 0 where it is no single line's."""
    key: str
    """Theirs."""
    metric: str
    """Ours; empty where it is not about one."""
    value: str
    why: str
    count: int
    of: int
    effect: str

    @property
    def text(self) -> str:
        """One line."""
        where = f"{self.file}, line {self.line}" if self.line else self.file
        named = f"{self.key} ({self.metric})" if self.metric and self.metric != self.key else self.key
        often = f"; {self.count:,} of {self.of:,} values" if self.of else ""
        return f"{where}: {named} = {self.value}: {self.why}{often}; {self.effect}"


def grouped(problems: Iterable[Problem]) -> list[str]:
    """One line per kind and key: the first of them, and how many other logs have the same."""
    first: dict[tuple[Kind, str], Problem] = {}
    files: dict[tuple[Kind, str], set[str]] = {}
    for problem in problems:
        group: tuple[Kind, str] = (problem.kind, problem.key)
        first.setdefault(group, problem)
        files.setdefault(group, set()).add(problem.file)
    lines = []
    for group, problem in first.items():
        more = len(files[group]) - 1
        lines.append(
            problem.text + (f" (and the same in {more:,} other {'log' if more == 1 else 'logs'})" if more else "")
        )
    return lines
