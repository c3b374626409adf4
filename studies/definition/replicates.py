"""The effect of a study's seed: on training alone, or also on labels, reward model and the reference behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pipeline.config.base import replaced
from pipeline.config.effects import inert
from pipeline.config.trial import TrialConfig
from studies.definition.fields import SEED_KEY

Link = Literal["labels", "reward", "sft"]
LINKS: Mapping[Link, str] = {"labels": "reward.learned.pairs_seed", "reward": "reward.seed", "sft": "sft.seed"}
"""Parts of the chain before training, and the key of their seed."""
WORDS: Mapping[Link, str] = {"labels": "preference labels", "reward": "reward model", "sft": "reference policy (SFT)"}


def seeded(config: TrialConfig, seed: int, vary: Sequence[Link]) -> TrialConfig:
    """The configuration of a trial of this seed: that of the training, and of every link that varies and acts."""
    return replaced(config, {SEED_KEY: seed, **{LINKS[link]: seed for link in acting(config, vary)}})


def chain_of(config: TrialConfig) -> tuple[int, ...]:
    """Seeds of the stages before training: trials with equal seeds can share them."""
    return config.sft.seed, config.reward.learned.pairs_seed, config.reward.seed


def acting(config: TrialConfig, vary: Sequence[Link]) -> tuple[Link, ...]:
    """Links that exist in this configuration: a ready reward has no labels, a snapshot without SFT no seed."""
    return tuple(link for link in LINKS if link in vary and not _idle(config, link))


def _idle(config: TrialConfig, link: Link) -> bool:
    ready = link == "reward" and inert(config, LINKS["labels"]) is not None
    return ready or inert(config, LINKS[link]) is not None


def kept_apart(vary: Sequence[Link]) -> dict[str, str]:
    """Keys that arms may not set, since the study's seeds do."""
    return {LINKS[link]: f"is set by the study's seeds, which vary the {WORDS[link]} (vary: {link})" for link in vary}
