"""Estimates in the cells of a table and in the columns of its CSV."""

from __future__ import annotations

from typing import Any

from reports.statistics.two_level import Estimate
from reports.tables.table import TableCell
from reports.text.words import interval, signed

DASH = TableCell("–")
TONES = {
    "better": "good", "worse": "bad", "SUPPORTED": "good", "SURVIVED": "good", "REFUTED": "bad", "FALSIFIED": "bad",
}  # fmt: skip


def shown(estimate: Estimate | None, key: str = "", *, bold: bool = False) -> TableCell:
    """Return value and interval, with equal decimals; a dash for none."""
    return DASH if estimate is None else _parted(interval(estimate, key), bold=bold)


def shown_difference(estimate: Estimate | None, key: str = "") -> TableCell:
    """Return signed value and interval; a dash for none."""
    return DASH if estimate is None else _parted(signed(estimate, key))


def _parted(text: str, *, bold: bool = False) -> TableCell:
    value, _, bounds = text.partition(" ")
    return TableCell(value, bounds, bold=bold)


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
