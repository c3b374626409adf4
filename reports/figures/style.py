"""How figures look: one colour, line style and marker per arm everywhere, readable in grey and by the colour-blind.

The baseline is always drawn in ink. The other arms take the colour-blind-safe palette in the study's order;
when it is used up, colours repeat with other line styles and markers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from fontTools import subset
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from reports.figures.replay import DPI, draw_once
from reports.records.provenance import Provenance
from studies.definition.schema import Study

INK = "#1c2127"
MUTED = "#6b7280"
GRID = "#e6e8eb"
ALARM = "#b42318"
SINGLE = 4.8
"""Width in inches of a figure for one column; text of 8 pt stays readable when a phone shows it at 3.6."""
DOUBLE = 7.2
PNG_DPI = 200.0
_DASHES: tuple[Any, ...] = (
    (0, (5, 1.6)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1)),
    (0, (8, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
)
_PALETTE = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#949494", "#56b4e9")
"""Seaborn's palette "colorblind" without its two pale colours; written out, since importing seaborn takes longer than
drawing a figure."""
_EMBEDDED = {"glyf", "head", "hhea", "hmtx", "loca", "maxp", "cvt ", "fpgm", "prep"}
"""Tables of a TrueType font that a PDF uses (ISO 32000-1, 9.9)."""
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h")
_FALLBACK_FONTS = "'DejaVu Sans', Verdana, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class ArmStyle:
    """What tells one arm from another."""

    color: str
    dashes: Any
    marker: str


@dataclass(frozen=True)
class Drawn:
    """A figure with the numbers it was drawn from and what to say under it."""

    figure: Figure
    data: pd.DataFrame
    title: str
    caption: str
    alt: str
    wide: bool = False


def arm_styles(study: Study) -> dict[str, ArmStyle]:
    """A style for every arm of a study; the same in every figure."""
    styles, number = {}, count()
    for arm in study.arm_overrides():
        if arm == study.baseline:
            styles[arm] = ArmStyle(INK, "-", "o")
        else:
            i = next(number)
            styles[arm] = ArmStyle(_PALETTE[i % len(_PALETTE)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)])
    return styles


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib settings of all figures; text stays text in SVG and PDF, and bytes do not depend on the clock."""
    settings: Any = {
        "lines.solid_capstyle": "round",
        "patch.edgecolor": "w",
        "patch.force_edgecolor": True,
        "patch.linewidth": 0.8,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 8.0,
        "axes.labelsize": 8.0,
        "axes.titlesize": 8.5,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.titley": 1.0,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "legend.fontsize": 7.5,
        "legend.frameon": False,
        "text.color": INK,
        "text.parse_math": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.linewidth": 0.7,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.formatter.use_mathtext": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
        "xtick.minor.size": 0.0,
        "ytick.minor.size": 0.0,
        "xtick.major.size": 3.0,
        "ytick.major.size": 3.0,
        "lines.linewidth": 1.5,
        "lines.markersize": 5.0,
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "svg.fonttype": "none",
        "svg.hashsalt": "ablate",
        "pdf.fonttype": 42,
    }
    with mpl.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, with room kept for everything outside the axes."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05))


def square_root(axis: Axis, most: float, *, compact: bool = False) -> None:
    """A square-root scale from 0, as reward is about linear in sqrt(KL) (Bai 2022, Gao 2022), with round ticks."""
    axis.axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
    top = max(most, 1e-6) * 1.12
    axis.axes.set_xlim(0, top)
    wanted = [(top * fraction**2) for fraction in ((0.5, 0.95) if compact else (0.25, 0.45, 0.7, 0.95))]
    axis.set_ticks(sorted({0.0, *(_round(value) for value in wanted)}))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _round(value: float) -> float:
    """The nearest of 1, 2, 3, 5 times a power of ten at or below."""
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{max(step for step in (1, 2, 3, 5) if step <= value / power + 1e-9) * power:.3g}")


def legend_entry(arm: str, style: ArmStyle) -> Line2D:
    """How a legend shows an arm that is drawn as a line."""
    look: Any = {"color": style.color, "linestyle": style.dashes, "marker": style.marker}
    return Line2D([], [], **look, ms=4, mec="white", mew=0.4, label=arm)


