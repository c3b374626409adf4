"""The origin of a figure, as its files state it."""

from __future__ import annotations

from dataclasses import dataclass

from reports.records.load import MISSING, STALE, StudyRecords


@dataclass(frozen=True)
class Provenance:
    """The origin of a figure."""

    subject: str
    """Study, profile and digest of the design's configurations."""
    commit: str
    runs: tuple[str, ...]
    """Arm, seed and the key of the run's artifact in the store, in words."""


def provenance(records: StudyRecords) -> Provenance:
    """Return the design, the code, and every run that counted."""
    ran = records.trials[~records.trials["status"].isin([MISSING, STALE])]
    used = [records.records[str(arm), int(seed)] for arm, seed in zip(ran["arm"], ran["seed"], strict=True)]
    commits = dict.fromkeys(record.environment.get("git_commit", "") for record in used)
    return Provenance(
        subject=f"study {records.study.name}, profile {records.profile}, design {records.digest}",
        commit=", ".join(filter(None, commits)) or "unknown",
        runs=tuple(f"{r.arm} seed {r.seed}: {r.stages['train'].key}" for r in used if "train" in r.stages),
    )
