"""A study and its folder by name: what every report starts from. Imports nothing that reads tables or draws."""

from __future__ import annotations

from pipeline.errors import UserError
from pipeline.run.layout import Layout, StudyFolder
from studies.definition.schema import Study, load_study
from studies.hints import command


def find_study(layout: Layout, name_or_path: str, profile: str | None = None) -> tuple[StudyFolder, Study]:
    """The study as its YAML says now, and its folder; `profile` replaces the study's own.

    Raises `UserError` when there is no such study, or when it has never been run on that profile.
    """
    study = load_study(name_or_path)
    folder = layout.study(study.name, profile or study.profile)
    require_run(folder, study)
    return folder, study


def require_run(folder: StudyFolder, study: Study) -> None:
    """Raise `UserError` for a study that has no records in this folder, and `Damaged` for one whose file is not what
    was written."""
    if folder.started():
        return
    if study.imported is not None:
        raise UserError(
            f"study '{study.name}' has no records here (no {folder.study_file}); import them: ablate import FOLDER"
            f" --name {study.name} --map MAP"
        )
    profile = folder.path.name
    others = sorted(path.parent.name for path in folder.path.parent.glob("*/study.json"))
    seen = f"; it has been run on: {', '.join(others)}" if others else ""
    how = command("study", study.argument, None if profile == study.profile else profile)
    raise UserError(
        f"study '{study.name}' has not been run on profile '{profile}' (no {folder.study_file}){seen}; run it first:"
        f" {how}"
    )
