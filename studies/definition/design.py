"""The cells of a study: every arm with every seed, each with the complete configuration of its trial."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.trial import TrialConfig, canonical_json
from pipeline.errors import UserError
from studies.definition.checks import built, check_overrides, fault_lines
from studies.definition.own import with_code
from studies.definition.replicates import chain_of, seeded
from studies.definition.schema import IMPORTED, Study


@dataclass(frozen=True)
class Cell:
    """One trial of a study."""

    arm: str
    seed: int
    config: TrialConfig

    @property
    def label(self) -> str:
        """The trial's name in texts for people."""
        return f"{self.arm} seed {self.seed}"

    @property
    def digest(self) -> str:
        """Digest of the configuration; a record with another one is of another trial."""
        return self.config.digest()

    @property
    def steps(self) -> int:
        """Gradient steps that the trial is to take."""
        return self.config.gradient_steps


@dataclass(frozen=True)
class Foreign:
    """One trial that another program ran, identified by arm and seed, since its configuration is unknown."""

    arm: str
    seed: int
    steps: int = 0
    """Unknown: such a trial counts as planned for the steps that it took."""

    @property
    def label(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(canonical_json([IMPORTED, self.arm, self.seed]).encode()).hexdigest()[:16]


Planned = Cell | Foreign


def planned(study: Study, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> Sequence[Planned]:
    """Return the expected records of a study: its `cells`, or where it was imported its arms x seeds."""
    if study.kind != IMPORTED:
        return cells(study, profile, overrides)
    check_overrides(study, overrides or {})
    return [Foreign(arm, seed) for seed in study.seeds for arm in study.arm_overrides()]


def cells(study: Study, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> list[Cell]:
    """All cells, seed by seed, so that an interrupted study is balanced over its arms.

    `profile` replaces the study's own; `overrides` (``--set``) apply below the arms' own, so an arm stays
    true to its name. Those of a search are the cells of its confirmation, which is evaluated on other held-out
    prompts and with other random numbers than the search. Raises `UserError` for a key or value that does not fit.
    """
    check_overrides(study, overrides or {})
    if study.kind == IMPORTED:
        raise UserError(
            f"{study.source or study.name}: its trials were run elsewhere, so nothing runs here; see ablate import"
        )
    configs, faults = built(study, profile or study.profile, overrides or {})
    if faults:
        raise UserError(fault_lines(study.source or study.name, faults))
    for arm, config in configs.items():
        stopping = config.train.model_copy(update={"stop": study.stop_rules(arm)})
        configs[arm] = with_code(config.model_copy(update={"train": stopping}), study)
        if study.kind == "search":
            configs[arm] = _fresh(configs[arm], study)
    return [
        Cell(arm, seed, seeded(config, seed, study.vary)) for seed in study.seeds for arm, config in configs.items()
    ]


def _fresh(config: TrialConfig, study: Study) -> TrialConfig:
    """The configuration with held-out prompts and random numbers that its search did not use. Raises `UserError` for
    too few prompts."""
    cfg = config.evaluate
    first = cfg.first_prompt + cfg.prompts
    if config.data.heldout_prompts < first + cfg.prompts:
        raise UserError(
            f"{study.source or study.name}: search.confirm: the confirmation needs held-out prompts that the search did"
            f" not use: set data.heldout_prompts to at least {first + cfg.prompts} (evaluate.first_prompt + 2 x"
            f" evaluate.prompts; it is {config.data.heldout_prompts}), or lower evaluate.prompts"
        )
    return config.model_copy(update={"evaluate": cfg.model_copy(update={"first_prompt": first, "seed": cfg.seed + 1})})


def cautions(plan: Sequence[Cell]) -> list[str]:
    """Return the warnings of the trials' configurations, each once, with its arms where these are not all, and a
    warning of arms that sample different numbers of episodes."""
    arms = {cell.arm: cell.config.cautions() for cell in plan}
    lines = dict.fromkeys(line for warnings in arms.values() for line in warnings)
    concerned = {line: [arm for arm, warnings in arms.items() if line in warnings] for line in lines}
    named = [line if len(mine) == len(arms) else f"{', '.join(mine)}: {line}" for line, mine in concerned.items()]
    return named + _unequal_episodes(plan) + _equal_seeds(plan)


def _equal_seeds(plan: Sequence[Cell]) -> list[str]:
    """Arms that train nothing, where a seed changes nothing before training either."""
    chains: dict[str, list[tuple[int, ...]]] = {}
    for cell in plan:
        if not cell.config.algorithm.learns:
            chains.setdefault(cell.arm, []).append(chain_of(cell.config))
    alike = [arm for arm, own in chains.items() if len(own) > 1 and len(set(own)) == 1]
    if not alike:
        return []
    return [f"{', '.join(alike)}: all seeds give the same result, since nothing is trained and the study has no `vary`"]


def _unequal_episodes(plan: Sequence[Cell]) -> list[str]:
    counts: dict[int, dict[str, None]] = {}
    for cell in plan:
        train = cell.config.train
        if not cell.config.algorithm.learns:
            continue
        counts.setdefault(train.updates * train.batch_size, {})[cell.arm] = None
    if len(counts) < 2:
        return []
    each = "; ".join(f"{episodes:,}: {', '.join(arms)}" for episodes, arms in sorted(counts.items()))
    return [f"the arms train on different numbers of episodes ({each})"]


def design_digest(plan: Sequence[Planned]) -> str:
    """Eight hexadecimal digits that change with arms, seeds or any configuration, whatever their order."""
    content = sorted([cell.arm, cell.seed, cell.digest] for cell in plan)
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:8]
