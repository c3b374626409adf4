"""Tables and their forms: Markdown and LaTeX for people, CSV with full precision for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from reports.statistics.two_level import Estimate
from reports.text.say import say
from reports.text.words import interval, signed


@dataclass(frozen=True)
class Head:
    """A column's title and unit."""

    text: str
    unit: str = ""
    numeric: bool = True

    @property
    def title(self) -> str:
        return f"{self.text} [{self.unit}]" if self.unit else self.text


@dataclass(frozen=True)
class TableCell:
    """The content of one cell: a main text and a smaller line under it."""

    text: str
    detail: str = ""
    tone: str = ""
    """`good`, `bad` or none: a hint that never carries meaning alone."""
    link: str = ""
    """Page to which the main text leads, relative to that of the table."""

    @property
    def inline(self) -> str:
        """The smaller line where there is no second line: an interval has its brackets already."""
        return self.detail if not self.detail or self.detail.startswith("[") else f"({self.detail})"


@dataclass(frozen=True)
class Table:
    """A table in both forms; the first cell of a row is its header."""

    name: str
    title: str
    note: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    frame: pd.DataFrame


Row = TypeVar("Row")
DASH = TableCell("–")
TONES = {
    "better": "good", "worse": "bad", "SUPPORTED": "good", "SURVIVED": "good", "REPRODUCED": "good", "REFUTED": "bad",
    "FALSIFIED": "bad",
}  # fmt: skip


def toned(word: str, detail: str = "") -> TableCell:
    """Return the cell of an outcome."""
    return TableCell(word, detail, TONES.get(word, ""))


def words(text: str, unit: str = "") -> Head:
    """Return the head of a column of words."""
    return Head(text, unit, numeric=False)


def declared(
    name: str,
    title: str,
    rows: Iterable[Row],
    columns: Iterable[tuple[Head, Callable[[Row], TableCell | str]]],
    data: Iterable[Mapping[str, Any]] | pd.DataFrame,
    names: list[str] | None = None,
    **values: Any,
) -> Table:
    """Make a table from its columns: the head of each, and the function that gives its cell of a row.

    `data`: the rows of the CSV; `names`: its columns, where it can have no row; `values`: those of the note, the macro
    of this name in ``tables.j2``.
    """
    chosen = list(columns)
    texts = [[cell(row) for _, cell in chosen] for row in rows]
    cells = tuple(tuple(one if isinstance(one, TableCell) else TableCell(one) for one in row) for row in texts)
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(list(data), columns=names)
    return Table(name, title, say("tables", name, **values), tuple(head for head, _ in chosen), cells, frame)


def shown(estimate: Estimate | None, key: str = "") -> TableCell:
    """Return value and interval, with equal decimals; a dash for none."""
    return DASH if estimate is None else TableCell(*interval(estimate, key).split(" ", 1))


def shown_difference(estimate: Estimate | None, key: str = "") -> TableCell:
    """Return signed value and interval; a dash for none."""
    return DASH if estimate is None else TableCell(*signed(estimate, key).split(" ", 1))


def size(estimate: Estimate | None) -> str:
    """Return ``3 × 512`` seeds and prompts, or ``3 seeds`` of a number that exists once per trial."""
    if estimate is None:
        return "–"
    if estimate.prompts:
        return f"{estimate.seeds} × {estimate.prompts}"
    return f"{estimate.seeds} seed{'s' if estimate.seeds != 1 else ''}"


def columns(key: str, estimate: Estimate | None) -> dict[str, Any]:
    """Return ``key``, ``key_low``, ``key_high`` for a CSV."""
    numbers = (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)
    return dict(zip((key, f"{key}_low", f"{key}_high"), numbers, strict=True))


def sample(estimate: Estimate | None) -> dict[str, Any]:
    """Return the size and the method of an estimate for a CSV."""
    if estimate is None:
        return {"seeds": 0, "prompts": 0, "method": None}
    return {"seeds": estimate.seeds, "prompts": estimate.prompts, "method": estimate.method}


def write(tables: list[Table], folder: Path) -> None:
    """``<name>.csv``, ``.md`` and ``.tex`` of every table."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.frame.to_csv(folder / f"{table.name}.csv", index=False, lineterminator="\n")
        (folder / f"{table.name}.md").write_text(markdown(table), encoding="utf-8")
        (folder / f"{table.name}.tex").write_text(latex(table), encoding="utf-8")


def markdown(table: Table) -> str:
    """Return a Markdown table; details stand behind the main text."""
    rules = ["---:" if head.numeric else "---" for head in table.heads]
    lines = [[_md(head.title) for head in table.heads], rules, *_texts(table, _md, "[{}]({})")]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain(table: Table) -> str:
    """Return aligned columns for a terminal; details stand behind the main text."""
    lines = [[head.title for head in table.heads]]
    lines += _texts(table)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def latex(table: Table) -> str:
    """Return a booktabs table, to be included with ``\\input``."""
    kinds = "".join("r" if head.numeric else "l" for head in table.heads)
    rows = _texts(table, _tex)
    for row in rows:  # after a line break LaTeX takes a bracket or a star for an option of the break
        row[0] = "{}" * row[0].startswith(("[", "*")) + row[0]
    frame = pd.DataFrame(rows, columns=[_tex(head.title) for head in table.heads])
    return f"% {_tex(table.title)}. {_tex(table.note)}\n{frame.to_latex(index=False, column_format=kinds)}"


def _texts(table: Table, escape: Callable[[str], str] = str, link: str = "{}") -> list[list[str]]:
    """Return each cell in one line; `link`: the form of a main text that leads to a page."""

    def text(cell: TableCell) -> str:
        main = escape(cell.text)
        return f"{link.format(main, cell.link) if cell.link else main} {escape(cell.inline)}".strip()

    return [[text(cell) for cell in row] for row in table.rows]


def _md(text: str) -> str:
    return text.translate(_MD)


def _tex(text: str) -> str:
    return text.translate(_TEX).replace("--", "-{}-")


_MD = str.maketrans({"\n": " ", "<": "&lt;", ">": "&gt;", "&": "&amp;", **{one: f"\\{one}" for one in "\\|`*_[]"}})
_TEX = str.maketrans({
    "\n": " ", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "`": "{`}", "−": r"$-$", "×": r"$\times$",
    "–": r"\textendash{}", "…": r"\ldots{}", "√": r"$\surd$", "≤": r"$\le$", "≥": r"$\ge$", "β": r"$\beta$",
    "“": "``", "”": "''", "’": "'",
})  # fmt: skip
