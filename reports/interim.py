"""A look at a study that is still running: ``python -m reports.interim FOLDER`` draws its page and prints its answer so
far."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from pipeline.run.layout import StudyFolder, read_json
from studies.definition.schema import Study

NICENESS = 10
"""Trials go first."""


def interim(folder: StudyFolder) -> str:
    """Draw the page from what is recorded; returns its first sentence."""
    from reports.pages.fresh import current_report

    started = folder.started()
    study = Study.model_validate({**started["study"], "source": started["source"]})
    current_report(folder, study)
    return str(read_json(folder.claims_file)["answer"])


def main() -> None:
    """Print the answer so far, on one line."""
    with suppress(OSError):
        os.nice(NICENESS)
    path = Path(sys.argv[1])
    print(interim(StudyFolder(path.parents[2], path)))


if __name__ == "__main__":
    main()
