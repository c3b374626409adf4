"""What the command `report` does: redraw a study's tables, figures and page from what is recorded. No training."""

from __future__ import annotations

from pathlib import Path


def report(study: str, profile: str | None = None, out: str | Path | None = None) -> Path:
    """Render the report of a study, given by name or YAML path, and return the path of its page.

    `profile` replaces the study's own; `out` is the output root, `Layout.at` of it. Raises `UserError`.
    """
    from pipeline.layout import Layout
    from reports.load import find_study
    from reports.render import render_report

    return render_report(*find_study(Layout.at(out), study, profile))
