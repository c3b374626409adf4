"""What the pages owe to readers who do not see, point or unfold: checked here on structure and colours, without a
browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.console import compare
from reports.figures import style
from reports.figures.style import legible
from reports.pages.page import TEMPLATES
from reports.pages.report import render_report

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

CSS = (TEMPLATES / "base.html.j2").read_text("utf-8")
AA = 4.5


class Elements(HTMLParser):
    """Every start tag with its attributes, and the text of what must have one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.stack: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag in {"a", "button", "th", "caption", "h1", "h2", "h3", "h4", "summary", "title"}:
            self.stack.append(len(self.found) - 1)

    def handle_data(self, data: str) -> None:
        for index in self.stack:
            self.texts[index] = self.texts.get(index, "") + data

    def handle_endtag(self, tag: str) -> None:
        if self.stack and self.found[self.stack[-1]][0] == tag:
            self.stack.pop()

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


@pytest.fixture(scope="module")
def pages(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    built: Built = build(tmp_path_factory.mktemp("pages"), seeds=(0, 1), steps=64, prompts=8, budget=(), missing=())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(style, "save", _svg)
        report = render_report(built.folder, built.study)
    root = built.layout.root
    found = {
        "report": report,
        "compare": compare([built.study.source], out=root)[0],
    }
    return {name: path.read_text("utf-8") for name, path in found.items()}


def _svg(figure: object, stem: Path, title: str, origin: object) -> None:
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["report", "compare"])
def test_structure(pages: dict[str, str], name: str) -> None:
    page = Elements()
    page.feed(pages[name])
    assert page.of("html")[0]["lang"] == "en"
    assert [len(page.of(tag)) for tag in ("main", "header", "footer", "h1", "title")] == [1] * 5
    assert all("aria-label" in nav for nav in page.of("nav"))
    assert all(attrs.get("scope") in {"col", "row"} for attrs in page.of("th"))
    assert all(section.get("aria-label") or section.get("aria-labelledby") for section in page.of("section"))
    ids = [str(attrs["id"]) for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    labels = {str(attrs["aria-labelledby"]) for _, attrs in page.found if "aria-labelledby" in attrs}
    assert labels <= set(ids)
    nameless = [
        page.found[i]
        for i, (tag, _) in enumerate(page.found)
        if tag in {"a", "th", "summary", "h2"} and not page.texts.get(i, "").strip()
    ]
    assert nameless == []
    levels = [int(tag[1]) for tag, _ in page.found if re.fullmatch("h[1-6]", tag)]
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", pages[name].replace("http://www.w3.org", ""))


def test_every_figure_has_words_and_scrolls_by_keyboard(pages: dict[str, str]) -> None:
    page = Elements()
    page.feed(pages["report"])
    images = [attrs for _, attrs in page.found if attrs.get("role") == "img"]
    assert len(images) == len(page.of("figure")) >= 8
    assert all(len(attrs["aria-label"] or "") > 40 for attrs in images)
    assert all(attrs.get("aria-hidden") == "true" and attrs.get("focusable") == "false" for attrs in page.of("svg"))
    scrolling = [attrs for _, attrs in page.found if attrs.get("class") in {"scroll", "pan"}]
    assert scrolling
    assert all(attrs.get("tabindex") == "0" and attrs.get("aria-label") for attrs in scrolling)


def test_tables_are_whole_without_scripts_and_details_open_without_them(pages: dict[str, str]) -> None:
    bare = re.sub(r"<script>.*?</script>", "", pages["report"], flags=re.DOTALL)
    assert "<button" not in bare
    assert bare.count("<details>") == bare.count("<summary>") > 0
    assert bare.count("<tr>") == pages["report"].count("<tr>")
    assert "hidden" not in {key for _, attrs in _elements(bare) for key in attrs}


def _elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    page = Elements()
    page.feed(text)
    return page.found


def test_colours_of_text_have_contrast() -> None:
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", CSS))
    grounds = ["#ffffff", *re.findall(r"background: (#[0-9a-f]{6})", CSS)]
    assert "#fdf8ee" in grounds
    for name in ("ink", "soft", "link", "good", "bad"):
        for ground in grounds:
            assert contrast(colours[name], ground) >= AA, (name, ground)


@pytest.mark.parametrize("colour", ["#de8f05", "#cc78bc", "#56b4e9", "#1c2127"])
def test_names_of_lines_are_legible_in_their_colour(colour: str) -> None:
    assert contrast(legible(colour), "#ffffff") >= AA
    assert legible("#1c2127") == "#1c2127"


def contrast(first: str, second: str) -> float:
    """WCAG 2.1, 1.4.3: (L1 + 0.05) / (L2 + 0.05) of the relative luminances."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_motion_focus_and_print_are_cared_for() -> None:
    motion = CSS.index("scroll-behavior: smooth")
    assert "prefers-reduced-motion: no-preference" in CSS[motion - 80 : motion]
    assert "animation" not in CSS
    assert "transition" not in CSS
    assert ":focus-visible" in CSS
    assert "outline: none" not in CSS
    assert "@media print" in CSS
