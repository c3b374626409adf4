"""What crossed knobs do to each other, in sentences that claim no more than the tests of the contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.run.metrics import METRICS
from reports.findings.crossings import Contrast, Crossed, Interaction
from reports.statistics.two_level import ALPHA, Estimate
from reports.text.words import counted, name, p_value, setting, signed
from studies.definition.arms import short_names

_OPEN = "not distinguishable from 0"


def crossing_sentence(found: Sequence[Crossed], metric: str) -> str:
    """Simple effects and interaction of a single 2 x 2, else how many cells depart from the sum of both effects; empty
    where no knobs were crossed, or no arm was evaluated."""
    if not any(one.estimate for pair in found for one in pair.contrasts):
        return ""
    said = _two_by_two(found[0], metric) if len(found) == 1 and len(found[0].effects) == 4 else _cells(found, metric)
    estimates = [one.estimate for pair in found for one in pair.contrasts if one.estimate]
    if all(estimate.seeds == 1 for estimate in estimates):
        return f"As far as a single seed can tell, {said[0].lower()}{said[1:]}"
    return said


def knob(key: str) -> str:
    """A knob's short name."""
    return short_names([key])[key]


def at(key: str, value: Any) -> str:
    """``beta=0.05``."""
    return f"{knob(key)}={setting(value)}"


def _two_by_two(found: Crossed, metric: str) -> str:
    crossing, (interaction,) = found.crossing, found.interactions
    rows, columns = knob(crossing.rows), knob(crossing.columns)
    effects = [one for one in found.effects if one.knob == crossing.columns]
    first, second = (one.contrast.estimate for one in effects)
    departure = interaction.contrast.estimate
    if not first or not second or not departure:
        return f"The interaction of {rows} and {columns} is not estimated: the four cells share no evaluated seed."
    changed = f"{at(crossing.columns, effects[0].value)} instead of {setting(effects[0].base)}"
    sizes = list(dict.fromkeys(_size(estimate) for estimate in (first, second, departure)))
    told = [_told(one, metric, n=len(sizes) > 1) for one in (*(one.contrast for one in effects), interaction.contrast)]
    verdict = (
        f": the effect of {columns} depends on {rows}"
        if interaction.contrast.differs
        else f", so it is open whether the effect of {columns} depends on {rows}"
    )
    tested = sum(one.contrast.p is not None for one in found.effects)
    notes = [f"each is over {sizes[0]}"] * (len(sizes) == 1)
    notes += [f"the p-values of the simple effects are Holm-corrected over {tested}"] * (tested > 1)
    note = "; ".join(notes)
    return (
        f"At {at(crossing.rows, effects[0].level)}, {changed} changes {name(metric)} by {told[0]}; at"
        f" {at(crossing.rows, effects[1].level)} by {told[1]}. The interaction, the second effect minus the first, is"
        f" {told[2]}{verdict}.{f' {note[0].upper()}{note[1:]}.' if note else ''}"
    )


def _cells(found: Sequence[Crossed], metric: str) -> str:
    cells = [(pair, cell) for pair in found for cell in pair.interactions if cell.contrast.estimate]
    if not cells:
        return "No interaction is estimated: the cells that make one share no evaluated seed."
    departing = [(pair, cell) for pair, cell in cells if cell.contrast.differs]
    pair, cell = max(departing or cells, key=lambda one: abs(_value(one[1])))
    planned = sum(len(one.interactions) for one in found)
    of = f"{len(cells)} cells" if len(cells) == planned else f"{len(cells)} cells with an estimate ({planned} planned)"
    both = f"both {knob(pair.crossing.rows)} and {knob(pair.crossing.columns)}" if len(found) == 1 else "two knobs"
    departs = "depart" if len(departing) > 1 else "departs"
    within = "" if len(found) == 1 else " within each pair of knobs"
    return (
        f"{len(departing) or 'None'} of the {of} that change {both} {departs} from the sum of the two knobs' own"
        f" effects on {name(metric)} (p below {ALPHA:g} after Holm's correction{within}). The largest"
        f" {'such ' * bool(departing)}interaction, of {at(pair.crossing.rows, cell.row)} with"
        f" {at(pair.crossing.columns, cell.column)}, is {_told(cell.contrast, metric, n=True)}."
    )


def _value(cell: Interaction) -> float:
    return cell.contrast.estimate.value if cell.contrast.estimate else 0.0


def _told(one: Contrast, metric: str, *, n: bool) -> str:
    """``+0.051 [+0.010, +0.092] (p 0.030)``, with what the test does not claim."""
    assert one.estimate is not None
    unit = METRICS[metric].unit
    named = "" if unit in ("fraction", "1") else f" {unit}"
    p = "not tested" if one.p_holm is None else f"p {p_value(one.p_holm)}"
    notes = [_size(one.estimate)] * n + [p] + [_OPEN] * (not one.differs and one.p_holm is not None)
    return f"{signed(one.estimate, metric)}{named} ({', '.join(notes)})"


def _size(estimate: Estimate) -> str:
    seeds = counted(estimate.seeds, "seed")
    return f"{seeds} × {estimate.prompts} prompts" if estimate.prompts else seeds
