"""Which arms are compared with a reference of their own."""

from __future__ import annotations

from reports.records.load import StudyRecords
from studies.definition.design import Cell


def arms_with_another_reference(records: StudyRecords) -> list[str]:
    """Arms whose reference is rounded to another number of bits than the baseline's."""
    bits = {cell.arm: cell.config.adapter.quantize for cell in records.plan if isinstance(cell, Cell)}
    own = bits.get(records.study.baseline)
    return [arm for arm, how in bits.items() if own is not None and how != own]
