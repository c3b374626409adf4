"""How figures look and become files: one colour, line style and marker per arm everywhere, readable in grey and by the
colour-blind.

The baseline is always drawn in ink. The other arms take the colour-blind-safe palette in the study's order; when it is
used up, colours repeat with other line styles and markers. `paper.mplstyle` has the settings of matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
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
from matplotlib.ticker import StrMethodFormatter

from reports.records.provenance import Provenance
from studies.definition.schema import Study

INK, MUTED, GRID, ALARM, BLUE = "#1c2127", "#6b7280", "#e6e8eb", "#b42318", "#0173b2"
SINGLE = 4.8
"""Width in inches of a figure for one column; text of 8 pt stays readable when a phone shows it at 3.6."""
DOUBLE = 7.2
PNG_DPI = 200.0
_PALETTE = (BLUE, "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#949494", "#56b4e9")
"""Seaborn's palette "colorblind" without its two pale colours."""
_DASHES: tuple[Any, ...] = (
    (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1)), (0, (8, 2)), (0, (4, 1, 1, 1, 1, 1)),
)  # fmt: skip
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h")
_GLYPH_TABLES = {"glyf", "head", "hhea", "hmtx", "loca", "maxp", "cvt ", "fpgm", "prep"}
"""Tables of a TrueType font that a PDF uses (ISO 32000-1, 9.9)."""
_FALLBACK_FONTS = "'DejaVu Sans', Verdana, 'Helvetica Neue', Arial, sans-serif"
_LEGEND_ROW, _LABELS = 0.17, 0.5
"""Height in inches of a row of a legend, and of an x-axis with its labels."""


@dataclass(frozen=True)
class ArmStyle:
    """Colour, dashes and marker of an arm."""

    color: str
    dashes: Any
    marker: str


@dataclass(frozen=True)
class Drawn:
    """A figure, the numbers it was drawn from, and the text under it."""

    figure: Figure
    data: pd.DataFrame
    title: str
    caption: str
    alt: str
    wide: bool = False


def arm_styles(study: Study) -> dict[str, ArmStyle]:
    """Return a style for every arm of a study; the same in every figure."""
    styles, number = {}, count()
    for arm in study.arm_overrides():
        if arm == study.baseline:
            styles[arm] = ArmStyle(INK, "-", "o")
        else:
            i = next(number)
            styles[arm] = ArmStyle(_PALETTE[i % len(_PALETTE)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)])
    return styles


def house_style() -> AbstractContextManager[None]:
    """Apply the look of all figures within a ``with`` block."""
    return mpl.rc_context(_settings())


@lru_cache(maxsize=1)
def _settings() -> mpl.RcParams:
    return mpl.rc_params_from_file(Path(__file__).with_name("paper.mplstyle"), use_default_template=False)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, with room kept for everything outside the axes."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05))


def square_root(axis: Axis, most: float, *, compact: bool = False) -> None:
    """Set a square-root scale from 0, as reward is about linear in sqrt(KL) (Bai 2022, Gao 2022), with round ticks."""
    axis.axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
    top = max(most, 1e-6) * 1.12
    axis.axes.set_xlim(0, top)
    places = (0.5, 0.95) if compact else (0.25, 0.45, 0.7, 0.95)
    axis.set_ticks(sorted({0.0, *(_round(top * place**2) for place in places)}))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _round(value: float) -> float:
    """Return the nearest of 1, 2, 3, 5 times a power of ten at or below."""
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{max(step for step in (1, 2, 3, 5) if step <= value / power + 1e-9) * power:.3g}")


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


def label_ends(axes: Axes, ends: Iterable[tuple[float, str, str]]) -> None:
    """Name lines at their right end: ``(y in data, text, colour)``, moved apart where they would overlap."""
    to_axes = axes.transScale + axes.transLimits
    wanted = sorted((min(max(float(to_axes.transform((1, y))[1]), 0.0), 1.0), text, color) for y, text, color in ends)
    height = 9.5 / 72 / (axes.figure.get_figheight() - _LABELS)  # type: ignore[union-attr]
    places = _spread([y for y, _, _ in wanted], height, 0.0, 1.0)
    for (target, text, color), y in zip(wanted, places, strict=True):
        axes.annotate(
            text, xy=(1.005, target), xytext=(1.045, y), xycoords="axes fraction", textcoords="axes fraction",
            va="center", ha="left", color=legible(color), fontsize=7.5, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6, "shrinkA": 1, "shrinkB": 0},
        )  # fmt: skip


def legible(color: str, least: float = 4.5) -> str:
    """Return the same hue, darkened until text in it has this contrast to white (WCAG 2.1, 1.4.3)."""
    parts = np.array(mpl.colors.to_rgb(color))
    while 1.05 / (_luminance(parts) + 0.05) < least:
        parts = parts * 0.95
    return str(mpl.colors.to_hex(tuple(parts)))


def _luminance(parts: np.ndarray) -> float:
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions at least `gap` apart, near the wanted ones (ascending), within [low, high] if they fit."""
    places: list[float] = []
    for y in wanted:
        places.append(max(y, places[-1] + gap if places else low))
    ceiling = high
    for i in reversed(range(len(places))):
        places[i] = min(places[i], ceiling)
        ceiling = places[i] - gap
    return places


def save(figure: Figure, stem: Path, title: str, origin: Provenance) -> None:
    """Write ``stem.svg``, ``.pdf`` and ``.png`` (200 dpi); equal figures give equal bytes."""
    about, runs = f"{origin.subject}, commit {origin.commit}", "; ".join(origin.runs)
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
