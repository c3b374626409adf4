"""Two versions of a study: what changed, and by how much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from helpers import publish

from ablate import app
from pipeline.errors import Damaged, UserError
from pipeline.run.layout import Layout
from reports.console import diff
from reports.findings.changes import changes_of
from reports.pages.diff import changes, code_changes, design_changes
from reports.pages.page import markdown_page
from reports.records.versions import find_version, read_version

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

SHAPE = {"steps": 64, "prompts": 30, "diverged": (), "budget": (), "missing": ()}
ARMS = {"beta_0.05": 0.05, "beta_0.2": 0.2}


@pytest.fixture(scope="module")
def versions(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    """The second has another arm and one seed less, its beta_0.2 scores one judge point more everywhere, and it ran on
    another commit."""
    root = tmp_path_factory.mktemp("versions")
    old = build(root / "old", arms=ARMS, **SHAPE)
    new = build(root / "new", arms={**ARMS, "beta_1": 1.0}, seeds=(0, 1), **SHAPE)
    for seed in (0, 1):
        record = new.folder.record("beta_0.2", seed)
        assert record is not None
        table = new.layout.root / record.stages["evaluate"].path / "prompts.parquet"
        frame = pd.read_parquet(table)
        frame["policy_gold"] += 1.0
        frame.to_parquet(table, index=False)
        publish(table.parent)
    for path in (new.folder.path / "trials").iterdir():
        path.write_text(path.read_text().replace("0123abc", "4567def"))
    return old, new


def test_design_and_code_changes_are_listed(versions: tuple[Built, Built]) -> None:
    old, new = (read_version(built.folder) for built in versions)
    assert design_changes(old, new) == [("seeds", "", "0, 1, 2", "0, 1"), ("arm beta_1", "beta_1", "–", "ran")]
    assert code_changes(old, new) == [("git_commit", "", "0123abc", "4567def")]
    assert design_changes(old, old) == code_changes(old, old) == []


def test_resolved_keys_are_compared_arm_by_arm(versions: tuple[Built, Built], tmp_path: Path, build: Builder) -> None:
    other = build(tmp_path, arms={"beta_0.05": {"kl.beta": 0.05, "optimiser.lr": 0.001}, "beta_0.2": 0.2}, **SHAPE)
    rows = design_changes(read_version(versions[0].folder), read_version(other.folder))
    assert [row[:2] for row in rows] == [("optimiser.lr", "beta_0.05")]
    assert rows[0][3] == "0.001"


def test_paired_differences_are_those_of_shared_seeds_and_prompts(versions: tuple[Built, Built]) -> None:
    found = changes_of(*(read_version(built.folder) for built in versions))
    gold = {one.arm: one for one in found if one.metric == "eval/gold"}
    assert set(gold) == {"beta_0.05", "beta_0.2"}
    shifted, same = gold["beta_0.2"], gold["beta_0.05"]
    assert shifted.difference is not None
    assert shifted.difference.value == pytest.approx(1.0)
    assert shifted.difference.low is not None
    assert shifted.difference.low < 1.0
    assert (shifted.difference.seeds, shifted.difference.prompts) == (2, 30)
    assert shifted.pairing == same.pairing == "paired"
    assert same.finding == "identical"
    assert same.old is not None
    assert same.new is not None
    assert (same.old.seeds, same.new.seeds) == (3, 2)


def test_without_a_shared_seed_the_difference_is_unpaired_and_wider(
    versions: tuple[Built, Built], tmp_path: Path, build: Builder
) -> None:
    fresh = build(tmp_path, arms=ARMS, seeds=(7, 8, 9), **SHAPE)
    found = changes_of(read_version(versions[0].folder), read_version(fresh.folder))
    one = next(change for change in found if change.arm == "beta_0.2" and change.metric == "eval/gold")
    assert one.pairing == "unpaired"
    assert one.old is not None
    assert one.new is not None
    assert one.difference is not None
    assert one.difference.low is not None
    assert one.difference.value == pytest.approx(one.new.value - one.old.value)
    assert one.old.low is not None
    assert one.new.low is not None
    halves = [part.value - low for part in (one.old, one.new) if (low := part.low) is not None]
    assert max(halves) < one.difference.value - one.difference.low < sum(halves)
    assert any(
        "unpaired" in caveat for caveat in changes(read_version(versions[0].folder), read_version(fresh.folder)).caveats
    )


def test_page_says_it_in_one_sentence(versions: tuple[Built, Built]) -> None:
    page = changes(*(read_version(built.folder) for built in versions))
    assert page.lead.startswith("2 changes of the design, 1 change of code and environment. On win rate,")
    text = markdown_page(page)
    assert "0123abc" in text
    assert "drift" in text
    same = changes(*(read_version(versions[0].folder),) * 2)
    assert same.lead.endswith("all 2 common arms are identical to the last digit.")
    assert "Both versions are the same folder." in same.caveats


def test_versions_are_found_by_folder_root_report_and_name(versions: tuple[Built, Built], tmp_path: Path) -> None:
    built = versions[0]
    report = built.folder.report / "index.html"
    report.parent.mkdir(exist_ok=True)
    report.write_text("")
    for where in (built.folder.path, built.layout.root, report.parent, report):
        assert find_version(str(where), Layout.at(tmp_path)).folder.path == built.folder.path
    assert find_version(built.study.source, built.layout).folder.path == built.folder.path


def test_what_is_no_version_is_named_in_one_line(versions: tuple[Built, Built], tmp_path: Path) -> None:
    built = versions[0]
    with pytest.raises(UserError, match=r"no study there named 'kl_other'; there are: kl_demo \(tiny\)"):
        find_version(str(built.layout.root), built.layout, "kl_other")
    with pytest.raises(UserError, match=r"holds neither study\.json nor studies/"):
        find_version(str(tmp_path), built.layout)
    with pytest.raises(UserError, match="no study 'kl_ablatoin'"):
        find_version("kl_ablatoin", built.layout)
    (tmp_path / "study.json").write_text(json.dumps({"study": {}}))
    with pytest.raises(UserError, match="does not lie under"):
        find_version(str(tmp_path), built.layout)


def test_damaged_records_are_named(versions: tuple[Built, Built], tmp_path: Path) -> None:
    folder = Layout.at(tmp_path).study("kl_demo", "tiny")
    (folder.path / "trials").mkdir(parents=True)
    folder.study_file.write_text("{")
    with pytest.raises(Damaged, match=r"study\.json is damaged: it is not valid JSON"):
        read_version(folder)
    folder.study_file.write_text('{"study": {}}')
    with pytest.raises(UserError, match="no trial has ended yet"):
        read_version(folder)
    folder.trial_file("a", 0).write_text("{}")
    with pytest.raises(Damaged, match=r"a__seed0\.json is damaged: study: Field required"):
        read_version(folder)


def test_command_writes_page_and_tables_and_prints_them(versions: tuple[Built, Built], tmp_path: Path) -> None:
    page, text = diff(str(versions[0].layout.root), str(versions[1].layout.root), out=tmp_path)
    assert page.parent.parent == tmp_path / "diff"
    assert {path.stem for path in (page.parent / "tables").glob("*.csv")} == {
        "results",
        "design",
        "code",
        "claims",
        "trials",
    }
    assert "beta_0.2" in text
    assert "\\" not in text
    first = {path.name: path.read_bytes() for path in page.parent.rglob("*") if path.is_file()}
    diff(str(versions[0].layout.root), str(versions[1].layout.root), out=tmp_path)
    assert {path.name: path.read_bytes() for path in page.parent.rglob("*") if path.is_file()} == first


def test_report_needs_a_study_or_two_versions() -> None:
    from typer.testing import CliRunner

    found = CliRunner().invoke(app, ["report"])
    assert found.exit_code == 2
    assert "--diff OLD NEW" in found.output


def test_trials_that_ended_otherwise_are_told(build: Builder, tmp_path: Path) -> None:
    old = build(tmp_path / "old", arms=ARMS, **SHAPE)
    new = build(
        tmp_path / "new", arms=ARMS, **{**SHAPE, "diverged": (("beta_0.2", 1),), "missing": (("beta_0.05", 2),)}
    )
    page = changes(read_version(old.folder), read_version(new.folder))
    assert page.lead.endswith("identical to the last digit on the seeds that both evaluated.")
    assert page.caveats[0].startswith(
        "2 trials of common arms ended otherwise: beta_0.05 seed 2 complete → not run; beta_0.2 seed 1 complete →"
        " diverged. Old and new"
    )
