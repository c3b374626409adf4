"""The cells of a study: every arm with every seed, each with the complete configuration of its trial."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.config.base import replaced
from pipeline.config.effects import inert
from pipeline.config.loading import ConfigFault
from pipeline.config.trial import TrialConfig, canonical_json
from pipeline.errors import UserError
from pipeline.rewards.kinds import is_own
from pipeline.rewards.own import faults as own_faults
from pipeline.rewards.own import file_of
from pipeline.run.store import file_digest
from studies.definition.checks import built, check_overrides, fault_lines
from studies.definition.fields import LINKS, SEED_KEY, Link
from studies.definition.schema import IMPORTED, Study
from studies.definition.trainer import TRAINER, CommandTrial


@dataclass(frozen=True)
class Cell:
    """One trial of a study."""

    arm: str
    seed: int
    config: TrialConfig
    """Of a study with a trainer of its own, a `CommandTrial`."""

    @property
    def label(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def digest(self) -> str:
        """Digest of the configuration; a record with another one is of another trial."""
        return self.config.digest()

    @property
    def steps(self) -> int:
        return self.config.gradient_steps


@dataclass(frozen=True)
class Foreign:
    """One trial of another program, whose configuration is unknown, or as of a trainer its command."""

    arm: str
    seed: int
    steps: int = 0
    """0: unknown; such a trial counts as planned for the steps that it took."""
    command: str = ""
    """Digest of the command; an imported trial is identified by arm and seed."""

    @property
    def digest(self) -> str:
        return self.command or hashlib.sha256(canonical_json([IMPORTED, self.arm, self.seed]).encode()).hexdigest()[:16]


Planned = Cell | Foreign


def planned(study: Study, profile: str | None = None, overrides: Mapping[str, Any] | None = None) -> Sequence[Planned]:
    """Return the expected records of a study: its `cells`, or where another program trained its arms x seeds."""
    if not study.foreign:
        return cells(study, profile, overrides)
    check_overrides(study, overrides or {})
    if study.trainer is not None:
        return [Foreign(cell.arm, cell.seed, cell.steps, cell.digest) for cell in cells(study)]
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
    if study.trainer is not None:
        if profile not in (None, TRAINER):
            raise UserError(f"--profile {profile}: {study.name} has a trainer of its own, and no profile")
        return [
            Cell(arm, seed, cast(Any, CommandTrial(
                trainer=study.trainer, folder=Path(study.source).parent.absolute(),
                parameters={**study.parameters, **own}, seed=seed, window=study.objective.window,
                stop=study.stop_rules(arm),
            )))
            for seed in study.seeds for arm, own in study.arm_overrides().items()
        ]  # fmt: skip
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
    return named + _unequal_episodes(plan)


def _unequal_episodes(plan: Sequence[Cell]) -> list[str]:
    counts: dict[int, dict[str, None]] = {}
    for cell in plan:
        if cell.config.algorithm.learns:
            train = cell.config.train
            counts.setdefault(train.updates * train.batch_size, {})[cell.arm] = None
    if len(counts) < 2:
        return []
    each = "; ".join(f"{episodes:,}: {', '.join(arms)}" for episodes, arms in sorted(counts.items()))
    return [f"the arms train on different numbers of episodes ({each})"]


def design_digest(plan: Sequence[Planned]) -> str:
    """Eight hexadecimal digits that change with arms, seeds or any configuration, whatever their order."""
    content = sorted([cell.arm, cell.seed, cell.digest] for cell in plan)
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:8]


def seeded(config: TrialConfig, seed: int, vary: Sequence[Link]) -> TrialConfig:
    """The configuration of a trial of this seed: that of the training, and of every link that varies and acts."""
    return replaced(config, {SEED_KEY: seed, **{LINKS[link]: seed for link in acting(config, vary)}})


def acting(config: TrialConfig, vary: Sequence[Link]) -> tuple[Link, ...]:
    """Links that exist in this configuration: a ready reward has no labels, a snapshot without SFT no seed."""
    idle = {link for link in LINKS if inert(config, LINKS[link]) is not None}
    if "labels" in idle:
        idle.add("reward")
    return tuple(link for link in LINKS if link in vary and link not in idle)


def with_code(config: TrialConfig, study: Study) -> TrialConfig:
    """The configuration that finds its classes in the folder of the study's file; unchanged where it names none."""
    if not study.source or config.runtime.code or not _own(config):
        return config
    folder = str(Path(study.source).parent)
    return replaced(config, {"runtime.code": folder})


def check_own(study: Study, configs: Mapping[str, TrialConfig]) -> None:
    """Import the classes that the arms name and check their settings.

    Raises `UserError` with one line per fault: the file, the line, the key, the value and what is allowed.
    """
    faults = [
        ConfigFault(_place(study, arm, key), f"{study.kind}.{arm}: {text}")
        for arm, config in configs.items()
        for section in _own(config)
        for key, text in own_faults(section, config.scorers[section], config.runtime.code)
    ]
    if faults:
        raise UserError(fault_lines(study.source or study.name, faults))


def own_digests(configs: Iterable[TrialConfig]) -> dict[str, str]:
    """Digests of the files of all classes that are named, by the name of the class."""
    found: dict[str, str] = {}
    for config in configs:
        files = {kind: file_of(kind, config.runtime.code) for kind in _own(config).values()}
        found |= {kind: file_digest(file) for kind, file in files.items() if file is not None}
    return found


def _own(config: TrialConfig) -> dict[str, str]:
    return {key: scorer.kind for key, scorer in config.scorers.items() if is_own(scorer.kind)}


def _place(study: Study, arm: str, key: str) -> tuple[str | int, ...]:
    """The way to the entry of an arm that sets a key, or the mapping that it is in."""
    own: Mapping[str, Any] = study.arm_overrides().get(arm, {})
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in own:
            return (study.kind, arm, ".".join(parts[:length]), *parts[length:])
    return (study.kind, arm)
