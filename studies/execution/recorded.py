"""Recorded trials, by their names STUDY/ARM/SEED, the artifacts of their stages, and the report of lost ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from pipeline.config.names import nearest
from pipeline.errors import Gone, UserError
from pipeline.run.dag import round_name
from pipeline.run.layout import Layout, StudyFolder, TrialRecord, safe
from pipeline.run.store import Artifact, artifact_of, checked, inside

LISTED = 3
OWN = frozenset({"command", "train", "evaluate"})
"""Stages whose results are a trial's own; those of the others are shared by many trials."""


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


def own_stages(names: Iterable[str]) -> frozenset[str]:
    """Return the stages of a trial that it does not share with others: in a trial with rounds, all that come after
    the inputs of the first training.

    >>> sorted(own_stages(["sft", "reward", "reference", "train", "evaluate"]))
    ['evaluate', 'train']
    >>> sorted(own_stages(["sft", "reward-1", "train-1", "reward", "train"]))
    ['reward', 'train', 'train-1']
    """
    there = frozenset(names)
    if round_name("train", 1, 2) not in there:
        return there & OWN
    return there - {"prompts", "sft", round_name("reward", 1, 2)}


def refuse_lost(
    folder: StudyFolder,
    records: Collection[TrialRecord],
    stages: Collection[str] | None = None,
    kept: Path | None = None,
) -> None:
    """Raise `Gone` where the artifact of one of these stages (of all, by default) of a trial is not there.

    `kept`: a file that stays as it is; named where it exists.
    """
    gone, trials = dict[Path, None](), dict[str, None]()
    for record in records:
        for stage, ref in record.stages.items():
            if stages is None or stage in stages:
                with folder.naming_remedy():
                    path = inside(folder.root, ref.path)
                if not path.exists():
                    gone[path] = trials[f"{record.arm} seed {record.seed}"] = None
    if not gone:
        return
    first = next(iter(gone))
    missing = [part for part in (first, *first.parents) if part.is_relative_to(folder.root) and not part.exists()]
    more = f", and {len(trials) - LISTED} more" if len(trials) > LISTED else ""
    why = (
        f"{len(trials)} of {len(records)} recorded trials have lost results ({', '.join([*trials][:LISTED])}{more};"
        f" folders gone: {len(gone)}, of {', '.join(dict.fromkeys(path.parent.name for path in gone))})"
    )
    stays = f"; {kept} is unchanged" if kept is not None and kept.exists() else ""
    raise Gone(missing[-1], why, f"restore the folder, or {folder.remedy}{stays}")
