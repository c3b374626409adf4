"""Best of n of the reference's answers to the held-out prompts, chosen by the proxy; and which arms answer so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.findings.bound import best_of_kl, table_of
from reports.records.load import StudyRecords
from reports.statistics import best_of_n, two_level
from reports.statistics.two_level import Array, Estimate
from studies.definition.design import Cell

DRAWS = "draws.parquet"
ENDING = "ending"
"""A column of the draws that a cyclic judge decides by as well."""


@dataclass(frozen=True)
class BestOfN:
    """What the best of n of the reference's answers reaches, chosen by the training reward."""

    n: int
    kl: float
    """nats per sequence, at most."""
    gold: Estimate
    win_rate: Estimate | None
    """Against answers that were not chosen among; none where n is all of them."""


def choosing_arms(records: StudyRecords) -> dict[str, int]:
    """Arms that answer with the best of several samples by the proxy, and of how many."""
    counts = {cell.arm: cell.config.evaluate.best_of for cell in records.plan if isinstance(cell, Cell)}
    return {arm: count for arm, count in counts.items() if count > 1}


def arms_with_another_reference(records: StudyRecords) -> list[str]:
    """Arms whose reference is rounded to another number of bits than the baseline's."""
    bits = {cell.arm: cell.config.adapter.quantize for cell in records.plan if isinstance(cell, Cell)}
    own = bits.get(records.study.baseline)
    return [arm for arm, how in bits.items() if own is not None and how != own]


def best_of_draws(records: StudyRecords) -> list[BestOfN]:
    """Return every n; empty where the draws are no longer in the store, or are single ones."""
    tables = [table for where in _references(records) if (table := _draws(records, where)) is not None]
    sizes = {table["gold"].shape for table in tables}
    if len(sizes) != 1 or (size := next(iter(sizes))[1]) < 2:
        return []
    return [_choice(n, tables, size) for n in range(1, size + 1)]


def _choice(n: int, tables: list[dict[str, Array]], size: int) -> BestOfN:
    gold = np.stack([best_of_n.best_of(n, table["proxy"], table["gold"]) for table in tables])
    rate = None
    if n < size:
        wins = [best_of_n.win_rate(n, table["proxy"], table["gold"], table.get(ENDING)) for table in tables]
        rate = two_level.rate(np.stack(wins))
    return BestOfN(n, best_of_kl(n), two_level.mean(gold), rate)


def _references(records: StudyRecords) -> list[str]:
    """The places of the baseline's references, one for each chain."""
    own = [record for (arm, _), record in sorted(records.records.items()) if arm == records.study.baseline]
    return list(dict.fromkeys(record.stages["reference"].path for record in own if "reference" in record.stages))


def _draws(records: StudyRecords, where: str) -> dict[str, Array] | None:
    """Scores of the draws, (P, N) each; None where they are not in the store."""
    table = table_of(records, where, DRAWS)
    if table is None:
        return None
    count = int(table["draw"].max()) + 1
    names = ["gold", "proxy", *({ENDING} & set(table.columns))]
    return {name: table[name].to_numpy(dtype=np.float64).reshape(-1, count) for name in names}
