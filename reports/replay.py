"""One drawing for two vector formats: the calls that the first canvas receives are kept, and sent to the second as they are.

To draw a figure, matplotlib computes its ticks, places its labels and measures its texts; SVG and PDF, both at 72 dots
per inch, get the same calls out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.figure import Figure

_DRAWING = (
    "open_group", "close_group", "draw_path", "draw_markers", "draw_path_collection", "draw_quad_mesh",
    "draw_gouraud_triangles", "draw_text",
)  # fmt: skip
"""Methods of `RendererBase` that leave something on the page; images apart, which no figure has."""

_Call = tuple[str, list[Any], dict[str, Any]]


def draw_once(figure: Figure, first: Callable[[], None], second: Callable[[], None]) -> None:
    """Let `first` print the figure, then `second` print the same without drawing it again; both at 72 dots per inch.

    Raises `NotImplementedError` for a figure with an image, whose pixels depend on the format.
    """
    calls: list[_Call] = []
    draw = figure.draw

    def record(renderer: RendererBase) -> None:
        for name in _DRAWING:
            setattr(renderer, name, _recording(renderer, name, calls))
        renderer.draw_image = _no_image  # type: ignore[assignment, method-assign]
        draw(renderer)

    def replay(renderer: RendererBase) -> None:
        for name, arguments, options in calls:
            own = [_copy(one, renderer.new_gc()) for one in arguments]
            getattr(renderer, name)(*(_upright(renderer, own) if name == "draw_text" else own), **options)

    try:
        figure.draw = record  # type: ignore[method-assign]
        first()
        figure.draw = replay  # type: ignore[method-assign]
        second()
    finally:
        figure.draw = draw  # type: ignore[method-assign]


def _recording(renderer: RendererBase, name: str, calls: list[_Call]) -> Callable[..., None]:
    method = getattr(renderer, name)

    def call(*arguments: Any, **options: Any) -> None:
        kept = [_copy(one, GraphicsContextBase()) for one in arguments]
        calls.append((name, _upright(renderer, kept) if name == "draw_text" else kept, options))
        method(*arguments, **options)

    return call


def _copy(argument: Any, empty: GraphicsContextBase) -> Any:
    """A graphics context as it is at the moment, in the form that a renderer wants; anything else as it is."""
    if not isinstance(argument, GraphicsContextBase):
        return argument
    empty.copy_properties(argument)
    return empty


def _upright(renderer: RendererBase, arguments: list[Any]) -> list[Any]:
    """Of a text, y counted from the bottom of the page where the renderer counts it from the top, and the other way round."""
    context, x, y, *rest = arguments
    return [context, x, renderer.get_canvas_width_height()[1] - y if renderer.flipy() else y, *rest]


def _no_image(*_: Any) -> None:
    raise NotImplementedError("a figure with an image cannot be replayed in another format")
