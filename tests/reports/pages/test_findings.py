from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pipeline.config.loading import profile_names
from pipeline.run.layout import Layout
from reports.figures.papers import TESTBEDS
from reports.findings.findings import analyse
from reports.pages import findings as page
from reports.pages.findings import CLAIMS, findings, folders, write_index
from reports.pages.published import _found
from reports.records.load import find_study, load_records
from reports.tables.claims import claims_table
from studies.definition.schema import load_study
from studies.importing.run import import_folder

ROOT = Path(__file__).parents[3]
ROW = {
    "study": "own", "profile": "tiny", "trials": 10, "hours": 0.5, "claim": "ours", "effect": "+0.10 [0.05]",
    "n": "5 × 512", "registered": "registered before the data", "metric": "eval/win_rate",
    "expect": "equal", "margin": 0.05,
}  # fmt: skip


def test_each_finding_names_a_claim_of_a_shipped_study() -> None:
    known = dict[str, Any]()
    for folder, (name, profile) in folders().items():
        assert profile is None or profile in profile_names()
        study = load_study(name)
        known |= {f"{folder}/{claim.name}": claim for claim in (*study.hypotheses, *study.falsifiers)}
    for one in findings():
        assert {"finding", "source", "setting", "differs"} <= one.keys()
        assert any(bed in one for bed in TESTBEDS)
        for place in (one[bed] for bed in TESTBEDS if bed in one):
            assert place in known or place.startswith("NOT COMPARABLE: "), place
            if "theirs" in one and place in known:
                ours = known[place]
                assert (one["theirs"]["expect"], one["theirs"]["margin"]) != (ours.expect, ours.margin), one["finding"]


@pytest.mark.parametrize(
    ("ours", "interval", "theirs", "verdict"),
    [
        ("SUPPORTED", (-0.01, 0.02), None, "REPRODUCED"),
        ("FALSIFIED", (None, None), None, "REFUTED"),
        ("UNDECIDED", (-0.1, 0.02), None, "UNDECIDED"),
        ("NOT TESTED", (None, None), None, "NOT TESTED"),
        ("NOT TESTED", (0.01, 0.02), {"expect": "higher", "margin": 0.0}, "NOT TESTED"),
        ("SUPPORTED", (0.01, 0.02), {"expect": "higher", "margin": 0.0}, "REPRODUCED"),
        ("SUPPORTED", (-0.02, -0.01), {"expect": "higher", "margin": 0.0}, "REFUTED"),
        ("SUPPORTED", (-0.01, 0.02), {"expect": "higher", "margin": 0.0}, "UNDECIDED"),
        ("REFUTED", (-0.02, -0.01), {"expect": "lower", "margin": 0.0}, "REPRODUCED"),
        ("UNDECIDED", (-0.02, 0.02), {"expect": "equal", "margin": 0.03}, "REPRODUCED"),
        ("UNDECIDED", (-0.02, 0.04), {"expect": "equal", "margin": 0.03}, "UNDECIDED"),
        ("SUPPORTED", (0.04, 0.06), {"expect": "equal", "margin": 0.03}, "REFUTED"),
    ],
)
def test_the_interval_decides_where_the_paper_predicts_something_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ours: str,
    interval: tuple[float | None, float | None],
    theirs: dict[str, Any] | None,
    verdict: str,
) -> None:
    low, high = interval
    middle = None if low is None or high is None else (low + high) / 2
    numbers = {"estimate": middle, "estimate_low": low, "estimate_high": high}
    (tmp_path / "own").mkdir()
    found = {**ROW, "name": "one", "verdict": ours, **numbers}
    other = {**found, "study": "own+confirm", "verdict": "UNDECIDED", "estimate_low": -1.0, "estimate_high": 1.0}
    pd.DataFrame([found]).to_csv(tmp_path / "own" / CLAIMS, sep="\t", index=False)
    (tmp_path / "own-confirm").mkdir()
    pd.DataFrame([other]).to_csv(tmp_path / "own-confirm" / CLAIMS, sep="\t", index=False)
    for folder in ("own", "own-confirm"):
        (tmp_path / folder / f"published_{folder}.yaml").write_text("question: Is it <so>?")
    one = {"finding": "It is so", "source": "a paper", "setting": "theirs", "differs": "all", "reviews": "own/one"}
    one |= {"chains": "NOT COMPARABLE: no reason"} | ({"theirs": theirs} if theirs else {})
    monkeypatch.setattr(page, "findings", lambda: [one])
    html = write_index(tmp_path, {"own": "there/index.html"}).read_text()
    table = pd.read_csv(tmp_path / "tables" / "findings.csv")
    assert table["verdict"].tolist() == [verdict, "NOT COMPARABLE"]
    assert table["again_verdict"].tolist() == ["UNDECIDED", pytest.approx(float("nan"), nan_ok=True)]
    assert f"{verdict}" in html
    decided = verdict in ("REPRODUCED", "REFUTED")
    words = "Of 1 decided verdict 0 stayed and 0 turned" if decided else "Of 1 undecided or untested one 0 became"
    assert words in " ".join(html.split())
    shutil.rmtree(tmp_path / "own")
    alone = write_index(tmp_path).read_text()
    assert "| NOT RUN |" in alone, "a second run can stand alone"
    assert "undecided or untested" not in alone, "what has run once has no second run"
    assert 'href="there/index.html"' in html
    assert "Is it &lt;so&gt;?</td>" in html
    assert f">{ours}: 1</td>" in html
    assert (tmp_path / "findings.png").exists() == (middle is not None)


def test_the_published_page_is_what_its_data_give(tmp_path: Path) -> None:
    root = tmp_path / "example"
    shutil.copytree(ROOT / "reports/example", root)
    text = write_index(root).read_text()
    assert text == (ROOT / "reports/example/README.md").read_text()
    assert {link for link in re.findall(r"\]\((\S+?)\)", text) if not (root / link).exists()} == set()
    assert text.count("](forks/README.md)") >= 2, "a finding leads to the page of its study"
    for path in sorted(root.glob("*/published_*.yaml")):
        names = [
            one["name"] for key in ("hypotheses", "falsifiers") for one in yaml.safe_load(path.read_text()).get(key, ())
        ]
        assert pd.read_csv(path.with_name(CLAIMS), sep="\t")["name"].tolist() == names


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "reports/example").iterdir() if path.is_dir()))
def test_published_data_give_the_published_verdicts(tmp_path: Path, name: str) -> None:
    shutil.copytree(ROOT / "reports/example" / name, folder := tmp_path / name)
    file, layout = folder / f"published_{name}.yaml", Layout.at(tmp_path / "out")
    import_folder(folder, str(file), layout, "plain")
    records = load_records(*find_study(layout, str(file)))
    found = pd.DataFrame(_found(records, again := analyse(records), claims_table(records, again)))
    shown = pd.read_csv(folder / CLAIMS, sep="\t")
    assert len(shown) > 0
    for column in ("name", "claim", "verdict", "effect", "n"):
        assert found[column].tolist() == shown[column].tolist()


def test_the_readme_shows_rows_of_the_published_table() -> None:
    published = (ROOT / "reports/example/README.md").read_text().replace("\\", "").splitlines()
    table = (ROOT / "README.md").read_text().partition("| finding of a paper |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 3
    begin = published.index("| --- | --- | --- | --- | ---: | ---: | --- | --- |") + 1
    for (finding, verdict, effect), row in zip(rows, published[begin:], strict=False):
        assert row.startswith(f"| {finding} (arXiv")
        assert f"| {verdict} |" in row
        assert f"| {effect} |" in row
