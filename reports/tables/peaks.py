"""The table of how high gold rose along training before it fell."""

from __future__ import annotations

from collections.abc import Sequence

from reports.findings.peaks import ArmPeak
from reports.statistics.peak import BLOCKS
from reports.tables.table import Head, Table, columns, declared, sample, shown, shown_difference, size, words


def peaks_table(peaks: Sequence[ArmPeak]) -> Table:
    """Show place and height of the peak of every arm, and the fall from there to the end."""
    note = (
        "The highest gold reward of the rollouts along training, over the square root of the KL to the reference (Gao"
        f" 2023). Each trial's records are put into at most {BLOCKS} blocks of successive updates. Of a block's records"
        " every second one helps to choose the block with the highest mean; the others measure its height, its step,"
        " its KL and the fall from there to the last block; then the halves change places, and both results are"
        " averaged. So the height has no upward bias of a maximum over noise; on average it is at most the true peak."
        " Fall 0: gold was highest at the end. Means over seeds, 95 % intervals (Student)."
    )
    data = [
        {"arm": one.arm, **columns("step", one.step), **columns("root_kl", one.root_kl), **columns("gold", one.gold)}
        | {**columns("fall", one.fall), **sample(one.gold)}
        for one in peaks
    ]
    shape = (
        (words("arm"), lambda one: one.arm),
        (Head("peak at", "gradient steps"), lambda one: shown(one.step)),
        (Head("√KL at the peak", "√(nats per sequence)"), lambda one: shown(one.root_kl)),
        (Head("gold at the peak", "judge points"), lambda one: shown(one.gold)),
        (Head("fall to the end", "judge points"), lambda one: shown_difference(one.fall)),
        (Head("n"), lambda one: size(one.gold)),
    )
    return declared("gold_peaks", "Peak of the gold reward along training", note, peaks, shape, data)
