"""The report of `make gpu` as one Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any


def render(report: dict[str, Any]) -> str:
    """The whole page; `report` is what the JSON file holds."""
    summary = []
    for section in report["sections"]:
        count = Counter(item["status"] for item in section["items"])
        row = [section["title"], count["passed"], count["failed"], count["not tested"], f"{section['seconds']:.0f}"]
        summary.append(row)
    parts = [
        f"# {report['card'].get('name', 'No card')}: {report['verdict']}\n",
        f"{report['headline']}\n",
        table(["", ""], _facts(report)),
        table(["section", "passed", "failed", "not tested", "seconds"], summary),
        *map(_section, report["sections"]),
    ]
    return "\n".join(parts)


def _facts(report: dict[str, Any]) -> list[Sequence[str]]:
    card, facts = report["card"], list[Sequence[str]]()
    if card.get("device") == "cuda":
        facts = [
            (
                "card",
                f"{card['count']} x {card['name']}, {card['memory_gib']:.1f} GiB, {card['free_gib']:.1f} GiB free",
            ),
            ("compute capability", card["capability"]),
            ("driver, CUDA of torch", f"{card['driver']}, {card['cuda']}"),
            ("half-precision products of 8192 x 8192", f"{card['half_flops'] / 1e12:.3g} TFLOP/s, median of 10"),
            ("copies of 1 GiB, read and written", f"{card['copy_bytes'] / 1e9:.4g} GB/s, median of 10"),
        ]
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return [*facts, ("commit", report["commit"]), ("versions", versions), ("time taken", f"{report['seconds']:.0f} s")]


def _section(section: dict[str, Any]) -> str:
    """Its items; below them the tables (lists of rows) and notes that they have recorded."""
    rows, more = [], []
    for item in section["items"]:
        values = dict(item["values"])
        more += [f"- {note}\n" for note in values.pop("notes", [])]
        figures = {name: values.pop(name) for name, value in item["values"].items() if _is_table(value)}
        more += [
            f"\n{name}:\n\n" + table(list(lines[0]), [one.values() for one in lines]) for name, lines in figures.items()
        ]
        words = [item["why"], *(f"{name} {value}" for name, value in values.items())]
        what = item["name"].removeprefix("test_").replace("_", " ")
        rows.append([what, item["status"], "; ".join(filter(None, words))])
    return (
        f"## {section['title']}\n\n"
        + table(["what", "result", "why, or what was measured"], rows)
        + "\n"
        + "".join(more)
    )


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; a bar within a cell is escaped, and numbers have three digits."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