def legend_columns(names: Iterable[str], width: float) -> int:
    """How many columns of legend entries fit into `width` inches."""
    longest = max((len(name) for name in names), default=1)
    return max(1, int(width * 72 / (longest * 4.7 + 44)))


def label_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Name lines at their right end: ``(y in data, text, colour)``, moved apart where they would overlap."""
    if not ends:
        return
    transform = axes.transData
    figure = axes.get_figure(root=True)
    engine = figure.get_layout_engine() if figure is not None else None
    if engine is not None:
        engine.execute(figure)  # type: ignore[arg-type]
    box = axes.get_window_extent()
    line_height = 9.5 * axes.figure.dpi / 72
    wanted = sorted(
        ((float(transform.transform((0, y))[1]), text, color) for y, text, color in ends),
        key=lambda end: (end[0], end[1]),
    )
    placed = _spread([y for y, _, _ in wanted], line_height, float(box.y0), float(box.y1))
    for (pixel, text, color), at in zip(wanted, placed, strict=True):
        y, target = (at - box.y0) / box.height, (min(max(pixel, box.y0), box.y1) - box.y0) / box.height
        axes.annotate(
            text,
            xy=(1.005, target),
            xycoords="axes fraction",
            xytext=(1.045, y),
            textcoords="axes fraction",
            va="center",
            ha="left",
            color=legible(color),
            fontsize=7.5,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6, "shrinkA": 1, "shrinkB": 0},
        )


def legible(color: str, least: float = 4.5) -> str:
    """The same hue, darkened until text in it has this contrast to white (WCAG 2.1, 1.4.3)."""
    red, green, blue = mpl.colors.to_rgb(color)
    parts = np.array([red, green, blue])
    while 1.05 / (_luminance(parts) + 0.05) < least:
        parts = parts * 0.95
    return str(mpl.colors.to_hex((float(parts[0]), float(parts[1]), float(parts[2]))))


def _luminance(parts: np.ndarray) -> float:
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, near the wanted ones (ascending), within [low, high] if they fit."""
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + gap if placed else low))
    over = placed[-1] - high
    if over > 0:
        ceiling = high
        for i in range(len(placed) - 1, -1, -1):
            placed[i] = min(placed[i], ceiling)
            ceiling = placed[i] - gap
    return placed


def save(figure: Figure, stem: Path, title: str, origin: Provenance) -> None:
    """Write ``stem.svg``, ``.png`` (200 dpi) and ``.pdf``; equal figures give equal bytes."""
    about, runs = f"{origin.subject}, commit {origin.commit}", "; ".join(origin.runs)
    # The canvases are called themselves: savefig would draw everything once more beforehand and throw it away.
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    svg = {"Title": title, "Description": about, "Source": runs or None, **nothing}
    nothing = {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}
    pdf = {"Title": title, "Subject": about, "Keywords": runs, **nothing}
    png = {"Title": title, "Description": about, "Source": runs, "Software": None}
    with _glyphs_only():
        draw_once(
            figure,
            lambda: FigureCanvasSVG(figure).print_svg(stem.with_suffix(".svg"), metadata=svg),  # type: ignore[no-untyped-call]
            (lambda: FigureCanvasPdf(figure).print_pdf(stem.with_suffix(".pdf"), metadata=pdf), DPI),  # type: ignore[no-untyped-call]
            (lambda: FigureCanvasAgg(figure).print_png(stem.with_suffix(".png"), metadata=png), PNG_DPI),  # type: ignore[no-untyped-call]
        )
    path = stem.with_suffix(".svg")
    path.write_text(path.read_text("utf-8").replace("'DejaVu Sans'", _FALLBACK_FONTS), encoding="utf-8")


@contextmanager
def _glyphs_only() -> Iterator[None]:
    """Embed of a font only what a PDF uses: it places every glyph itself, and cutting tables of layout takes longer
    than drawing."""
    load = subset.load_font

    def light(*arguments: Any, **options: Any) -> Any:
        font = load(*arguments, **options)
        for table in set(font.keys()) - _EMBEDDED - {"GlyphOrder"}:
            del font[table]
        return font

    subset.load_font = light
    try:
        yield
    finally:
        subset.load_font = load
