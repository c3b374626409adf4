"""How a figure becomes files: one drawing for two formats, fonts cut to what a PDF needs, and seaborn's look without
its import."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from reports.figures import style
from reports.figures.replay import DPI, draw_once
from reports.figures.style import Provenance, house_style, new_figure, save

PALE = {"#ece133", "#fbafe4"}
ORIGIN = Provenance("study s, profile tiny, design 0", "0123abc", ("a seed 0: k",))


def picture(text: bool) -> Figure:
    """Lines, markers, areas, errors, patches and cells; with `text`, labels as well."""
    figure = new_figure(4.8, 3.0)
    left, right = figure.subplots(1, 2)
    left.plot([0, 1, 2], [0, 1, 0.5], marker="s", linestyle=(0, (5, 1.6)), color="#0173b2", label="arm β")
    left.fill_between([0, 1, 2], [0, 0.5, 0.2], [0.3, 1.2, 0.9], alpha=0.2)
    left.errorbar([0.5], [0.6], xerr=[[0.1], [0.2]], fmt="o")
    left.axvline(1.5)
    right.pcolormesh(np.arange(6.0).reshape(2, 3), cmap="cividis")
    right.scatter([0.5, 1.5], [0.5, 1.5], c=["r", "g"])
    if text:
        left.set_title("Title")
        left.set_ylabel("KL [nats]")
        left.annotate("rotated", (1, 1), rotation=30)
        figure.legend(loc="outside upper left")
    else:
        for axes in (left, right):
            axes.set_xticks([])
            axes.set_yticks([])
    return figure


def page(path: Path) -> str:
    """The drawing operators of a one-page PDF."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", path.read_bytes(), re.DOTALL)
    readable = [zlib.decompress(one).decode("latin-1") for one in streams if one[:1] == b"x"]
    return max(readable, key=lambda text: text.count("\n"))


def both(figure: Figure, folder: Path) -> None:
    draw_once(
        figure,
        lambda: FigureCanvasSVG(figure).print_svg(folder / "once.svg", metadata={"Date": None}),
        (lambda: FigureCanvasPdf(figure).print_pdf(folder / "once.pdf", metadata={"CreationDate": None}), DPI),
        (lambda: FigureCanvasAgg(figure).print_png(folder / "once.png"), 200.0),
    )


def test_one_drawing_gives_both_formats(tmp_path: Path) -> None:
    """What holds no text is the same operators, byte for byte, as if drawn for each format."""
    with house_style():
        both(picture(text=False), tmp_path)
        for name, canvas in (("svg", FigureCanvasSVG), ("pdf", FigureCanvasPdf)):
            figure = picture(text=False)
            getattr(canvas(figure), f"print_{name}")(
                tmp_path / f"alone.{name}", metadata={"Date": None} if name == "svg" else {"CreationDate": None}
            )
    assert (tmp_path / "once.svg").read_bytes() == (tmp_path / "alone.svg").read_bytes()
    assert page(tmp_path / "once.pdf") == page(tmp_path / "alone.pdf")


def test_texts_stand_where_a_drawing_for_pdf_alone_puts_them(tmp_path: Path) -> None:
    """Within a fifth of a point: the widths of texts are those that the SVG is laid out with."""
    with house_style():
        both(picture(text=True), tmp_path)
        FigureCanvasPdf(picture(text=True)).print_pdf(tmp_path / "alone.pdf")
    once, alone = page(tmp_path / "once.pdf"), page(tmp_path / "alone.pdf")
    number = re.compile(r"-?\d+(?:\.\d+)?")
    assert number.sub("#", once).split() == number.sub("#", alone).split()
    np.testing.assert_allclose(*(np.array(number.findall(text), dtype=float) for text in (once, alone)), atol=0.2)


@pytest.mark.parametrize(("text", "share"), [(False, 0.001), (True, 0.02)])
def test_pixels_are_those_of_a_drawing_for_png_alone(tmp_path: Path, text: bool, share: float) -> None:
    """But for the edges of glyphs, which stand up to half a pixel of the SVG elsewhere."""
    with house_style():
        both(picture(text), tmp_path)
        figure = picture(text)
        FigureCanvasSVG(figure).print_svg(tmp_path / "alone.svg")  # finds the places
        figure.set_layout_engine("none")
        figure.dpi = 200.0
        FigureCanvasAgg(figure).print_png(tmp_path / "alone.png")
    once, alone = (mpl.image.imread(tmp_path / f"{name}.png") for name in ("once", "alone"))
    assert once.shape == alone.shape == (600, 960, 4)
    assert (np.abs(once - alone).max(-1) > 0.2).mean() < share


def test_an_image_is_refused() -> None:
    figure = Figure()
    figure.subplots().imshow(np.zeros((2, 2)))
    with pytest.raises(NotImplementedError, match="image"):
        draw_once(figure, lambda: FigureCanvasSVG(figure).print_svg(Path("/dev/null")), (lambda: None, DPI))
    assert figure.draw.__func__ is Figure.draw


def test_fonts_of_a_pdf_hold_glyphs_and_no_layout(tmp_path: Path) -> None:
    with house_style():
        save(picture(text=True), tmp_path / "f", "Title", ORIGIN)
        figure = picture(text=True)
        FigureCanvasPdf(figure).print_pdf(tmp_path / "whole.pdf")
    fonts = [font_tables(tmp_path / name) for name in ("f.pdf", "whole.pdf")]
    assert fonts[0]
    assert all(tables <= style._EMBEDDED for tables in fonts[0])
    assert all("glyf" in tables for tables in fonts[0])
    assert any("GSUB" in tables for tables in fonts[1]), "matplotlib embeds less than it did: is our cut still needed?"


def font_tables(path: Path) -> list[set[str]]:
    """The tables of every TrueType font in a PDF."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", path.read_bytes(), re.DOTALL)
    found = []
    for one in streams:
        data = zlib.decompress(one) if one[:1] == b"x" else one
        if data[:4] == b"\x00\x01\x00\x00":
            count = int.from_bytes(data[4:6], "big")
            found.append({data[12 + 16 * i : 16 + 16 * i].decode("latin-1") for i in range(count)})
    return found


def test_the_look_is_seaborns() -> None:
    colors = [color for color in sns.color_palette("colorblind").as_hex() if color not in PALE]
    assert list(style._PALETTE) == colors
    wanted = {**sns.axes_style("ticks"), **sns.plotting_context("paper")}
    ours = {
        "font.",
        "axes.",
        "xtick.",
        "ytick.",
        "grid.",
        "legend.",
        "text.",
        "image.",
        "lines.linewidth",
        "lines.markersize",
        "figure.",
    }
    with house_style():
        for key, value in wanted.items():
            if not key.startswith(tuple(ours)):
                assert mpl.rcParams[key] == value, key


def test_figures_import_no_seaborn() -> None:
    code = (
        "import sys; from reports.figures import registry, style\nwith style.house_style(): pass\nassert 'seaborn' not"
        " in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(style.__file__).parents[2], timeout=60)
