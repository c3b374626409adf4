"""The report of `make gpu` as one Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

HEADLINES = {0: "everything that could be tested passed", 1: "something failed", 3: "not tested"}


def render(report: dict[str, Any]) -> str:
    """The whole page; `report` is what the JSON file holds."""
    card = report["card"]
    parts = [f"# {card.get('name', 'No card')}: {HEADLINES[report['exit_code']]}\n", report["headline"] + "\n"]
    parts += [_facts(report), _summary(report["sections"])]
    parts += [_measured(section) for section in report["sections"] if section["measured"]]
    parts += [_items(section) for section in report["sections"]]
    return "\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; a bar within a cell is escaped.

    >>> print(table(["a", "b"], [[1, "x|y"]]))
    | a | b |
    | --- | --- |
    | 1 | x\\|y |
    <BLANKLINE>
    """
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in lines)


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _facts(report: dict[str, Any]) -> str:
    card, rows = report["card"], []
    if card.get("device") == "cuda":
        rows += [
            (
                "card",
                (
                    f"{card['count']} x {card['name']}, {card['memory_gib']:.1f} GiB, {card['free_gib']:.1f} GiB of it"
                    " free at the start"
                ),
            ),
            ("compute capability", card["capability"]),
            ("driver, CUDA of torch", f"{card['driver']}, {card['cuda']}"),
        ]
        rows.append(
            (
                "measured, median of 10",
                f"{card['half_flops'] / 1e12:.3g} TFLOP/s in half-precision matrix products of 8192 x 8192",
            )
        )
        rows.append(("", f"{card['copy_bytes'] / 1e9:.4g} GB/s in copies of 1 GiB, read and written"))
    rows.append(("commit", report["commit"]))
    rows.append(("versions", ", ".join(f"{name} {number}" for name, number in report["versions"].items())))
    rows.append(("time taken", f"{report['seconds']:.0f} s"))
    return table(["", ""], rows)


def _summary(sections: list[dict[str, Any]]) -> str:
    rows = []
    for section in sections:
        count = Counter(item["status"] for item in section["items"])
        rows.append(
            [section["title"], count["passed"], count["failed"], count["not tested"], f"{section['seconds']:.0f}"]
        )
    return table(["section", "passed", "failed", "not tested", "seconds"], rows)


def _items(section: dict[str, Any]) -> str:
    def words(item: dict[str, Any]) -> str:
        values = ", ".join(f"{name} {value}" for name, value in item["values"].items())
        return "; ".join(filter(None, [item["why"], values]))

    rows = [
        [item["name"].removeprefix("test_").replace("_", " "), item["status"], words(item)] for item in section["items"]
    ]
    return f"## {section['title']}\n\n" + table(["what", "result", "why, or what was measured"], rows)


def _measured(section: dict[str, Any]) -> str:
    found, parts = section["measured"], [f"## {section['title']}: figures\n"]
    parts += [f"- {note}" for note in found.get("notes", [])]
    for name, (head, row) in TABLES.items():
        if found.get(name):
            parts.append("\n" + table(head, [row(line) for line in found[name]]))
    return "\n".join(parts)


def miss(predicted: float, measured: float) -> float | None:
    """By how many percent the measured value is above the forecast; None without a forecast.

    >>> miss(2.0, 3.0)
    50.0
    """
    return 100 * (measured / predicted - 1) if predicted else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.0f} %"


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _memory_row(line: dict[str, Any]) -> list[str]:
    return [line["what"], _gib(line["predicted_gib"]), _gib(line["measured_gib"]), _percent(line["miss_percent"])]


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _phase_row(line: dict[str, Any]) -> list[str]:
    keys = ("seconds", "tflop", "gb", "roofline_s", "of_roofline", "t4_s")
    return [line["phase"], *(_number(line.get(key)) for key in keys), str(line["n"])]


def _trl_row(line: dict[str, Any]) -> list[str]:
    return [
        line["contender"],
        *(_number(line[key]) for key in ("seconds", "episodes_per_s", "peak_gib")),
        str(line["n"]),
    ]


TABLES: dict[str, tuple[list[str], Any]] = {
    "memory_by_stage": (["stage", "forecast, GiB", "measured peak, GiB", "measured above forecast"], _memory_row),
    "memory_by_component": (
        ["training, component", "forecast, GiB", "measured, GiB", "measured above forecast"],
        _memory_row,
    ),
    "seconds_by_phase": (
        [
            "phase of an update",
            "seconds (median)",
            "TFLOP",
            "GB moved",
            "roofline of this card, s",
            "share of roofline",
            "forecast for a T4, s",
            "n",
        ],
        _phase_row,
    ),
    "beside_trl": (["contender", "seconds an update (median)", "episodes/s", "peak, GiB", "n"], _trl_row),
}
"""Tables of figures: their heads, and how a line becomes a row."""
