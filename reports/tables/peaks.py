"""The table of how high gold rose along training before it fell."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from reports.findings.peaks import ArmPeak
from reports.statistics.peak import BLOCKS
from reports.tables.cells import columns, sample, shown, shown_difference, size
from reports.tables.table import Head, Table, TableCell


def peaks_table(peaks: Sequence[ArmPeak]) -> Table:
    """Place and height of the peak of every arm, and the fall from there to the end."""
    heads = (
        Head("arm", numeric=False), Head("peak at", "gradient steps"), Head("√KL at the peak", "√(nats per sequence)"),
        Head("gold at the peak", "judge points"), Head("fall to the end", "judge points"), Head("n"),
    )  # fmt: skip
    rows = tuple(
        (
            TableCell(one.arm),
            shown(one.step),
            shown(one.root_kl),
            shown(one.gold),
            shown_difference(one.fall),
            TableCell(size(one.gold)),
        )
        for one in peaks
    )
    data = [
        {
            "arm": one.arm,
            **columns("step", one.step),
            **columns("root_kl", one.root_kl),
            **columns("gold", one.gold),
            **columns("fall", one.fall),
            **sample(one.gold),
        }
        for one in peaks
    ]
    note = (
        "The highest gold reward of the rollouts along training, over the square root of the KL to the reference (Gao"
        f" 2023). Each trial's records are put into at most {BLOCKS} blocks of successive updates. Of a block's records"
        " every second one helps to choose the block with the highest mean; the others measure its height, its step,"
        " its KL and the fall from there to the last block; then the halves change places, and both results are"
        " averaged. So the height has no upward bias of a maximum over noise; on average it is at most the true peak."
        " Fall 0: gold was highest at the end. Means over seeds, 95 % intervals (Student)."
    )
    return Table("gold_peaks", "Peak of the gold reward along training", note, heads, rows, pd.DataFrame(data))
