"""The commands `report`, `compare` and `falsify`: pages and verdicts from the records, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.run.layout import Layout, StudyFolder
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
    `reports.records.load.load_records`. Raises what `reports.pages.report.render_report` does.
    """
    from reports.pages.report import render_report
    from reports.records.load import find_study

    found = find_study(Layout.at(out), study, profile)
    return render_report(*found, without_missing=without_missing)


def publish(study: str, profile: str | None, out: str | Path | None, to: Path) -> Path:
    """Publish a study that has run below the folder `to`; return the path of its page. Raises what `report` does."""
    from reports.pages.published import publish as write
    from reports.records.load import find_study

    return write(*find_study(Layout.at(out), study, profile), to)


def judged(folder: StudyFolder, study: Study) -> dict[str, Any]:
    """Return the verdict on each hypothesis of a study that has run, as plain values. Raises as reading its records
    does."""
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
    """Set studies, given by name or YAML path, side by side; return the path of the page and its summary.

    Raises `UserError`, also for a study that is given twice.
    """
    from reports.findings.findings import analyse
    from reports.pages.compare import Compared, compare_studies
    from reports.records.load import find_study, load_records

    layout = Layout.at(out)
    located = [find_study(layout, name, profile) for name in studies]
    paths = [folder.path for folder, _ in located]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise UserError(f"compare: the study '{studies[index]}' is given twice; name different ones")
    loaded = [load_records(folder, study, without_missing=without_missing) for folder, study in located]
    return compare_studies([Compared(records, analyse(records)) for records in loaded], layout.root / "compare")
