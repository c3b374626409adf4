"""The whole report: contents, safety, determinism, degenerate studies, and an interrupted render."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic import Built, build

from reports.figures import registry
from reports.pages import report as render
from reports.pages.compare import compare
from reports.pages.report import render_report
from reports.records.load import find_study
from reports.text.words import interval
from studies.console.summary import print_study

NASTY = '<script>alert("x")</script> & <img src=x onerror=alert(1)> \x00 "quoted"'
VOID = {"meta", "link", "br", "img", "hr", "input"}
Rendered = tuple[Built, dict[str, bytes]]


class Parsed(HTMLParser):
    """Start tags with their attributes; fails on tags that are not nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]

    def all(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.found if name in attrs]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    built = build(tmp_path_factory.mktemp("render"), first=NASTY)
    return built, contents(render_report(built.folder, built.study).parent)


def test_all_files_are_there_and_the_same_again(rendered: Rendered) -> None:
    built, files = rendered
    wanted = {"index.html", "report.md", "claims.json", "tables/samples.csv"}
    names = set(registry.FIGURES) - {"interactions", "pareto", "matched_kl", "price", "tradeoff"}
    wanted |= {f"figures/{name}{suffix}" for name in names for suffix in (".svg", ".png", ".pdf", ".csv")}
    tables = ["claims", "arms", "completions", "effects", "power", "matched_kl", "alarms", "gold_peaks", "health"]
    tables += ["verdicts", "statuses", "cost", "trials", "upstream"]
    wanted |= {f"tables/{name}{suffix}" for name in tables for suffix in (".csv", ".md", ".tex")}
    assert set(files) == wanted
    assert all(files.values())
    assert contents(render_report(built.folder, built.study).parent) == files


@pytest.mark.parametrize("name", ["index.html", "compare"])
def test_pages_are_well_formed_self_contained_and_accessible(rendered: Rendered, name: str) -> None:
    built, files = rendered
    if name == "compare":
        files = contents(compare([(built.folder, built.study)], built.layout.root)[0].parent)
    text = files["index.html"].decode()
    page = Parsed(text)
    assert [len(page.of(tag)) for tag in ("main", "header", "footer", "h1", "title", "script")] == [1] * 6
    assert all(attrs.get("scope") in {"col", "row"} for attrs in page.of("th"))
    assert all(section.get("aria-label") or section.get("aria-labelledby") for section in page.of("section"))
    ids, links = page.all("id"), page.all("href")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in links} <= {*ids, *files, "data:,"}
    assert page.all("src") == []
    bare = re.sub(r"<(svg|script).*?</\1>", "", text, flags=re.DOTALL)
    assert "http" not in bare
    assert not re.search(r"\bnan\b", bare, flags=re.IGNORECASE)
    images = [attrs for _, attrs in page.found if attrs.get("role") == "img"]
    assert len(images) == len(page.of("figure")) == (7 if name == "index.html" else 0)
    assert all(len(attrs["aria-label"] or "") > 40 for attrs in images)


def test_completions_cannot_inject(rendered: Rendered) -> None:
    page, markdown = rendered[1]["index.html"].decode(), rendered[1]["report.md"].decode()
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in page
    for never in ("<script>alert", "onerror=alert(1)>", "\x00"):
        assert never not in page
    assert "<script" not in markdown
    for text in ("1 diverged", "perplexity 8.31", "accuracy 0.790", "3 of 11 trials: beta_0 (3 of 3)"):
        assert text in page, text
        assert text in markdown, text


def test_the_terminal_shows_the_intervals_of_the_page(rendered: Rendered) -> None:
    built, files = rendered
    out, page = io.StringIO(), files["index.html"].decode()
    records = built.records
    print_study(
        Console(file=out, width=200), built.study, list(records.plan), list(records.records.values()),
        json.loads(files["claims.json"])["arms"],
    )  # fmt: skip
    shown = {line.split()[0]: line for line in out.getvalue().splitlines() if line.strip()}
    for result in built.findings.arms:
        for key in ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_token"):
            value, _, ends = interval(result.estimates[key], key).partition(" ")
            assert f"{value} {ends}" in shown[result.arm]
            assert f"{value}<small>{ends}</small>" in page


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"arms": {"beta_0.05": 0.05}, "seeds": (0,)}, "1 seed × 6 prompts"),
        ({"seeds": (0, 1), "prompts": 0}, "No trial has been evaluated"),
        ({"seeds": (0, 1), "prompts": 1}, "undecided"),
    ],
)
def test_degenerate_studies_still_make_a_page(tmp_path: Path, shape: dict[str, Any], words: str) -> None:
    built = build(tmp_path, **{"steps": 64, "prompts": 6, **shape})
    page = render_report(built.folder, built.study).read_text()
    Parsed(page)
    assert words in page
    assert not re.search(r">\s*nan\b", page)
    assert "None" not in re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)


def test_interrupted_render_leaves_the_old_report_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64, extra="figures: []\n")
    page = render_report(*find_study(built.layout, built.study.source))
    assert page == built.folder.report / "index.html"
    before = contents(page.parent)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for swap in (False, True):
        if swap:
            page.parent.replace(built.folder.path / ".report.old")  # as if killed between the two steps of the swap
        with monkeypatch.context() as patched:
            patched.setattr(render, "summary", interrupted)
            with pytest.raises(KeyboardInterrupt):
                render_report(built.folder, built.study)
        assert contents(page.parent) == before
    render_report(built.folder, built.study)
    assert contents(page.parent) == before
    left = sorted(path.name for path in built.folder.path.iterdir() if "report" in path.name)
    assert left == [".report.lock", "report"]
