"""What the commands `report` and `compare` do: pages from what is recorded. No training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def report(study: str, profile: str | None = None, out: str | Path | None = None, *, second: bool = False) -> Path:
    """Render the report of a study, given by name or YAML path, and return the path of its page.

    `profile` replaces the study's own; `out` is the output root, `Layout.at` of it; for `second` see
    `reports.pages.report.render_report`. Raises `UserError`.
    """
    from pipeline.run.layout import Layout
    from reports.pages.fresh import current_report
    from reports.records.find import find_study

    return current_report(*find_study(Layout.at(out), study, profile), second=second)


def compare(studies: Sequence[str], profile: str | None = None, out: str | Path | None = None) -> tuple[Path, str]:
    """Set studies, given by name or YAML path, side by side; returns the path of the page and its table as text.

    Raises `UserError`, also for a study that is given twice.
    """
    from pipeline.errors import UserError
    from pipeline.run.layout import Layout
    from reports.findings.findings import analyse
    from reports.pages.compare import Compared, comparison, folder_name
    from reports.pages.page import write_page
    from reports.records.find import find_study
    from reports.records.load import load_records
    from reports.tables.table import markdown

    layout = Layout.at(out)
    found = [find_study(layout, name, profile) for name in studies]
    paths = [folder.path for folder, _ in found]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise UserError(f"compare: the study '{studies[index]}' is given twice; name different ones")
    compared = [
        Compared(records, analyse(records)) for records in (load_records(folder, study) for folder, study in found)
    ]
    page = comparison(compared)
    return write_page(page, layout.root / "compare" / folder_name(compared)), _plain(markdown(page.parts[0].tables[0]))


def diff(
    first: str, second: str, study: str | None = None, profile: str | None = None, out: str | Path | None = None
) -> tuple[Path, str]:
    """Compare two versions of a study; returns the path of the page and what changed, as text.

    A version is a study's folder, its report, an output root (`study` and `profile` choose where it holds several), or
    a study's name or YAML path, of which the records under `out` are taken. Raises `UserError`.
    """
    from pipeline.run.layout import Layout
    from reports.pages.diff import changes
    from reports.pages.page import markdown_page, write_page
    from reports.records.versions import find_version

    layout = Layout.at(out)
    old, new = (find_version(where, layout, study, profile) for where in (first, second))
    page = changes(old, new)
    name = f"{new.name}-{old.digest}-{new.digest}"
    return write_page(page, layout.root / "diff" / name), _plain(markdown_page(page))


def _plain(text: str) -> str:
    """Markdown without its escapes, for a terminal."""
    return re.sub(r"\\([\\|`*_\[\]])", r"\1", text).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
