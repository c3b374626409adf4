"""Training reward and judge of a policy: the sections `reward`, `reward.learned` and `judge`, and what they need of
other sections."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from pipeline.algorithms.settings import LEARNS
from pipeline.config.base import (
    Finite,
    Layers,
    NonNegative,
    Positive,
    Section,
    Seed,
    StrictlyPositive,
    Tokens,
    Width,
    refuse,
    with_settings,
)
from pipeline.config.effects import Beside, Chosen, Config, When, setting
from pipeline.config.names import nearest
from pipeline.config.networks import ModelConfig
from pipeline.rewards.kinds import JUDGING, KINDS, OWN, SCORING, TRAINED, is_own

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
    batch_size: Positive = Field(64, description="pairs in one step; of rankings, as many as hold no more pairs")
    lr: StrictlyPositive = Field(1e-3, description="peak learning rate")
    pairs_seed: Seed = Field(0, description="seed of the preference pairs and of their labels")

    @property
    def comparisons(self) -> int:
        return self.ranked * (self.ranked - 1) // 2

    @property
    def rankings(self) -> int:
        return self.pairs // self.comparisons

    @property
    def rankings_in_step(self) -> int:
        """Rankings that make `batch_size` pairs or the next fewer, at least one."""
        return max(self.batch_size // self.comparisons, 1)


Combine = Literal["sum", "worst", "cautious"]


class CompositeSettings(Section):
    """The way from the parts of a composite reward to one score."""

    combine: Combine = Field(
        "sum",
        description="sum: of the weighed parts; worst: their minimum; cautious: their mean less caution x variance",
    )
    caution: Annotated[NonNegative, setting("reward.composite.combine", "cautious")] = Field(
        0.5, description="weight of the variance over the parts"
    )


PartName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
OF_TRAINED = Beside(f"kind: {' or '.join(TRAINED)}", lambda scorer: scorer.kind in TRAINED, "kind")
Preferences = Annotated[str, AfterValidator(check_preferences), OF_TRAINED]
OWN_CLASS = "package.module:Class for a class of your own"
OPPONENTS = 4
"""Answers of the reference to each training and held-out prompt that `reward.against` compares with."""


def _names(*names: str) -> dict[str, Any]:
    return {"anyOf": [{"enum": list(names)}, {"pattern": f"^{OWN.pattern}$"}]}


@with_settings(KINDS, Chosen("kind"))
class ScorerConfig(Section):
    """The kind that scores, and its settings: those of a class of the user's own in `settings`, others by kind."""

    names: ClassVar[tuple[str, ...]] = ()
    kind: str
    settings: Annotated[dict[str, Any], Beside(f"kind: {OWN_CLASS}", lambda scorer: is_own(scorer.kind), "kind")] = (
        Field({}, description="settings of a class of your own, by the names of its Settings")
    )

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in cls.names and not OWN.fullmatch(kind):
            listed = ", ".join(f"'{name}'" for name in cls.names)
            raise PydanticKnownError("literal_error", {"expected": f"{listed} or {OWN_CLASS}"})
        return kind

    @property
    def chosen(self) -> Any:
        """The settings of its kind; None for a kind without settings."""
        return getattr(self, self.kind) if self.kind in KINDS and KINDS[self.kind].settings else None

    @model_validator(mode="after")
    def _classifier_has_a_model(self) -> Self:
        if self.kind == "classifier" and self.chosen.model is None:
            raise ValueError("kind: classifier needs classifier.model; set it to a hub id or a local folder")
        return self


class PartConfig(ScorerConfig):
    """One part of a composite reward. Learned parts are trained by the settings of the reward."""

    names = (*TRAINED, *SCORING)
    kind: str = Field(description="see reward.kind", json_schema_extra=_names(*names))
    weight: Finite = Field(1.0, description="weight of the calibrated part in the sum; negative: less is better")
    preferences: Preferences = Field("judge", description="see reward.preferences")
    member: Annotated[
        Positive | None,
        OF_TRAINED,
        Beside("member", lambda scorer: scorer.member is not None, "member"),
    ] = Field(
        None,
        description=(
            "number of this model in an ensemble, which has the pairs of the others and another initialisation and"
            " order of pairs; none: those of reward.seed"
        ),
    )


