from __future__ import annotations

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from synthetic import WHOLE, Built, build
from typer.testing import CliRunner, Result

from ablate import app
from pipeline.errors import FAULT, UserError
from pipeline.run.layout import Layout
from reports.figures import registry
from reports.findings.findings import Findings, analyse
from reports.pages import report as render
from reports.pages.compare import Compared, compare, compare_studies, comparison_table, verdicts_table
from reports.pages.page import inline_svg
from reports.pages.published import publish
from reports.pages.report import render_report
from reports.records.load import find_study, load_records
from studies.importing.run import import_folder

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


def test_texts_of_figures_cannot_inject(tmp_path: Path) -> None:
    axes, text = (figure := Figure()).subplots(), NASTY.replace("\x00", "]]>'")
    axes.plot([1, 2], label=text, gid=text)
    axes.set_title(text)
    axes.legend()
    figure.savefig(tmp_path / "figure.svg", metadata={"Date": None})
    drawn = inline_svg(tmp_path / "figure.svg", "name")
    assert not re.search("<script|<img", drawn)
    ElementTree.fromstring(drawn)


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


@pytest.fixture
def built(tmp_path: Path) -> Built:
    arms = {"beta_0.05": 0.3, "beta_0.2": 0.5}
    return build(tmp_path, arms=arms, seeds=(0, 1), prompts=12, extra="figures: []\n", **WHOLE)


def call(built: Built, *words: str) -> Result:
    return CliRunner().invoke(app, [words[0], built.study.source, *words[1:], "--out", str(built.layout.root)])


def test_without_the_store_or_the_records_the_page_stays(built: Built) -> None:
    assert call(built, "report").exit_code == 0
    page, aside = contents(built.folder.report), built.layout.root / "aside"
    shutil.move(built.layout.store, aside)
    for words in (["report"], ["falsify"], ["compare"]):
        done = call(built, *words)
        assert done.exit_code == FAULT, words
        assert f"{built.layout.store} is missing: 4 of 4 recorded trials have lost results" in done.stderr
    assert f"{built.folder.report / 'index.html'} is unchanged" in call(built, "report").stderr
    built.layout.store.symlink_to(aside)  # a store on another disk serves
    assert [call(built, words).exit_code for words in ("report", "falsify")] == [0, 0]
    shutil.rmtree(aside / "reference")
    assert [call(built, words).exit_code for words in ("report", "falsify")] == [FAULT, 0], "verdicts need no reference"
    shutil.rmtree(built.folder.path / "trials")
    done = call(built, "report")
    assert done.exit_code == 2
    assert f"{built.folder.path / 'trials'}: no trial is recorded" in done.stderr
    assert contents(built.folder.report) == page


PARTS = """
hypotheses:
  - {name: tame, claim: drift falls, metric: eval/kl_per_token, order: [beta_0, beta_0.05, beta_0.2], expect: lower}
  - {name: agrees, claim: it agrees, metric: eval/preference_accuracy, contrast: beta_0.05 - beta_0, expect: higher}
"""
KEYS = ("eval/win_rate", "eval/win_rate_proxy", "eval/gold", "eval/kl_per_token")


def verdicts(findings: Findings) -> dict[str, object]:
    fell = {(one.arm, one.seed): one.outcome for claim in findings.claims for one in claim.verdicts}
    return {**{one.hypothesis.name: (one.outcome, one.p_holm) for one in findings.hypotheses}, "claims": fell}


def test_data_give_the_same_numbers_and_verdicts(tmp_path: Path) -> None:
    built = build(tmp_path, extra=PARTS)
    built.folder.registration_file.write_text("")
    page = publish(built.folder, built.study, tmp_path / "published")
    files = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    assert sum(map(len, files.values())) < 2**20
    file = page.parent / "published_kl_demo.yaml"
    import_folder(page.parent, str(file), Layout.at(tmp_path / "here"), "plain")
    imported = find_study(Layout.at(tmp_path / "here"), str(file))
    with pytest.raises(UserError, match="published_kl_demo cannot be published"):
        publish(*imported, tmp_path / "published")
    again = analyse(load_records(*imported))
    first = built.findings
    assert verdicts(again) == verdicts(first)
    for own, other_arm in zip(first.arms, again.arms, strict=True):
        assert other_arm.counts.get("diverged") == own.counts.get("diverged")
        for one, other in ((own.estimates[key], other_arm.estimates[key]) for key in KEYS):
            assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-12)
            assert (one.seeds, one.prompts) == (other.seeds, other.prompts)
    rows = (tmp_path / "published" / "README.md").read_text().splitlines()
    (row,) = [line for line in rows if "](kl_demo/README.md)" in line]
    assert sum(map(int, re.findall(r": (\d+)", row))) == 3
    second = built.study.model_copy(update={"confirms": "kl_demo"})
    text = publish(built.folder, second, tmp_path / "published").read_text()
    assert text.count("../kl_demo/README.md") == 1
    assert "0 turned around" in text
    assert re.search(r"\| drift falls \| (\S+ \(.+?\)) \| \1 \|", text), "both runs have verdict and effect"
    publish(built.folder, built.study, tmp_path / "published")
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == files


