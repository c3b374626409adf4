"""Results that a study's records name and that are no longer on disk: reported before anything is made without them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from pipeline.errors import WITHOUT_MISSING, Lost
from pipeline.run.dag import round_name
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.store import inside

LISTED = 3
OWN = frozenset({"train", "evaluate"})
"""Stages whose results are a trial's own; those of the others are shared by many trials."""


def own_stages(names: Iterable[str]) -> frozenset[str]:
    """Those of a trial's stages that it does not share with others: in a trial with rounds, all that come after what
    the first training is made from.

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
    *,
    without_missing: bool = False,
    kept: Path | None = None,
) -> None:
    """Raise `Lost` where the artifact of one of these stages (of all, by default) of a trial is not there.

    `without_missing`: only where no trial has kept its own results. `kept`: a file that stays as it is; named where it
    exists.
    """
    gone = _gone(folder, records, stages)
    trials = dict.fromkeys(name for names in gone.values() for name in names)
    own = _gone(folder, records, OWN if stages is None else OWN.intersection(stages))
    bare = {name for names in own.values() for name in names}
    if not gone or (without_missing and len(bare) < sum(bool(OWN & record.stages.keys()) for record in records)):
        return
    path = _first_absent(folder.root, next(iter(gone)))
    more = f", and {len(trials) - LISTED} more" if len(trials) > LISTED else ""
    why = (
        f"{len(trials)} of {len(records)} recorded trials have lost results ({', '.join([*trials][:LISTED])}{more};"
        f" folders gone: {len(gone)}, of {', '.join(dict.fromkeys(path.parent.name for path in gone))})"
    )
    without = [] if without_missing else [f"or use what is left with {WITHOUT_MISSING}"]
    stays = [f"{kept} is unchanged"] if kept is not None and kept.exists() else []
    raise Lost(path, why, "; ".join([f"restore the folder, or {folder.remedy}", *without, *stays]))


def _gone(folder: StudyFolder, records: Iterable[TrialRecord], stages: Collection[str] | None) -> dict[Path, list[str]]:
    """Folder of each absent artifact -> the trials that name it."""
    gone: dict[Path, list[str]] = {}
    for record in records:
        for stage, ref in record.stages.items():
            if stages is None or stage in stages:
                with folder.naming_remedy():
                    path = inside(folder.root, ref.path)
                if not path.exists():
                    gone.setdefault(path, []).append(f"{record.arm} seed {record.seed}")
    return gone


def _first_absent(root: Path, path: Path) -> Path:
    """The highest folder below `root` on the way to `path` that does not exist."""
    absent = [part for part in (path, *path.parents) if part.is_relative_to(root) and not part.exists()]
    return absent[-1] if absent else path
