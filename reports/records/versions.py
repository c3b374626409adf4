"""Reads one version of a study as it was recorded, by whatever version of the program: records, not the YAML of
today."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from pydantic import ValidationError

from pipeline.config.trial import flatten
from pipeline.errors import Gone, UserError
from pipeline.named_files import place
from pipeline.run.layout import Layout, StudyFolder, TrialRecord
from pipeline.run.store import file_of
from studies.claims.falsifiers import Verdict
from studies.claims.verdicts import judge_record
from studies.definition.falsifier import Falsifier
from studies.definition.schema import load_study
from studies.definition.search import SEARCH

_WIN = {"policy": 1.0, "tie": 0.5, "reference": 0.0}
"""Of tables of older versions, which compared with one draw of the reference that had the policy's noise."""
_COLUMNS = (
    "prompt_id",
    "prompt",
    "policy_gold",
    "policy_proxy",
    "policy_length",
    "policy_eos",
    "kl",
    "entropy",
    "win",
    "win_proxy",
    "agree",
    "decided",
    "winner",
)
MISSING = "–"


@dataclass(frozen=True)
class Version:
    """One study folder."""

    folder: StudyFolder
    started: Mapping[str, Any]
    """study.json."""
    records: dict[tuple[str, int], TrialRecord]

    @property
    def name(self) -> str:
        return str(self.study.get("name", self.folder.path.parent.name))

    @property
    def study(self) -> Mapping[str, Any]:
        """The study's file as it was read when it last ran."""
        content: Mapping[str, Any] = self.started.get("study") or {}
        return content

    @property
    def arms(self) -> list[str]:
        """Arms that left a record, the study's own order first; without the trials of a search, whose names say
        nothing."""
        own = [*(self.study.get("arms") or {})]
        ran = list(dict.fromkeys(arm for arm, _ in self.records if not arm.startswith(SEARCH)))
        return [arm for arm in own if arm in ran] + [arm for arm in ran if arm not in own]

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of what ran: arms, seeds, configurations, and the keys of what they left."""
        ran = sorted(
            [arm, str(seed), r.config_digest, *sorted(f"{name}:{stage.key}" for name, stage in r.stages.items())]
            for (arm, seed), r in self.records.items()
        )
        return hashlib.sha256(json.dumps(ran).encode()).hexdigest()[:8]

    @property
    def compared(self) -> list[TrialRecord]:
        """Records of `arms`."""
        return [record for (arm, _), record in sorted(self.records.items()) if arm in self.arms]

    @cached_property
    def settings(self) -> dict[str, dict[str, str]]:
        """Arm -> dotted key -> value as a word; the seed apart."""
        settings: dict[str, dict[str, str]] = {}
        for (arm, _), record in sorted(self.records.items()):
            own = {key: str(value) for key, value in flatten(record.config) if key not in ("train.seed", "profile")}
            settings.setdefault(arm, own)
        return settings

    def seeds(self, arm: str) -> list[int]:
        return sorted(seed for name, seed in self.records if name == arm)

    def prompts(self, arm: str, seed: int) -> pd.DataFrame | None:
        """Per-prompt results of a trial with `win`, by prompt number; None where it has none. Raises `Damaged`."""
        record = self.records.get((arm, seed))
        if record is None or "evaluate" not in record.stages or record.status == "failed":
            return None
        try:
            path = file_of(self.folder, record, "evaluate", "prompts.parquet")
        except Gone:
            return None
        known = set(pq.read_schema(path).names)
        frame: pd.DataFrame = pq.read_table(
            path, columns=[column for column in _COLUMNS if column in known]
        ).to_pandas()
        if "win" in known:
            return frame.set_index("prompt_id")
        return (
            frame.assign(win=frame["winner"].map(_WIN).astype(float)).set_index("prompt_id")
            if "winner" in known
            else None
        )

    @property
    def common_noise(self) -> bool:
        """Whether policy and reference were sampled with the same random numbers, as older versions of the program
        did."""
        return any("evaluate" in record.stages and "reference" not in record.stages for record in self.records.values())

    def verdicts(self) -> dict[str, list[Verdict]]:
        """Claim -> verdicts on the trials it speaks of, from what was recorded. Without artifacts (the store of an old
        version may have been cleared) a claim is not tested."""
        verdicts: dict[str, list[Verdict]] = {}
        for claim in self.falsifiers.values():
            for (arm, seed), record in sorted(self.records.items()):
                if claim.applies_to(arm, self.baseline):
                    base = self.records.get((self.baseline, seed), f"the baseline has no record with seed {seed}")
                    verdicts.setdefault(claim.name, []).append(
                        judge_record(claim, self.folder, record, base if claim.relative_to else None, missing_ok=True)
                    )
        return verdicts

    @property
    def baseline(self) -> str:
        """The arm that the others were compared with."""
        return str(self.study.get("baseline", ""))

    @cached_property
    def falsifiers(self) -> dict[str, Falsifier]:
        """Those that this version of the program still understands, by name."""
        falsifiers = {}
        for content in self.study.get("falsifiers") or []:
            try:
                claim = Falsifier.model_validate(content)
            except ValidationError:
                continue
            falsifiers[claim.name] = claim
        return falsifiers


def find_version(where: str, layout: Layout, study: str | None = None, profile: str | None = None) -> Version:
    """A version by path or name.

    `where`: a study's folder (or the report in it), an output root, of which `study` and `profile` choose one study if
    it holds several, or a study's name or YAML path, whose records under `layout` are taken. Raises `UserError` with
    what there is.
    """
    path = place(where)
    inside = path.parent if path.is_file() and path.suffix == ".html" else path
    for folder in (inside, inside.parent):
        if (folder / "study.json").is_file():
            return read_version(StudyFolder(_root(folder), folder))
    if (path / "studies").is_dir():
        return read_version(_choose(path, study, profile))
    if path.is_dir():
        raise UserError(
            f"--diff: {path} holds neither study.json nor studies/; give a study's folder, an output root, or a study's"
            " name"
        )
    loaded = load_study(where)
    own = layout.study(loaded.name, profile or loaded.profile)
    if not own.study_file.is_file():
        raise UserError(
            f"--diff: study '{loaded.name}' has not been run on profile '{profile or loaded.profile}' (no"
            f" {own.study_file})"
        )
    return read_version(own)


def read_version(folder: StudyFolder) -> Version:
    """Read study.json and all trial records. Raises `Damaged`, and `UserError` where no trial has ended."""
    started = folder.started()
    records = {(record.arm, record.seed): record for record in folder.records()}
    if not records:
        raise UserError(f"{folder.path}: no trial has ended yet, so there is nothing to compare")
    return Version(folder, started, records)


def _root(folder: Path) -> Path:
    """The output root that a study's folder lies in: ``<root>/studies/<study>/<profile>``."""
    if folder.parent.parent.name != "studies":
        raise UserError(
            f"--diff: {folder} does not lie under <root>/studies/<study>/<profile>, so its artifacts cannot be found"
        )
    return folder.parents[2]


def _choose(root: Path, study: str | None, profile: str | None) -> StudyFolder:
    folders = [path.parent for path in sorted((root / "studies").glob("*/*/study.json"))]
    names = [f"{folder.parent.name} ({folder.name})" for folder in folders]
    chosen = [f for f in folders if study in (None, f.parent.name) and profile in (None, f.name)]
    if len(chosen) == 1:
        return StudyFolder(root, chosen[0])
    how = "no study there" if not chosen else "several studies there, so name one before --diff (and --profile)"
    asked = f" named '{study}'" if study and not chosen else ""
    raise UserError(f"--diff: {root}: {how}{asked}; there are: {', '.join(names) or 'none'}")
