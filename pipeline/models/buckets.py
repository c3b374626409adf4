"""The sizes that the static sampler works in; everything that plans trials reads them here without importing torch."""

from __future__ import annotations

LOOK = 8
"""Tokens between two looks for rows that have ended."""
RUNGS = 5
"""Numbers of rows in a call, at most: all, and four times half as many."""
SPANS, SPAN = 4, 16
"""Numbers of columns in a call, at most, and what they are multiples of: fused attention wants aligned masks."""
GRAPHS = 2 * RUNGS * SPANS
"""Graphs that are kept: those of two shapes of calls. The oldest leaves for a new one."""


def row_buckets(rows: int) -> list[int]:
    """The numbers of rows that a call of so many goes through, the largest first.

    >>> row_buckets(100)
    [100, 50, 25, 13, 7]
    """
    return sorted({-(-rows // 2**rung) for rung in range(RUNGS)}, reverse=True)


def column_buckets(columns: int) -> list[int]:
    """The numbers of columns that a call of so many goes through, the smallest first.

    >>> column_buckets(56), column_buckets(256)
    ([16, 32, 48, 64], [64, 128, 192, 256])
    """
    span = -(-columns // (SPANS * SPAN)) * SPAN
    return list(range(span, columns + span, span))
