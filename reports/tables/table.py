"""What a table is, and its forms: Markdown and LaTeX for people, CSV with full precision for programs."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd


@dataclass(frozen=True)
class Head:
    """A column's title and unit."""

    text: str
    unit: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class TableCell:
    """What one cell says: a main text and a smaller line under it."""

    text: str
    detail: str = ""
    tone: str = ""
    """`good`, `bad` or none: a hint that never carries meaning alone."""
    bold: bool = False
    """The best of its column, where the intervals say so."""


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


def words(text: str, unit: str = "") -> Head:
    """Return the head of a column of words."""
    return Head(text, unit, numeric=False)


def declared(
    name: str,
    title: str,
    note: str,
    rows: Iterable[Row],
    columns: Iterable[tuple[Head, Callable[[Row], TableCell | str]]],
    data: Iterable[Mapping[str, Any]] | pd.DataFrame,
    names: list[str] | None = None,
) -> Table:
    """Make a table from its columns: the head of each, and the function that gives its cell of a row.

    `data`: the rows of the CSV; `names`: its columns, where it can have no row.
    """
    chosen = list(columns)
    heads = tuple(head for head, _ in chosen)
    cells = tuple(tuple(_cell(cell(row)) for _, cell in chosen) for row in rows)
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(list(data), columns=names)
    return Table(name, title, note, heads, cells, frame)


def _cell(content: TableCell | str) -> TableCell:
    return content if isinstance(content, TableCell) else TableCell(content)


def write(tables: list[Table], folder: Path) -> None:
    """``<name>.csv``, ``.md`` and ``.tex`` of every table."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.frame.to_csv(folder / f"{table.name}.csv", index=False, lineterminator="\n")
        (folder / f"{table.name}.md").write_text(markdown(table), encoding="utf-8")
        (folder / f"{table.name}.tex").write_text(latex(table), encoding="utf-8")


def markdown(table: Table) -> str:
    """A Markdown table; details stand behind the main text."""
    heads = [_title(head) for head in table.heads]
    lines = ["| " + " | ".join(map(_md, heads)) + " |"]
    lines.append("| " + " | ".join("---:" if head.numeric else "---" for head in table.heads) + " |")
    lines += ["| " + " | ".join(_md_cell(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def plain(table: Table) -> str:
    """Aligned columns for a terminal; details stand behind the main text."""
    cells = [[f"{cell.text} {_beside(cell.detail)}".strip() for cell in row] for row in table.rows]
    lines = [[_title(head) for head in table.heads], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def latex(table: Table) -> str:
    """A booktabs table, to be included with ``\\input``."""
    columns = "".join("r" if head.numeric else "l" for head in table.heads)
    lines = [f"% {_tex(table.title)}. {_tex(table.note)}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines.append(" & ".join(_tex(_title(head)) for head in table.heads) + r" \\")
    lines.append(r"\midrule")
    lines += [_guarded(" & ".join(_tex_cell(cell) for cell in row)) + r" \\" for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _title(head: Head) -> str:
    return f"{head.text} [{head.unit}]" if head.unit else head.text


def _md_cell(cell: TableCell) -> str:
    text = f"**{_md(cell.text)}**" if cell.bold else _md(cell.text)
    return f"{text} {_md(_beside(cell.detail))}".strip()


def _tex_cell(cell: TableCell) -> str:
    text = rf"\textbf{{{_tex(cell.text)}}}" if cell.bold else _tex(cell.text)
    return f"{text} {_tex(_beside(cell.detail))}".strip()


def _guarded(row: str) -> str:
    """After a line break LaTeX takes a bracket or a star for an option of the break."""
    return "{}" + row if row[:1] in ("[", "*") else row


def _beside(detail: str) -> str:
    """The smaller line where there is no second line: an interval has its brackets already."""
    return detail if not detail or detail.startswith("[") else f"({detail})"


def _md(text: str) -> str:
    return "".join(_MD.get(one, one) for one in text)


def _tex(text: str) -> str:
    """Plain ASCII that LaTeX prints as given: commands for what it knows, accents taken off, else the code point."""
    return "".join(_tex_character(character) for character in text).replace("--", "-{}-")


def _tex_character(character: str) -> str:
    if character in _TEX:
        return _TEX[character]
    if character.isascii():
        return character if character.isprintable() else " "
    folded = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return "".join(_TEX.get(one, one) for one in folded) or rf"\texttt{{U+{ord(character):04X}}}"


_MD = {"\n": " ", "<": "&lt;", ">": "&gt;", "&": "&amp;", **{one: f"\\{one}" for one in "\\|`*_[]"}}
_TEX = {
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "`": "{`}", "−": r"$-$", "×": r"$\times$", "–": r"\textendash{}", "—": r"\textemdash{}", "…": r"\ldots{}",
    "√": r"$\surd$",
    "≤": r"$\le$", "≥": r"$\ge$", "±": r"$\pm$",
    "α": r"$\alpha$", "β": r"$\beta$", "ε": r"$\epsilon$", "λ": r"$\lambda$", "Δ": r"$\Delta$", "σ": r"$\sigma$",
    "“": "``", "”": "''", "’": "'", "→": r"$\to$", "·": r"$\cdot$", "\u00a0": "~",
}  # fmt: skip
