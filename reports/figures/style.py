"""The style and files of figures: one colour, line style and marker per arm everywhere, readable in grey and by the
colour-blind.

The baseline is always drawn in ink. The other arms take the colour-blind-safe palette in the study's order; when it is
used up, colours repeat with other line styles and markers. `paper.mplstyle` has the settings of matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from fontTools import subset
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from reports.records.load import MISSING, STALE, StudyRecords
from studies.definition.schema import Study

INK, MUTED, GRID, ALARM = "#1c2127", "#6b7280", "#e6e8eb", "#b42318"
BLUE, ORANGE = "#0173b2", "#de8f05"
SINGLE = 4.8
"""Width in inches of a figure for one column; text of 8 pt stays readable when a phone shows it at 3.6."""
DOUBLE = 7.2
PNG_DPI = 200.0
_PALETTE = (BLUE, ORANGE, "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#949494", "#56b4e9")
"""Seaborn's palette "colorblind" without its two pale colours."""
_DASHES: tuple[Any, ...] = (
    (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1)), (0, (8, 2)), (0, (4, 1, 1, 1, 1, 1)),
)  # fmt: skip
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h")
_GLYPH_TABLES = {"glyf", "head", "hhea", "hmtx", "loca", "maxp", "cvt ", "fpgm", "prep"}
"""Tables of a TrueType font that a PDF uses (ISO 32000-1, 9.9)."""
_FALLBACK_FONTS = "'DejaVu Sans', Verdana, 'Helvetica Neue', Arial, sans-serif"
_LEGEND_ROW = 0.17
"""Height in inches of a row of a legend."""


@dataclass(frozen=True)
class ArmStyle:
    """Colour, dashes and marker of an arm."""

    color: str
    dashes: Any
    marker: str


@dataclass(frozen=True)
class Plot:
    """A figure, the numbers it was drawn from, and the text under it."""

    figure: Figure
    data: pd.DataFrame
    title: str
    caption: str
    alt: str
    wide: bool = False


def arm_styles(study: Study) -> dict[str, ArmStyle]:
    """Return a style for every arm of a study; the same in every figure."""
    looks = map(ArmStyle, cycle(_PALETTE), cycle(_DASHES), cycle(_MARKERS))
    return {arm: ArmStyle(INK, "-", "o") if arm == study.baseline else next(looks) for arm in study.arm_overrides()}


def house_style() -> AbstractContextManager[None]:
    """Apply the look of all figures within a ``with`` block."""
    return mpl.rc_context(fname=Path(__file__).with_name("paper.mplstyle"))


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, with room kept for everything outside the axes."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05))


def square_root(axis: Axis, most: float, *, compact: bool = False) -> None:
    """Set a square-root scale from 0, as reward is about linear in sqrt(KL) (Bai 2022, Gao 2022), with round ticks."""
    axis.axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
    top = max(most, 1e-6) * 1.12
    axis.axes.set_xlim(0, top)
    axis.set_major_locator(MaxNLocator(5 if compact else 6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def entries(styles: dict[str, ArmStyle], arms: Iterable[str], *, lines: bool = False) -> list[Line2D]:
    """Return the legend entries of these arms, drawn as points or as lines."""
    looks = [(arm, styles[arm]) for arm in arms]
    return [entry(arm, style.color, style.dashes if lines else "", style.marker) for arm, style in looks]


def entry(label: str, color: str, dashes: Any = "", marker: str = "", **look: Any) -> Line2D:
    """Return a legend entry."""
    return Line2D(
        [], [], **{"color": color, "linestyle": dashes, "marker": marker, "ms": 4.5, "mec": "white", **look},
        label=label,
    )  # fmt: skip


def legend(figure: Figure, handles: Sequence[Line2D], *, below: bool = False, columns: int = 9) -> None:
    """Put a legend outside the axes, with as many columns as fit, and make the figure higher by its rows."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(columns, int(figure.get_figwidth() * 72 / (longest * 4.7 + 44))))
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * -(-len(handles) // columns))
    figure.legend(handles=handles, loc="outside lower left" if below else "outside upper left", ncols=columns)


def provenance(records: StudyRecords) -> tuple[str, str]:
    """Return the origin of a figure, as its files state it: the design with the code, and every run that counted."""
    ran = records.trials[~records.trials["status"].isin([MISSING, STALE])]
    used = [records.records[str(arm), int(seed)] for arm, seed in zip(ran["arm"], ran["seed"], strict=True)]
    commits = dict.fromkeys(filter(None, (record.environment.get("git_commit", "") for record in used)))
    about = f"study {records.study.name}, profile {records.profile}, design {records.digest}"
    runs = "; ".join(f"{r.arm} seed {r.seed}: {r.stages['train'].key}" for r in used if "train" in r.stages)
    return f"{about}, commit {', '.join(commits) or 'unknown'}", runs


def save(figure: Figure, stem: Path, title: str, about: str, runs: str) -> None:
    """Write ``stem.svg``, ``.pdf`` and ``.png`` (200 dpi); equal figures give equal bytes."""
    svg: dict[str, str | None] = {"Title": title, "Description": about, "Source": runs or None}
    svg |= dict.fromkeys(("Date", "Creator", "Format", "Type"))
    pdf: dict[str, str | None] = {"Title": title, "Subject": about, "Keywords": runs}
    pdf |= dict.fromkeys(("CreationDate", "ModDate", "Creator", "Producer"))
    png = {"Title": title, "Description": about, "Source": runs, "Software": None}
    # The canvases are called themselves: savefig would draw everything once more beforehand. The first one finds the
    # places of all parts, which are the same in the other formats.
    path = stem.with_suffix(".svg")
    FigureCanvasSVG(figure).print_svg(path, metadata=svg)  # type: ignore[no-untyped-call]
    path.write_text(path.read_text("utf-8").replace("'DejaVu Sans'", _FALLBACK_FONTS), encoding="utf-8")
    figure.set_layout_engine("none")
    with _glyphs_only():
        FigureCanvasPdf(figure).print_pdf(stem.with_suffix(".pdf"), metadata=pdf)  # type: ignore[no-untyped-call]
    figure.dpi = PNG_DPI
    FigureCanvasAgg(figure).print_png(stem.with_suffix(".png"), metadata=png)  # type: ignore[no-untyped-call]


@contextmanager
def _glyphs_only() -> Iterator[None]:
    """Embed of a font only what a PDF uses: cutting its tables of layout, which no PDF needs, takes a second."""
    load = subset.load_font

    def light(*arguments: Any, **options: Any) -> Any:
        font = load(*arguments, **options)
        for table in set(font.keys()) - _GLYPH_TABLES - {"GlyphOrder"}:
            del font[table]
        return font

    subset.load_font = light
    try:
        yield
    finally:
        subset.load_font = load
