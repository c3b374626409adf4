"""How estimates stand in the cells of a table and in the columns of its CSV."""

from __future__ import annotations

from typing import Any

from reports.statistics.two_level import Estimate
from reports.tables.table import TableCell
from reports.text.words import interval, signed

DASH = TableCell("–")


def shown(estimate: Estimate | None, key: str = "", *, bold: bool = False) -> TableCell:
    """Value and interval, with equal decimals; a dash for none."""
    if estimate is None:
        return DASH
    value, _, bounds = interval(estimate, key).partition(" ")
    return TableCell(value, bounds, bold=bold)


def shown_difference(estimate: Estimate | None, key: str = "") -> TableCell:
    """Signed value and interval."""
    if estimate is None:
        return DASH
    value, _, bounds = signed(estimate, key).partition(" ")
    return TableCell(value, bounds)


def size(estimate: Estimate | None) -> str:
    """``3 × 512`` seeds and prompts, or ``3 seeds`` of what exists once per trial."""
    if estimate is None:
        return "–"
    if estimate.prompts:
        return f"{estimate.seeds} × {estimate.prompts}"
    return f"{estimate.seeds} seed{'s' if estimate.seeds != 1 else ''}"


def columns(key: str, estimate: Estimate | None) -> dict[str, Any]:
    """``key``, ``key_low``, ``key_high`` for a CSV."""
    if estimate is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}


def sample(estimate: Estimate | None) -> dict[str, Any]:
    """What an estimate was made from, and how."""
    if estimate is None:
        return {"seeds": 0, "prompts": 0, "method": None}
    return {"seeds": estimate.seeds, "prompts": estimate.prompts, "method": estimate.method}
