"""A trial that has run, by its name STUDY/ARM/SEED, and the artifacts of its stages."""

from __future__ import annotations

from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, safe
from pipeline.run.store import Artifact, artifact_of, checked


def find_trial(run: str, layout: Layout, profile: str | None = None) -> TrialRecord:
    """The record of STUDY/ARM/SEED. Raises `UserError` with the records that exist."""
    parts = run.split("/")
    if len(parts) != 3 or not parts[2].isdigit():
        raise UserError(f"run '{run}': write it as STUDY/ARM/SEED, for example kl_ablation/beta_0.05/10")
    study, arm, seed = parts[0], parts[1], int(parts[2])
    folder = study_folder(layout, study, profile)
    record = folder.record(safe(arm), seed)
    if record is None:
        names = [f"{other.arm}/{other.seed}" for other in folder.records()]
        raise UserError(
            f"run '{run}': not recorded{nearest(f'{arm}/{seed}', names)}; there are: {', '.join(names) or 'none'}"
        )
    return record


def study_folder(layout: Layout, study: str, profile: str | None, *, started: bool = False) -> StudyFolder:
    """The folder of a study on one profile, of which trials have ended or, with `started`, which has begun.

    Raises `UserError` for a study of which that is not so, or not on this profile.
    """
    root, word = layout.root / "studies", "started" if started else "run"
    marks = ("trials", "study.json") if started else ("trials",)
    there = {(path.parent.parent.name, path.parent.name) for mark in marks for path in root.glob(f"*/*/{mark}")}
    run_on = sorted(on for name, on in there if name == safe(study))
    if not run_on:
        known = sorted({name for name, _ in there})
        raise UserError(
            f"study '{study}' has not been {word} in {layout.root}{nearest(study, known)}; studies there:"
            f" {', '.join(known) or 'none'}"
        )
    if profile is None and len(run_on) > 1:
        raise UserError(f"study '{study}' has been {word} on {', '.join(run_on)}; choose one with --profile")
    if profile is not None and profile not in run_on:
        raise UserError(
            f"study '{study}' has not been {word} on profile '{profile}'{nearest(profile, run_on)}; {word} on:"
            f" {', '.join(run_on)}"
        )
    return layout.study(study, profile or run_on[0])


def folder_of(layout: Layout, record: TrialRecord) -> StudyFolder:
    """The folder of the study that a trial belongs to."""
    return layout.study(record.study, record.profile)


def artifact(folder: StudyFolder, record: TrialRecord, stage: str) -> Artifact:
    """Return the artifact of a stage of the trial, every file as its manifest states it. Raises `UserError` for a trial
    without the stage, `Damaged`, `Gone`."""
    if stage not in record.stages:
        raise UserError(
            f"run '{record.study}/{record.arm}/{record.seed}' has no {stage} stage: it ended as {record.status}"
            f" ({record.reason})"
        )
    ref = record.stages[stage]
    path, manifest = artifact_of(folder, ref.path, ref.digest)
    with folder.naming_remedy():
        for name in manifest.files:
            checked(path, name, manifest)
    return Artifact(stage, ref.key, path, manifest.digest, manifest.meta, manifest.finished)
