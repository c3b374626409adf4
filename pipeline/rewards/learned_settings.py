"""Settings of rewards that are learned from pairs: the sections `reward.learned` and `reward.pairwise`, and what they
need of the rest of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.algorithms.settings import LEARNS
from pipeline.config.base import Layers, NonNegative, Positive, Section, Seed, StrictlyPositive, Tokens, Width, refuse
from pipeline.config.effects import Chosen, Config, When
from pipeline.config.names import nearest
from pipeline.config.networks import ModelConfig

JUDGE = "judge"
FURTHER = "judge:"
"""Prefix of the name of a further judge, where pairs are labelled by it."""


def is_judged(preferences: str) -> bool:
    """Return whether pairs of reference samples are labelled by a judge: the gold one or a further one."""
    return preferences == JUDGE or preferences.startswith(FURTHER)


def check_preferences(preferences: str) -> str:
    """Return preferences that are a source of pairs. Raises `ValueError` for others."""
    if preferences.startswith(FURTHER) and preferences != FURTHER:
        return preferences
    if preferences != JUDGE and "/" not in preferences and "." not in preferences:
        raise ValueError(
            f"preferences '{preferences}' must be judge, judge:NAME, or the path of a parquet or JSONL"
            f" file{nearest(preferences, [JUDGE])}"
        )
    return preferences


def _sources(config: Config) -> list[str]:
    """The sources of pairs of all rewards that are learned."""
    return [part.preferences for part in config.reward.trained().values()]


LEARNED = When("a learned reward", lambda config: bool(_sources(config)), "reward.kind")
JUDGED = When(
    "a learned reward with preferences: judge", lambda config: any(map(is_judged, _sources(config))), "reward.kind"
)
GIVEN_PAIRS = When(
    "a learned reward with preferences from a file",
    lambda config: not all(map(is_judged, _sources(config))),
    "reward.kind",
)
PAIRWISE = When(
    "a reward of kind pairwise",
    lambda config: any(part.kind == "pairwise" for part in config.reward.trained().values()),
    "reward.kind",
)
ROUNDS = When("reward.learned.rounds above 1", lambda config: config.rounds > 1, "reward.learned.rounds")


class ScratchSettings(Section):
    """A trunk of its own, with random weights."""

    hidden_size: Width = Field(96, description="width of the trunk")
    layers: Layers = Field(2, description="layers of the trunk")
    heads: Layers = Field(4, description="attention heads of the trunk")
    intermediate_size: Width = Field(256, description="width of its gated MLP")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        self.sizes()
        return self

    def sizes(self) -> ModelConfig:
        """Return the sizes of the network. Raises `ValueError` where its heads do not divide its width."""
        return ModelConfig(**self.model_dump())


class LearnedSettings(Section):
    """The pairs that rewards are learned from, and how."""

    pairs: Positive = Field(4_096, description="preference pairs to train on; of a file, at most")
    ranked: Annotated[int, Field(ge=2, le=1_000)] = Field(
        2,
        description=(
            "K answers to a prompt that the judge puts in order; 2: pairs. A ranking counts as K (K - 1) / 2 of the"
            " pairs, and its loss is that of pairs, mean over all of its pairs"
        ),
    )
    rounds: Annotated[Positive, Field(le=1_000), JUDGED, LEARNS] = Field(
        1,
        description=(
            "times that preferences are collected: the first pairs are the reference's, later ones those of the policy"
            " trained so far; pairs and train.steps are totals, split evenly"
        ),
    )
    keep_pairs: Annotated[Literal["all", "newest"], ROUNDS] = Field(
        "all", description="rounds: pairs that the reward model of a round learns from: those of all rounds so far"
    )
    heldout_pairs: Positive = Field(
        512, description="pairs kept back to measure accuracy, on prompts of their own; of a file, at most"
    )
    max_tokens: Annotated[Tokens, Field(ge=2), GIVEN_PAIRS] = Field(
        256, description="texts of a file are cut to this many tokens"
    )
    label_noise: Annotated[NonNegative, JUDGED] = Field(
        0.35,
        description=(
            "temperature of P(a over b) = sigmoid((gold_a - gold_b) / (this x std of gold)); 0 = the judge himself"
        ),
    )
    trunk: Literal["reference", "scratch"] = Field(
        "reference",
        description="where a learned reward starts: the reference's weights, or a Qwen2 of its own with random ones",
    )
    scratch: Annotated[ScratchSettings, Chosen("trunk")] = ScratchSettings()
    epochs: Positive = Field(2, description="number of times that the model sees each pair")
    batch_size: Positive = Field(64, description="pairs in one step; of rankings as many as have no more pairs")
    lr: StrictlyPositive = Field(1e-3, description="peak learning rate")
    pairs_seed: Seed = Field(0, description="seed of the preference pairs and of their labels")

    @property
    def comparisons(self) -> int:
        """Pairs in one ranking."""
        return self.ranked * (self.ranked - 1) // 2

    @property
    def rankings(self) -> int:
        """Rankings to train on."""
        return self.pairs // self.comparisons

    @property
    def rankings_in_step(self) -> int:
        """Rankings that make `batch_size` pairs or the next fewer, at least one."""
        return max(self.batch_size // self.comparisons, 1)


class PairwiseSettings(Section):
    """The general preference model."""

    dimension: Annotated[Width, Field(ge=2, multiple_of=2)] = Field(
        4, description="length of the vector of an answer, an even number; one circle of preferences needs two"
    )


def check_rankings(config: Config) -> None:
    """Raise `ValueError` where more than two answers cannot be ranked together."""
    learned, parts = config.reward.learned, config.reward.trained()
    if learned.ranked == 2 or not parts:
        return
    ranked = f"reward.learned.ranked {learned.ranked}"
    given = {config.reward.key(name): part for name, part in parts.items() if not is_judged(part.preferences)}
    refuse({
        f"{ranked}: one ranking makes {learned.comparisons} pairs, and reward.learned.pairs is {learned.pairs}; raise"
        " it, or rank fewer answers": learned.comparisons > learned.pairs,
        f"reward.learned.rounds {learned.rounds} collects pairs, and reward.learned.ranked is {learned.ranked}; use"
        " ranked: 2, or rounds: 1": config.rounds > 1,
        f"{ranked}: the preferences of judge.kind 'cycle' are no order; use ranked: 2, or another judge":
            config.judge.kind == "cycle" and JUDGE in _sources(config),
        **{
            f"{key}.preferences '{part.preferences}': a file holds pairs, and reward.learned.ranked is"
            f" {learned.ranked}; use ranked: 2, or preferences: judge": True
            for key, part in given.items()
        },
    })  # fmt: skip


def check_sources(config: Config) -> None:
    """Raise `ValueError` for pairs that nobody labels."""
    for name, part in config.reward.trained().items():
        judge = part.preferences.removeprefix(FURTHER)
        if part.preferences.startswith(FURTHER) and judge not in config.judge.also:
            raise ValueError(
                f"{config.reward.key(name)}.preferences '{part.preferences}': judge.also has no '{judge}'"
                f"{nearest(judge, config.judge.also)}; there are: {', '.join(config.judge.also) or 'none'}"
            )
