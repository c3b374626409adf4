"""What the commands `report` and `compare` do: pages from what is recorded. No training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.run.layout import StudyFolder
    from studies.definition.schema import Study


def report(
    study: str,
    profile: str | None = None,
    out: str | Path | None = None,
    *,
    without_missing: bool = False,
) -> Path:
    """Render the report of a study, given by name or YAML path, and return the path of its page.

    `profile` replaces the study's own; `out` is the output root, `Layout.at` of it; for `without_missing` see
    `reports.pages.fresh.current_report`. Raises `UserError` and `Damaged`.
    """
    from pipeline.run.layout import Layout
    from reports.pages.fresh import current_report
    from reports.records.find import find_study

    found = find_study(Layout.at(out), study, profile)
    return current_report(*found, without_missing=without_missing)


def judged(folder: StudyFolder, study: Study) -> dict[str, Any]:
    """The verdict on each hypothesis of a study that has run, as plain values. Raises what reading its records does."""
    from reports.findings.hypotheses import judge
    from reports.records.load import load_records
    from reports.text.hypotheses import summary

    records = load_records(folder, study)
    return summary(records, judge(records))


def compare(
    studies: Sequence[str],
    profile: str | None = None,
    out: str | Path | None = None,
    *,
    without_missing: bool = False,
) -> tuple[Path, str]:
    """Set studies, given by name or YAML path, side by side; returns the path of the page and its summary.

    Raises `UserError`, also for a study that is given twice.
    """
    from pipeline.errors import UserError
    from pipeline.run.layout import Layout
    from reports.findings.findings import analyse
    from reports.pages.compare import Compared, compare_studies
    from reports.records.find import find_study
    from reports.records.load import load_records

    layout = Layout.at(out)
    located = [find_study(layout, name, profile) for name in studies]
    paths = [folder.path for folder, _ in located]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise UserError(f"compare: the study '{studies[index]}' is given twice; name different ones")
    compared = [
        Compared(records, analyse(records))
        for records in (load_records(folder, study, without_missing=without_missing) for folder, study in located)
    ]
    return compare_studies(compared, layout.root / "compare")
