"""The whole report: contents, safety, determinism, degenerate studies, and an interrupted render."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import UserError
from reports.console import report
from reports.figures import registry as figures
from reports.figures import style
from reports.findings.findings import Findings
from reports.pages import report as render
from reports.pages.report import render_report
from reports.records.load import StudyRecords

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

NASTY = '<script>alert("x")</script> & <img src=x onerror=alert(1)> \x00 "quoted"'
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Checks nesting, and collects headings, identifiers, links and what an accessible page needs."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.loads: list[str] = []
        self.scripts = 0
        self.unscoped = 0
        self.unlabelled = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in VOID:
            self.stack.append(tag)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a":
            self.links.append(str(found.get("href")))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag in {"img", "script", "iframe", "link"} and (found.get("src") or found.get("href")):
            self.loads.append(str(found.get("src") or found.get("href")))
        self.scripts += tag == "script"
        self.unscoped += tag == "th" and "scope" not in found
        self.unlabelled += found.get("role") == "img" and not found.get("aria-label")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> without a start"
        assert self.stack.pop() == tag


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert parser.stack == []
    return parser


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


def test_page_is_well_formed_self_contained_and_accessible(rendered: tuple[Built, dict[str, bytes]]) -> None:
    page = rendered[1]["index.html"].decode()
    found = outline(page)
    assert len(found.ids) == len(set(found.ids))
    assert found.loads == ["data:,"]
    assert found.scripts == 1
    assert found.unscoped == 0
    assert found.unlabelled == 0
    assert found.headings[0] == 1
    assert found.headings.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in zip(found.headings, found.headings[1:], strict=False))
    inner = {link[1:] for link in found.links if link.startswith("#")}
    assert inner <= set(found.ids)
    outer = {link for link in found.links if not link.startswith("#")}
    assert outer <= set(rendered[1])
    assert not re.search(r"(src|href)=\"https?:", page)
    assert "@import" not in page
    assert not re.search(r"\bnan\b", re.sub(r"<(svg|script).*?</\1>", "", page, flags=re.DOTALL), flags=re.IGNORECASE)


def test_the_page_shows_the_health_of_the_trials_and_the_bands(rendered: tuple[Built, dict[str, bytes]]) -> None:
    page, markdown = rendered[1]["index.html"].decode(), rendered[1]["report.md"].decode()
    assert '<li><a href="#health">Health</a></li>' in page
    assert "Series left their healthy band in 3 of 11 trials: beta_0 (3 of 3)." in page
    assert "objective/kl_per_token above 0.5" in page
    assert "## Health of the trials" in markdown
    assert "at most 0.02 in at least 80 % of the records" in page.partition('id="glossary"')[2]


def test_completions_cannot_inject(rendered: tuple[Built, dict[str, bytes]]) -> None:
    page, markdown = rendered[1]["index.html"].decode(), rendered[1]["report.md"].decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in page
    assert "onerror=alert(1)>" not in page
    assert "\x00" not in page
    assert "<script" not in markdown


def test_page_says_what_a_reader_needs(rendered: tuple[Built, dict[str, bytes]]) -> None:
    built, files = rendered
    page = files["index.html"].decode()
    for text in (
        built.study.question,
        "Before you use these numbers",
        "1 diverged",
        "perplexity 8.31",
        "accuracy 0.790",
        "torch 2.13.0",
    ):
        assert text in page, text
    assert "The claim that the policy stays within 0.025 nats per token" in page
    assert "objective/kl_k3_per_token" in page
    assert "algorithm.gae_lambda" in page


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
        ({"arms": ONE, "seeds": (0,)}, "no other evaluated arm to compare"),
        ({"seeds": (0,), "diverged": tuple((arm, 0) for arm in ARMS)}, "4 diverged"),
        ({"seeds": (0,), "missing": tuple((arm, 0) for arm in ARMS)}, "No trial has been evaluated"),
        ({"seeds": (0, 1), "prompts": 0}, "No trial has been evaluated"),
        ({"seeds": (0, 1), "prompts": 1}, "undecided"),
    ],
)
def test_degenerate_studies_still_make_a_page(
    build: Builder, tmp_path: Path, shape: dict[str, object], says: str
) -> None:
    built = build(tmp_path, **{"steps": 64, "prompts": 6, **shape})
    page = render_report(built.folder, built.study).read_text()
    outline(page)
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
        patched.setattr(render, "_markdown_report", interrupted)
        with pytest.raises(KeyboardInterrupt):
            render_report(built.folder, built.study)
    assert contents(page.parent) == before
    page.parent.replace(built.folder.path / ".report.old")  # as if killed between the two steps of the swap
    with monkeypatch.context() as patched:
        patched.setattr(render, "_markdown_report", interrupted)
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