@pytest.fixture(scope="module")
def studies(demo: Built, tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    shape: dict[str, Any] = {"arms": {"a": 0.05, "b": 0.2}, "seeds": (0,), "steps": 64, "prompts": 20}
    built, key = build(tmp_path_factory.mktemp("other"), baseline="a", **shape), "sf99999999999999"
    for record in built.folder.records():
        sft = record.stages["sft"].model_copy(update={"key": key, "path": f"store/sft/{key}"})
        built.folder.write(record.model_copy(update={"stages": {**record.stages, "sft": sft}}))
    (reference,) = built.layout.store.glob("sft/[!.]*")
    reference.rename(reference.with_name(key))
    named = replace(built.records, study=built.study.model_copy(update={"name": "other"}))
    return [Compared(demo.records, demo.findings), Compared(named, analyse(named))]


def test_every_arm_of_every_study_has_a_row(demo: Built, studies: list[Compared]) -> None:
    table = comparison_table(studies)
    assert table.frame["arm"].tolist() == ["beta_0", "beta_0.01", "beta_0.05", "beta_0.2", "a", "b"]
    row = table.frame.set_index("arm").loc["beta_0.05"]
    assert row["eval/win_rate"] == demo.findings.arm("beta_0.05").estimates["eval/win_rate"].value
    assert (row["finding"], row["cost/wall_s"]) == ("baseline", 48.0)
    verdicts = [one for claim in demo.findings.claims for one in claim.verdicts if one.arm == "beta_0.05"]
    assert row["claims_falsified"] == [one.outcome for one in verdicts].count("FALSIFIED")


def test_page_and_terminal_have_every_arm_and_every_warning(studies: list[Compared], tmp_path: Path) -> None:
    page, said = compare_studies(studies, tmp_path)
    (warning,) = said.split("\n\n")[0].splitlines()[1:]
    assert "references" in warning
    assert warning.removeprefix("Warning: ") in page.read_text("utf-8")
    _, *rows = said.split("\n\n")[1].splitlines()
    assert [row.split()[:2] for row in rows] == [[s.label, r.arm] for s in studies for r in s.findings.arms]
    assert "Warning" not in compare_studies(studies[:1], tmp_path)[1]


def test_one_study_on_two_profiles_has_its_verdicts_side_by_side(demo: Built, tmp_path: Path) -> None:
    one = Compared(demo.records, demo.findings)
    first, *others = demo.findings.claims
    turned = replace(first, outcome="SURVIVED" if first.outcome == "FALSIFIED" else "FALSIFIED")
    undecided = [replace(claim, outcome="NOT TESTED") for claim in others[:1]]
    found = replace(demo.findings, claims=(turned, *undecided, *others[1:]))
    two = Compared(replace(demo.records, profile="chains"), found)
    table = verdicts_table([one, two])
    assert [head.text for head in table.heads] == ["claim", "kl_demo", "kl_demo (chains)", "together"]
    words = dict(zip(table.frame["claim"], table.frame["together"], strict=True))
    assert words[first.falsifier.name] == "other verdict"
    assert {words[claim.falsifier.name] for claim in undecided} <= {"undecided"}
    page, text = compare_studies([one, two], tmp_path)
    assert "other verdict" in text
    assert "Claims by profile" in page.read_text("utf-8")
    assert (page.parent / "tables" / "verdicts_compared.csv").is_file()


def test_command_writes_csv_markdown_and_html(demo: Built, tmp_path: Path) -> None:
    page, text = compare([find_study(demo.layout, demo.study.source)], demo.layout.root / "compare")
    assert page == demo.layout.root / "compare" / "kl_demo-tiny" / "index.html"
    names = {path.relative_to(page.parent).as_posix() for path in page.parent.rglob("*") if path.is_file()}
    assert names == {"index.html", "index.md", *(f"tables/comparison.{suffix}" for suffix in ("csv", "md", "tex"))}
    assert "beta_0.05" in text
    with pytest.raises(UserError, match="given twice"):
        compare([find_study(demo.layout, demo.study.source)] * 2, demo.layout.root)
    with pytest.raises(UserError, match="has not been run"):
        find_study(Layout.at(tmp_path), "kl_ablation")
