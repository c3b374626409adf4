"""One drawing for several formats: the calls that the first canvas receives are kept, and sent to the others as they
are.

To draw a figure, matplotlib computes its ticks, places its labels and measures its texts; every format gets the same
calls out of it, in pixels of its own resolution.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D, Bbox, BboxBase, Transform

DPI = 72.0
"""Of SVG and PDF."""

_DRAWING = (
    "open_group", "close_group", "draw_path", "draw_markers", "draw_path_collection", "draw_quad_mesh",
    "draw_gouraud_triangles", "draw_text",
)  # fmt: skip
"""Methods of `RendererBase` that leave something on the page; images apart, which no figure has."""

_Call = tuple[str, list[Any], dict[str, Any]]


def draw_once(figure: Figure, first: Callable[[], None], *others: tuple[Callable[[], None], float]) -> None:
    """Let `first` print the figure at 72 dots per inch, then each of `others` the same, at its dots per inch, without
    drawing it again.

    Raises `NotImplementedError` for a figure with an image, whose pixels depend on the format.
    """
    calls: list[_Call] = []
    draw = figure.draw

    def record(renderer: RendererBase) -> None:
        freeze = lru_cache(None)(_frozen)  # equal clips stay one object, which is how the PDF knows them
        for name in _DRAWING:
            setattr(renderer, name, _recording(renderer, name, calls, freeze))
        renderer.draw_image = _no_image  # type: ignore[assignment, method-assign]
        draw(renderer)

    def replay(renderer: RendererBase) -> None:
        scale = figure.dpi / DPI
        for name, arguments, options in calls:
            own = [_scaled(argument, renderer.new_gc(), scale) for argument in arguments]
            getattr(renderer, name)(*(_placed(renderer, own, scale) if name == "draw_text" else own), **options)

    try:
        figure.draw = record  # type: ignore[method-assign]
        first()
        figure.draw = replay  # type: ignore[method-assign]
        for print_it, figure.dpi in others:
            print_it()
    finally:
        figure.draw = draw  # type: ignore[method-assign]


def _recording(
    renderer: RendererBase, name: str, calls: list[_Call], freeze: Callable[[Any], Any]
) -> Callable[..., None]:
    method = getattr(renderer, name)

    def call(*arguments: Any, **options: Any) -> None:
        kept = [_kept(argument, freeze) for argument in arguments]
        calls.append((name, _placed(renderer, kept, 1.0) if name == "draw_text" else kept, options))
        method(*arguments, **options)

    return call


def _kept(argument: Any, freeze: Callable[[Any], Any]) -> Any:
    """A transform, or a graphics context with its clips, as it is at the moment; anything else as it is."""
    if isinstance(argument, Transform):
        return argument.frozen()
    if not isinstance(argument, GraphicsContextBase):
        return argument
    context = GraphicsContextBase()
    context.copy_properties(argument)
    context.set_clip_rectangle(freeze(argument.get_clip_rectangle()))
    return context


def _frozen(rectangle: BboxBase | None) -> BboxBase | None:
    return rectangle.frozen() if rectangle is not None else None


def _scaled(argument: Any, empty: GraphicsContextBase, scale: float) -> Any:
    """What was kept, in pixels of another size. Widths of lines and sizes of texts are in points, whatever the
    pixels."""
    if isinstance(argument, Transform):
        return argument + Affine2D().scale(scale) if scale != 1.0 else argument
    if not isinstance(argument, GraphicsContextBase):
        return argument
    empty.copy_properties(argument)
    rectangle, clip = argument.get_clip_rectangle(), argument.get_clip_path()[0]
    if clip is not None:
        raise NotImplementedError("a figure that is clipped to a path cannot be replayed in another format")
    if rectangle is not None and scale != 1.0:
        empty.set_clip_rectangle(Bbox(rectangle.get_points() * scale))
    return empty


def _placed(renderer: RendererBase, arguments: list[Any], scale: float) -> list[Any]:
    """Of a text, x and y in these pixels, with y from the bottom of the page where the renderer takes it from the top,
    and vice versa."""
    context, x, y, *rest = arguments
    return [
        context,
        x * scale,
        renderer.get_canvas_width_height()[1] - y * scale if renderer.flipy() else y * scale,
        *rest,
    ]


def _no_image(*_: Any) -> None:
    raise NotImplementedError("a figure with an image cannot be replayed in another format")
