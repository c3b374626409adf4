"""Training reward and judge of a policy: the sections `reward` and `judge`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticKnownError

from pipeline.config.base import Finite, Positive, Section, Seed, refuse, with_settings
from pipeline.config.effects import Beside, Chosen, Config, setting
from pipeline.rewards.kinds import JUDGING, KINDS, OWN, SCORING, TRAINED, is_own
from pipeline.rewards.learned_settings import LEARNED, PAIRWISE, LearnedSettings, PairwiseSettings, check_preferences

PartName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
Preferences = Annotated[
    str,
    AfterValidator(check_preferences),
    Beside(f"kind: {' or '.join(TRAINED)}", lambda scorer: scorer.kind in TRAINED, "kind"),
]
OWN_CLASS = "package.module:Class for a class of your own"


def _names(*names: str) -> dict[str, Any]:
    """The values of a kind for editors."""
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


class RewardConfig(ScorerConfig):
    """The training signal (proxy)."""

    names = (*TRAINED, *SCORING, "composite")
    kind: str = Field(
        "learned",
        description=(
            "; ".join(f"{kind}: {KINDS[kind].words}" for kind in (*TRAINED, *SCORING))
            + f"; composite: weighted sum of parts; {OWN_CLASS}"
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
    opponents: Annotated[Positive, setting("reward.against", "reference")] = Field(
        4, description="answers of the reference to each training and held-out prompt, for against: reference"
    )
    parts: Annotated[dict[PartName, PartConfig], setting("reward.kind", "composite")] = Field(
        {}, description="composite: its parts by name; each is calibrated, then weighed and added"
    )
    preferences: Preferences = Field(
        "judge",
        description=(
            "learned, pairwise: pairs sampled from the reference and judged with noise (judge; judge:NAME: by that one"
            " of judge.also), or a file or folder of parquet, CSV or JSONL with `prompt,chosen,rejected`"
        ),
    )
    learned: Annotated[LearnedSettings, LEARNED] = LearnedSettings()
    pairwise: Annotated[PairwiseSettings, PAIRWISE] = PairwiseSettings()
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
        shared = {name: getattr(self, name) for name in PartConfig.model_fields if name != "weight"}
        return {"reward": PartConfig(**shared)}

    def trained(self) -> dict[str, PartConfig]:
        """The parts that are learned from pairs."""
        return {name: part for name, part in self.scorers().items() if part.kind in TRAINED}

    def key(self, part: str) -> str:
        """The section of the configuration that describes a part."""
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
            "auto: grammar on built-in reviews (helpful where they insult), else fluent_lexicon; fluent_lexicon: VADER,"
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
    reward, data = config.reward, config.data
    kinds = {f"{reward.key(name)}.kind": part.kind for name, part in reward.scorers().items()}
    kinds |= {"judge.kind": config.gold.kind}
    kinds |= {f"judge.also.{name}.kind": also.kind for name, also in config.judge.also.items()}
    for key, kind in kinds.items():
        reads = KINDS[kind].reads if kind in KINDS else ""
        refuse({
            f"{key} '{kind}' understands only built-in reviews, data.source is '{data.source}'; use lexicon or"
            " classifier": bool(reads) and data.source != "builtin",
            f"{key} '{kind}' is about insults, and data.builtin.insults is 0; use a share above 0":
                reads == "insults" and not data.builtin.insults,
        })  # fmt: skip
