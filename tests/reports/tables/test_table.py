"""Tables on paper: LaTeX that compiles, Markdown that stays a table, whatever stands in a cell."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from reports.tables.table import Head, Table, TableCell, latex, markdown

NASTY = (
    "a--b",
    "[x]",
    "*",
    "50 % & more",
    "a_b^c~d#e$f{g}h\\i",
    '"quoted" `tick`',
    "<tag> | bar",
    "café 中 🙂 − × – β √",
    "line\nbreak\x00",
    "---",
)


def made(*rows: tuple[TableCell, ...], heads: int = 2) -> Table:
    return Table(
        "t",
        "Title 50 %",
        "A note\nof two lines.",
        tuple(Head(f"h_{i}", "nats & more") for i in range(heads)),
        rows,
        pd.DataFrame(),
    )


def check_tabular(text: str, columns: int) -> list[list[str]]:
    """What a compiler would stumble over: the rows' cells when all is well."""
    assert text.isascii()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert [text.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == sorted(
        text.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")
    )
    code = [line for line in text.splitlines() if not line.startswith("%")]
    depth = 0
    for line in code:
        bare = re.sub(r"\\[\\&%$#_{}]", "", line)
        assert "%" not in bare
        assert "#" not in bare
        assert bare.count("$") % 2 == 0
        outside = re.sub(r"\$[^$]*\$", "", bare)
        assert "_" not in outside
        assert "^" not in outside
        assert "~" not in outside
        assert not {"<", ">", "|"} & set(outside)
        for character in bare:
            depth += {"{": 1, "}": -1}.get(character, 0)
            assert depth >= 0
        assert depth == 0
    known = {
        "begin",
        "end",
        "toprule",
        "midrule",
        "bottomrule",
        "textbf",
        "textless",
        "textgreater",
        "textbar",
        "textbackslash",
        "times",
        "beta",
    }
    known |= {"textasciicircum", "textasciitilde", "texttt", "textendash", "surd"}
    assert set(re.findall(r"\\([a-zA-Z]+)", "\n".join(code))) <= known
    body = code[code.index(r"\midrule") + 1 : code.index(r"\bottomrule")]
    assert all(line.endswith(r" \\") and not line.startswith(("[", "*")) for line in body)
    cells = [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in body]
    assert all(len(row) == columns for row in cells)
    return cells


@pytest.mark.parametrize("text", NASTY)
def test_latex_survives_anything_in_a_cell(text: str) -> None:
    table = made((TableCell(text, text), TableCell(text, bold=True)), (TableCell(text), TableCell("", text)))
    assert len(check_tabular(latex(table), 2)) == 2


def test_latex_of_every_table_of_a_study(findings: object, records: object) -> None:
    from reports.tables.results import all_tables

    for table in all_tables(records, findings):  # type: ignore[arg-type]
        assert len(check_tabular(latex(table), len(table.heads))) == len(table.rows), table.name


def test_latex_prints_what_was_meant() -> None:
    row = latex(made((TableCell("−1.5", "[−2, −1]", bold=True), TableCell("a--b")))).splitlines()[-3]
    assert row == r"\textbf{$-$1.5} [$-$2, $-$1] & a-{}-b \\"
    assert "caf" in latex(made((TableCell("café"), TableCell("中"))))
    assert r"cafe & \texttt{U+4E2D} \\" in latex(made((TableCell("café"), TableCell("中"))))
    assert latex(made((TableCell("[x]"), TableCell("y")))).splitlines()[-3].startswith("{}[x] &")


@pytest.mark.parametrize("text", NASTY)
def test_markdown_stays_a_table(text: str) -> None:
    lines = markdown(made((TableCell(text, text, bold=True), TableCell(text)))).splitlines()
    assert len(lines) == 3
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_markdown_says_which_is_best_and_what_a_detail_is() -> None:
    lines = markdown(made((TableCell("0.9", "[0.8, 1.0]", bold=True), TableCell("beta", "baseline")))).splitlines()
    assert lines[2] == r"| **0.9** \[0.8, 1.0\] | beta (baseline) |"
