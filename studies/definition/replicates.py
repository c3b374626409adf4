"""What a seed of a study changes: training alone, or also the labels, the reward model and the reference behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pipeline.config.base import Section
from pipeline.config.effects import inert
from pipeline.config.trial import TrialConfig
from studies.definition.fields import Seeds

Link = Literal["labels", "reward", "sft"]
LINKS: Mapping[Link, str] = {"labels": "reward.pairs_seed", "reward": "reward.seed", "sft": "sft.seed"}
"""Parts of the chain before training, and the key of their seed."""
WORDS: Mapping[Link, str] = {"labels": "preference labels", "reward": "reward model", "sft": "reference policy (SFT)"}
PER_CHAIN = 1_000
"""Numbers of trials that belong to one chain, where several trainings share it: chain 2, training 1 is trial 2001."""


class Trainings(Section):
    """Several trainings on each chain, so that the two sources of variation can be told apart."""

    seeds: Seeds = Field(description="at least two trainings on each chain, below 1000")
    design: Literal["nested", "crossed"] = Field(
        "nested",
        description="nested: every training has a seed of its own; crossed: all chains use these training seeds",
    )


@dataclass(frozen=True)
class Replicate:
    """One row of a study: each arm has one trial of it."""

    number: int
    """What records and files call the seed of the trial."""
    chain: int
    """Seed of the links that vary; what is independent evidence."""
    training: int
    """Seed of the training."""


def replicates(seeds: Sequence[int], trainings: Trainings | None = None) -> tuple[Replicate, ...]:
    """The rows of a study, chain by chain.

    >>> [row.number for row in replicates([0, 1], Trainings(seeds=(0, 1)))]
    [0, 1, 1000, 1001]
    >>> [row.training for row in replicates([0, 1], Trainings(seeds=(0, 1), design="crossed"))]
    [0, 1, 0, 1]
    """
    if trainings is None:
        return tuple(Replicate(seed, seed, seed) for seed in seeds)
    rows = [(chain * PER_CHAIN + inner, chain, inner) for chain in seeds for inner in trainings.seeds]
    crossed = trainings.design == "crossed"
    return tuple(Replicate(number, chain, inner if crossed else number) for number, chain, inner in rows)


def seeded(config: TrialConfig, row: Replicate, vary: Sequence[Link]) -> TrialConfig:
    """The configuration of a trial of this row: the seed of the training, and of every link that varies and acts."""
    changed: dict[str, dict[str, int]] = {"train": {"seed": row.training}}
    for link in acting(config, vary):
        section, _, key = LINKS[link].partition(".")
        changed.setdefault(section, {})[key] = row.chain
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=values) for section, values in changed.items()}
    )


def chain_of(config: TrialConfig) -> tuple[int, ...]:
    """The seeds of what comes before training: trials with equal ones can share it."""
    return config.sft.seed, config.reward.pairs_seed, config.reward.seed


def acting(config: TrialConfig, vary: Sequence[Link]) -> tuple[Link, ...]:
    """Those links that exist in this configuration: a ready reward has no labels, a snapshot without SFT no seed."""
    return tuple(link for link in LINKS if link in vary and not _idle(config, link))


def _idle(config: TrialConfig, link: Link) -> bool:
    ready = link == "reward" and inert(config, LINKS["labels"]) is not None
    return ready or inert(config, LINKS[link]) is not None


def kept_apart(vary: Sequence[Link]) -> dict[str, str]:
    """Keys that arms may not set, since the study's seeds do."""
    return {LINKS[link]: f"is set by the study's seeds, which vary the {WORDS[link]} (vary: {link})" for link in vary}
