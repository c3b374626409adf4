"""Several studies in one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import write_record
from synthetic import Built, build

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from reports.findings.findings import analyse
from reports.pages.compare import Compared, compare, compare_studies, comparison_table
from reports.records.load import find_study


@pytest.fixture(scope="module")
def studies(demo: Built, tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    """The demo, and a study of two arms on another reference and fewer seeds."""
    shape: dict[str, Any] = {"arms": {"a": 0.05, "b": 0.2}, "seeds": (0,), "steps": 64, "prompts": 20}
    built, key = build(tmp_path_factory.mktemp("other"), baseline="a", **shape), "sf99999999999999"
    for record in built.folder.records():
        sft = record.stages["sft"].model_copy(update={"key": key, "path": f"store/sft/{key}"})
        write_record(built.folder, record.model_copy(update={"stages": {**record.stages, "sft": sft}}))
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
