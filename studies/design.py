"""From a study to its cells: every arm with every seed, each with the complete configuration of its trial."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import TrialConfig, canonical_json, load_config
from pipeline.errors import UserError
from studies.checks import check_overrides
from studies.schema import SEED_KEY, STOP_KEY, Study


@dataclass(frozen=True)
class Cell:
    """One trial of a study."""

    arm: str
    seed: int
    config: TrialConfig

    @property
    def label(self) -> str:
        """How the trial is called wherever people read."""
        return f"{self.arm} seed {self.seed}"


def cells(study: Study, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> list[Cell]:
    """All cells, seed by seed, so that an interrupted study is balanced over its arms.

    `profile` replaces the study's own; `overrides` (``--set``) apply below the arms' own, so an arm stays
    what its name says. Raises `UserError` for a key or value that does not fit.
    """
    check_overrides(study, overrides or {})
    chosen = profile or study.profile
    result = []
    for seed in study.seeds:
        for arm, own in study.arm_overrides().items():
            origin = f"{study.source or study.name}: arms.{arm}" + (" with --set" if overrides else "")
            config = load_config(chosen, {**(overrides or {}), **own, SEED_KEY: seed, STOP_KEY: study.stop_rules(arm)}, origin)
            result.append(Cell(arm, seed, config))
    _refuse_twins(study, result, chosen)
    return result


def _refuse_twins(study: Study, plan: Sequence[Cell], profile: str) -> None:
    """Two arms may differ on the study's own profile and be one on another: their effect of exactly 0 would look like a finding."""
    seen: dict[tuple[int, str], str] = {}
    for cell in plan:
        twin = seen.setdefault((cell.seed, cell.config.digest()), cell.arm)
        if twin != cell.arm:
            raise UserError(
                f"{study.source or study.name}: arms '{twin}' and '{cell.arm}' are the same trial on profile '{profile}'; keep one"
            )


def design_digest(plan: Sequence[Cell]) -> str:
    """Eight hexadecimal digits that change when arms, seeds or any configuration change; order does not count."""
    content = sorted([cell.arm, cell.seed, cell.config.digest()] for cell in plan)
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:8]
