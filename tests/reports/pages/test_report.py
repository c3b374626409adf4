"""The whole report: contents, safety, determinism, degenerate studies, and an interrupted render."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from pipeline.errors import UserError
from reports.console import compare, report
from reports.figures import registry as figures
from reports.figures import style
from reports.findings.findings import Findings
from reports.pages import report as render
from reports.pages.page import TEMPLATES
from reports.pages.report import render_report
from reports.records.load import StudyRecords
from reports.text.words import interval
from studies.console.summary import print_study
from studies.definition.design import Cell

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

NASTY = '<script>alert("x")</script> & <img src=x onerror=alert(1)> \x00 "quoted"'
VOID = {"meta", "link", "br", "img", "hr", "input"}
CSS = (TEMPLATES / "base.html.j2").read_text("utf-8")
NAMED = {"a", "th", "summary", "h2"}


class Parsed(HTMLParser):
    """Start tags with their attributes, the text of elements that must have one, and whether tags are nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.open: list[int] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(len(self.found) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        for index in self.open:
            self.texts[index] = self.texts.get(index, "") + data

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.found[self.open.pop()][0] == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]

    def all(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.found if name in attrs]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures as SVG alone: the other formats are tested once."""

    def svg_only(figure: object, stem: Path, title: str, origin: object) -> None:
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})  # type: ignore[attr-defined]

    monkeypatch.setattr(style, "save", svg_only)


@pytest.fixture(scope="module")
def rendered(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, dict[str, bytes]]:
    built = build(tmp_path_factory.mktemp("render"), first_completion=NASTY)
    page = render_report(built.folder, built.study)
    return built, contents(page.parent)


def test_all_files_are_there(rendered: tuple[Built, dict[str, bytes]]) -> None:
    files = rendered[1]
    wanted = {"index.html", "report.md", "claims.json", "tables/samples.csv"}
    of_others = {"interactions", "pareto", "matched_kl", "price", "tradeoff"}
    drawn = [name for name in figures.FIGURES if name not in of_others]
    wanted |= {f"figures/{name}{suffix}" for name in drawn for suffix in (".svg", ".png", ".pdf", ".csv")}
    tables = ["claims", "arms", "completions", "robust", "effects", "sensitivity", "matched_kl", "alarms"]
    tables += ["gold_peaks", "health"]
    tables += ["verdicts", "statuses", "cost", "trials", "upstream", "coverage"]
    wanted |= {f"tables/{name}{suffix}" for name in tables for suffix in (".csv", ".md", ".tex")}
    assert set(files) == wanted
    assert all(files.values())


def test_rendering_twice_gives_the_same_bytes(records: StudyRecords, findings: Findings, tmp_path: Path) -> None:
    """Of three figures here; that all figures are drawn alike twice is tested with them."""
    few = replace(records, study=records.study.model_copy(update={"figures": ("frontier", "overoptimisation", "kl")}))
    for run in ("a", "b"):
        render.build(few, findings, tmp_path / run)
    first = contents(tmp_path / "a")
    assert {path.rpartition(".")[2] for path in first} == {"html", "json", "md", "csv", "tex", "svg", "png", "pdf"}
    assert contents(tmp_path / "b") == first


@pytest.mark.parametrize("name", ["index.html", "compare"])
def test_pages_are_well_formed_self_contained_and_accessible(
    rendered: tuple[Built, dict[str, bytes]], name: str
) -> None:
    built, files = rendered
    if name == "compare":
        path, _ = compare([built.study.source], out=built.layout.root)
        files = contents(path.parent)
    text = files["index.html"].decode()
    page = Parsed(text)
    assert page.of("html")[0]["lang"] == "en"
    assert [len(page.of(tag)) for tag in ("main", "header", "footer", "h1", "title", "script")] == [1] * 6
    assert all("aria-label" in nav for nav in page.of("nav"))
    assert all(attrs.get("scope") in {"col", "row"} for attrs in page.of("th"))
    assert all(section.get("aria-label") or section.get("aria-labelledby") for section in page.of("section"))
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    assert set(page.all("aria-labelledby")) <= set(ids)
    assert [tag for i, (tag, _) in enumerate(page.found) if tag in NAMED and not page.texts.get(i, "").strip()] == []
    levels = [1, *(int(tag[1]) for tag, _ in page.found if re.fullmatch("h[1-6]", tag))]
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    links = [str(attrs["href"]) for attrs in page.of("a")]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert {link for link in links if not link.startswith("#")} <= set(files)
    assert page.all("src") == []
    assert [attrs["href"] for attrs in page.of("link")] == ["data:,"]
    assert "@import" not in text
    bare = re.sub(r"<(svg|script).*?</\1>", "", text, flags=re.DOTALL)
    assert "http" not in bare
    assert not re.search(r"\bnan\b", bare, flags=re.IGNORECASE)
    assert "<button" not in bare
    assert bare.count("<details>") == bare.count("<summary>")
    scrolling = [attrs for _, attrs in page.found if attrs.get("class") in {"scroll", "pan"}]
    assert all(attrs.get("tabindex") == "0" and attrs.get("aria-label") for attrs in scrolling)
    images = [attrs for _, attrs in page.found if attrs.get("role") == "img"]
    assert len(images) == len(page.of("figure")) == (8 if name == "index.html" else 0)
    assert all(len(attrs["aria-label"] or "") > 40 for attrs in images)
    assert all(attrs.get("aria-hidden") == "true" and attrs.get("focusable") == "false" for attrs in page.of("svg"))


def test_colours_of_text_have_contrast() -> None:
    """WCAG 2.1, 1.4.3: (L1 + 0.05) / (L2 + 0.05) of the relative luminances is at least 4.5."""
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", CSS))
    grounds = ["#ffffff", *re.findall(r"background: (#[0-9a-f]{6})", CSS)]
    assert len(grounds) > 1
    for name in ("ink", "soft", "link", "good", "bad"):
        for ground in grounds:
            light, dark = sorted((luminance(colours[name]), luminance(ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_completions_cannot_inject(rendered: tuple[Built, dict[str, bytes]]) -> None:
    page, markdown = rendered[1]["index.html"].decode(), rendered[1]["report.md"].decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in page
    assert "onerror=alert(1)>" not in page
    assert "\x00" not in page
    assert "<script" not in markdown


def test_the_page_opens_with_the_answer_the_frontier_and_the_hypotheses(
    rendered: tuple[Built, dict[str, bytes]],
) -> None:
    built, files = rendered
    page = files["index.html"].decode()
    marks = [
        built.study.question, 'class="answer"', 'href="#caveats"', 'id="figure-frontier"', "</header>", 'id="claims"',
        "The claim that the policy stays within 0.025 nats per token", 'id="caveats"', 'id="results"',
        'id="figure-overoptimisation"', 'id="health"', 'id="methods"', 'id="glossary"',
    ]  # fmt: skip
    places = [page.index(mark) for mark in marks]
    assert places == sorted(places)
    assert page.count('id="figure-frontier"') == 1
    for text in ("1 diverged", "perplexity 8.31", "accuracy 0.790", "torch 2.13.0", "3 of 11 trials: beta_0 (3 of 3)"):
        assert text in page, text
        assert text in files["report.md"].decode() or "torch" in text


def test_the_terminal_shows_the_intervals_of_the_page(
    rendered: tuple[Built, dict[str, bytes]], records: StudyRecords, findings: Findings
) -> None:
    built, files = rendered
    out = Console(file=io.StringIO(), width=200)
    intervals = json.loads(files["claims.json"])["arms"]
    plan = [cell for cell in records.plan if isinstance(cell, Cell)]
    print_study(out, built.study, plan, list(records.records.values()), None, intervals)
    shown = {line.split()[0]: line for line in out.file.getvalue().splitlines() if line.strip()}  # type: ignore[attr-defined]
    for result in findings.arms:
        for key in ("eval/win_rate", "eval/gold", "eval/proxy", "eval/kl_per_token"):
            value, _, ends = interval(result.estimates[key], key).partition(" ")
            assert f"{value} {ends}" in shown[result.arm]
            assert f"{value}<small>{ends}</small>" in files["index.html"].decode()


def test_figures_carry_the_design_digest(rendered: tuple[Built, dict[str, bytes]]) -> None:
    digest = re.search(r"Design ([0-9a-f]{8})", rendered[1]["index.html"].decode())
    assert digest
    assert digest[1].encode() in rendered[1]["figures/kl.svg"]
    assert digest[1].encode() in rendered[1]["figures/kl.png"]


ONE = {"beta_0.05": 0.05}
ARMS = ("beta_0", "beta_0.01", "beta_0.05", "beta_0.2")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ({"arms": ONE, "seeds": (0,)}, "1 seed × 6 prompts"),
        ({"seeds": (0,), "diverged": tuple((arm, 0) for arm in ARMS)}, "4 diverged"),
        ({"seeds": (0,), "missing": tuple((arm, 0) for arm in ARMS)}, "4 missing"),
        ({"seeds": (0, 1), "prompts": 0}, "No trial has been evaluated"),
        ({"seeds": (0, 1), "prompts": 1}, "undecided"),
    ],
)
def test_degenerate_studies_still_make_a_page(
    build: Builder, tmp_path: Path, shape: dict[str, object], says: str
) -> None:
    built = build(tmp_path, **{"steps": 64, "prompts": 6, **shape})
    page = render_report(built.folder, built.study).read_text()
    Parsed(page)
    assert says in page
    assert not re.search(r">\s*nan\b", page)
    assert "None" not in re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)


@pytest.mark.usefixtures("quick")
def test_interrupted_render_leaves_the_old_report_whole(
    build: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64, extra="figures: []\n")
    page = render_report(built.folder, built.study)
    before = contents(page.parent)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(render, "summary", interrupted)
        with pytest.raises(KeyboardInterrupt):
            render_report(built.folder, built.study)
    assert contents(page.parent) == before
    page.parent.replace(built.folder.path / ".report.old")  # as if killed between the two steps of the swap
    with monkeypatch.context() as patched:
        patched.setattr(render, "summary", interrupted)
        with pytest.raises(KeyboardInterrupt):
            render_report(built.folder, built.study)
    assert contents(page.parent) == before
    render_report(built.folder, built.study)
    assert contents(page.parent) == before
    assert sorted(path.name for path in built.folder.path.iterdir() if "report" in path.name) == [
        ".report.lock",
        "report",
    ]


@pytest.mark.usefixtures("quick")
def test_command_renders_by_path_and_names_what_was_never_run(build: Builder, tmp_path: Path) -> None:
    built = build(tmp_path, seeds=(0,), prompts=4, steps=64, extra="figures: []\n")
    assert report(built.study.source, None, built.layout.root) == built.folder.report / "index.html"
    with pytest.raises(UserError, match=r"no study 'kl_ablatoin'.*kl_ablation"):
        report("kl_ablatoin", None, built.layout.root)


def test_reports_never_import_torch() -> None:
    code = (
        "import reports.pages.report, reports.console, sys; assert 'torch' not in sys.modules and 'transformers' not in"
        " sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(render.__file__).parents[2], timeout=60)