class RewardConfig(ScorerConfig):
    """The training signal (proxy)."""

    names = (*TRAINED, *SCORING, "composite")
    kind: str = Field(
        "learned",
        description=(
            "; ".join(f"{kind}: {KINDS[kind].words}" for kind in (*TRAINED, *SCORING))
            + f"; composite: parts, weighed and combined; {OWN_CLASS}"
        ),
        json_schema_extra=_names(*names),
    )
    against: Literal["none", "reference"] = Field(
        "none",
        description=(
            "reference: an answer is compared with answers of the reference to the same prompt: its score less their"
            " mean score, or for kind pairwise the mean probability of beating them; in a composite each part is"
        ),
    )
    dense: bool = Field(
        False,
        description=(
            "pay the points of an answer where they are earned, not all at its end; the sum is the same. grammar,"
            " helpful: at the full stop of each clause; verifier: at the sign behind each sound row"
        ),
    )
    parts: Annotated[dict[PartName, PartConfig], setting("reward.kind", "composite")] = Field(
        {}, description="composite: its parts by name; each is calibrated, then weighed and combined"
    )
    composite: Annotated[CompositeSettings, Chosen("kind")] = CompositeSettings()
    preferences: Preferences = Field(
        "judge",
        description=(
            "learned, pairwise: pairs sampled from the reference and judged with noise (judge; judge:NAME: by that one"
            " of judge.also), or a file or folder of parquet, CSV or JSONL with `prompt,chosen,rejected`"
        ),
    )
    learned: Annotated[LearnedSettings, LEARNED] = LearnedSettings()
    calibration_samples: Annotated[Positive, Field(ge=2)] = Field(
        512, description="reference samples that set mean 0 and std 1 of the proxy"
    )
    seed: Seed = Field(
        0, description="seed of the reward model: initialisation, order of the pairs, and the samples that calibrate it"
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        parts = self.scorers()
        alone = [self.key(name) for name, part in parts.items() if part.kind == "pairwise" and self.against == "none"]
        refuse({
            "kind: composite needs parts; for example parts: {helpful: {kind: learned}, short: {kind: ...}}": not parts,
            f"{', '.join(alone[:1])}.kind 'pairwise' compares two answers, and reward.against is 'none'; use against:"
            " reference, or kind: learned": bool(alone),
            "parts: every weight is 0, so there is nothing to learn": not any(part.weight for part in parts.values()),
        })  # fmt: skip
        return self

    def scorers(self) -> dict[str, PartConfig]:
        """The parts by name; of a reward that is no composite, itself under the name ``reward``."""
        if self.kind == "composite":
            return self.parts
        shared = {name: getattr(self, name) for name in PartConfig.model_fields if name in RewardConfig.model_fields}
        return {"reward": PartConfig(**shared)}

    def trained(self) -> dict[str, PartConfig]:
        """The parts that are learned from pairs."""
        return {name: part for name, part in self.scorers().items() if part.kind in TRAINED}

    def key(self, part: str) -> str:
        return part_key(part, self.kind == "composite")


def part_key(name: str, composite: bool) -> str:
    """The section of the configuration that describes a part."""
    return f"reward.parts.{name}" if composite else "reward"


class FurtherJudge(ScorerConfig):
    """A judge whose score is recorded beside that of the gold judge, and decides no win."""

    names = SCORING
    kind: str = Field(description="see judge.kind", json_schema_extra=_names(*names))


class JudgeConfig(ScorerConfig):
    """The gold judge: what decides wins and is never trained on."""

    names = ("auto", *JUDGING)
    kind: str = Field(
        "auto",
        description=(
            "auto: grammar on built-in reviews (helpful where they insult), verifier on chains, else fluent_lexicon;"
            " fluent_lexicon: VADER,"
            " and text that no writer would write loses; lexicon: VADER alone, which gibberish can please; cycle: of"
            " built-in reviews fewer faults win, then a strong opinion at the end beats a mild one, a mild one advice,"
            f" and advice a strong one; {OWN_CLASS}"
        ),
        json_schema_extra=_names(*names),
    )
    also: dict[PartName, FurtherJudge] = Field(
        {}, description="further judges by name: their scores are recorded, and can label pairs (judge:NAME)"
    )


def check_scorers(config: Config) -> None:
    """Raise `ValueError` for a scorer that understands built-in reviews or insults alone where there are none."""
    data = config.data
    for section, scorer in config.scorers.items():
        key, kind = f"{section}.kind", scorer.kind
        reads = KINDS[kind].reads if kind in KINDS else ""
        refuse({
            f"{key} '{kind}' understands only built-in reviews, data.source is '{data.source}'; use"
            f" {'verifier' if data.source == 'chains' else 'lexicon or classifier'}":
                reads in ("reviews", "insults") and data.source != "builtin",
            f"{key} '{kind}' understands only chains, data.source is '{data.source}'; use another, or data.source:"
            " chains": reads == "chains" and data.source != "chains",
            f"{key} '{kind}' is about insults, and data.builtin.insults is 0; use a share above 0":
                reads == "insults" and not data.builtin.insults,
        })  # fmt: skip


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
