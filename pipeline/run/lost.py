"""Results that a study's records name and that are no longer on disk: reported before anything is made without them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from pipeline.errors import Gone
from pipeline.run.dag import round_name
from pipeline.run.layout import StudyFolder, TrialRecord
from pipeline.run.store import inside

LISTED = 3
OWN = frozenset({"train", "evaluate"})
"""Stages whose results are a trial's own; those of the others are shared by many trials."""


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
