"""What a policy is trained on and what it is judged by: the sections `reward` and `judge`, which are set apart."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Finite, Layers, NonNegative, Positive, Section, Seed, StrictlyPositive, Tokens, Width
from pipeline.config.model import ModelConfig
from pipeline.config.names import nearest
from pipeline.config.ocr import OcrConfig

PartName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
PREFERENCES = ["judge", "labels"]
JUDGE = "judge"
FURTHER = "judge:"
"""Before the name of a further judge, where pairs are labelled by it."""
Combine = Literal["mean", "minimum", "worst_k", "uncertainty"]
DISAGREEMENT = "disagreement"
"""What the spread of an ensemble is called beside the parts of a reward."""
READY = {
    "lexicon": "lexicon judge (VADER)",
    "classifier": "ready sequence classifier",
    "grammar": "grammar judge",
    "helpful": "grammar judge to whom an insult is an opinion",
    "harmless": "judge of harmlessness (minus the number of insulting words)",
    "ocr": "OCR reader (PP-OCR)",
}
"""Kinds that score without being trained here, in words; how they are loaded is in `pipeline.rewards.registry`."""
OF_GRAMMAR = ("grammar", "cycle", "helpful", "harmless")
"""Kinds that understand the built-in reviews alone."""
OF_INSULTS = ("helpful", "harmless")
"""Kinds that need reviews that insult."""
LEARNED = {
    "learned": "Bradley-Terry model",
    "pairwise": "general preference model, for reward.against: reference or policy",
}
"""Kinds that are trained here on pairs, in words; how is in `pipeline.rewards.families`."""
GUARDED = "fluent_lexicon"
"""The kind that judges alone, with what the stage `judge` has made."""
JUDGES = {
    **READY,
    GUARDED: "lexicon judge (VADER) with a guard against text that no writer would write",
    "cycle": "cyclic judge (fewer faults, then the ending)",
}
"""Kinds of gold judges, in words. A cyclic judge prefers, but has no score that could be trained on."""


class Scorer(Section):
    """The model of the kind `classifier` and which of its outputs is the score; the settings of the kind `ocr`."""

    model: str | None = Field(
        None, description="hub id or local folder of a sequence-classification model with its tokenizer"
    )
    revision: str | None = Field(None, description="commit of a hub id, 40 hexadecimal digits")
    label: str | None = Field(None, description="the model's name of the output that is wanted; none: its only one")
    output: Literal["log_odds", "logit"] = Field("log_odds", description="log-odds of the label, or its logit as it is")
    ocr: OcrConfig | None = Field(
        None, description="kind: ocr: how a text is drawn and what reads it; none there: all defaults"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_ocr(cls, content: Any) -> Any:
        """One configuration for one meaning: the kind `ocr` without settings has the defaults of all."""
        if isinstance(content, dict) and content.get("kind") == "ocr" and content.get("ocr") is None:
            return {**content, "ocr": {}}
        return content

    def _check_model(self, kind: str) -> None:
        if (kind == "classifier") != (self.model is not None):
            raise ValueError(
                "kind: classifier and model need each other; set model to a hub id or a local folder, or change kind"
            )
        idle = [
            name for name in ("revision", "label", "output") if getattr(self, name) != Scorer.model_fields[name].default
        ]
        if idle and kind != "classifier":
            raise ValueError(
                f"{idle[0]} '{getattr(self, idle[0])}' is for kind: classifier, kind is '{kind}'; leave {idle[0]} out"
            )
        if self.ocr is not None and kind != "ocr":
            raise ValueError(f"the settings ocr are for kind: ocr, kind is '{kind}'; leave ocr out")


class PartConfig(Scorer):
    """One part of a composite reward. Learned parts are trained by the settings of the reward."""

    kind: Literal[*LEARNED, *READY] = Field(description="see reward.kind")  # type: ignore[valid-type]
    weight: Finite = Field(1.0, description="of the calibrated part in the sum; negative: less is better")
    preferences: str = Field("judge", description="see reward.preferences")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self._check_model(self.kind)
        check_preferences(self.kind, self.preferences)
        return self


class RewardConfig(Scorer):
    """The training signal (proxy)."""

    kind: Literal[*LEARNED, *READY, "composite"] = Field(  # type: ignore[valid-type]
        "learned",
        description=(
            "; ".join(f"{kind}: {words}" for kind, words in {**LEARNED, **READY}.items())
            + "; composite: weighted sum of parts"
        ),
    )
    against: Literal["none", "reference", "policy"] = Field(
        "none",
        description=(
            "reference: an answer is compared with answers of the reference to the same prompt: its score less their"
            " mean score, or for kind pairwise the mean probability of beating them; in a composite each part is;"
            " policy: the same with answers of the policy that the round began with, in the first round the reference"
        ),
    )
    opponents: Positive = Field(
        4, description="answers of the opponent to each training and held-out prompt, for against: reference or policy"
    )
    dimension: Annotated[Width, Field(ge=2, multiple_of=2)] = Field(
        4,
        description="pairwise: length of the vector of an answer, an even number; one circle of preferences needs two",
    )
    parts: dict[PartName, PartConfig] = Field(
        {}, description="composite: its parts by name; each is calibrated, then weighed and added"
    )
    preferences: str = Field(
        "judge",
        description=(
            "learned, pairwise: pairs sampled from the reference and judged with noise (judge; judge:NAME: by that one"
            " of judge.also), positive against negative reviews (labels), or a file or folder of parquet or JSONL with"
            " `prompt,chosen,rejected` (for ranked above 2 `prompt,completions,ranks`)"
        ),
    )
    pairs: Positive = Field(4_096, description="preference pairs to train on; of labels and files, at most")
    ranked: Annotated[int, Field(ge=2, le=1_000)] = Field(
        2,
        description=(
            "K answers to a prompt that the judge, or a file with `prompt,completions,ranks`, puts in order; 2: pairs."
            " A ranking counts as K (K - 1) / 2 of the pairs"
        ),
    )
    ranking_loss: Literal["all_pairs", "plackett_luce"] = Field(
        "all_pairs",
        description=(
            "of rankings. all_pairs: the loss of pairs, mean over all pairs of a ranking; plackett_luce: -log P of the"
            " whole order"
        ),
    )
    rounds: Annotated[Positive, Field(le=1_000)] = Field(
        1,
        description=(
            "times that preferences are collected: the first pairs are the reference's, later ones those of the policy"
            " trained so far; pairs and train.steps are totals, split evenly"
        ),
    )
    keep_pairs: Literal["all", "newest"] = Field(
        "all", description="rounds: pairs that the reward model of a round learns from: those of all rounds so far"
    )
    heldout_pairs: Positive = Field(
        512, description="pairs kept back to measure accuracy, on prompts of their own; of labels and files, at most"
    )
    max_tokens: Annotated[Tokens, Field(ge=2)] = Field(
        256, description="texts of labels and files are cut to this many tokens"
    )
    label_noise: NonNegative = Field(
        0.35,
        description=(
            "temperature of P(a over b) = sigmoid((gold_a - gold_b) / (this x std of gold)); 0 = the judge himself"
        ),
    )
    calibration_samples: Annotated[Positive, Field(ge=2)] = Field(
        512, description="reference samples that set mean 0 and std 1 of the proxy"
    )
    trunk: Literal["reference", "scratch"] = Field(
        "reference",
        description="where a learned reward starts: the reference's weights, or a Qwen2 of its own with random ones",
    )
    hidden_size: Width = Field(96, description="width of a scratch trunk")
    layers: Layers = Field(2, description="layers of a scratch trunk")
    heads: Layers = Field(4, description="attention heads of a scratch trunk")
    intermediate_size: Width = Field(256, description="width of its gated MLP")
    pretraining_steps: Annotated[int, Field(ge=0)] = Field(
        0, description="steps of a scratch trunk as a language model on the SFT texts, by the settings of sft"
    )
    ensemble: Annotated[Positive, Field(le=1_000)] = Field(
        1, description="learned models that score together; each has its own seed, 1 is none"
    )
    combine: Combine = Field(
        "mean",
        description=(
            "of the members' calibrated scores: mean, minimum, worst_k (mean of the k lowest), uncertainty (mean -"
            " reward.uncertainty_weight x variance)"
        ),
    )
    worst_k: Annotated[int, Field(ge=2, le=1_000)] = Field(
        2, description="combine: worst_k: how many of the lowest scores are averaged"
    )
    uncertainty_weight: StrictlyPositive = Field(
        0.5,
        description=(
            "combine: uncertainty: weight of the variance over the models, which is subtracted from their mean [1 / std"
            " of reference samples]"
        ),
    )
    epochs: Positive = Field(2, description="passes over the pairs")
    batch_size: Positive = Field(64, description="pairs in one step; of rankings as many as have no more pairs")
    lr: StrictlyPositive = Field(1e-3, description="peak learning rate")
    pairs_seed: Seed = Field(0, description="of the preference pairs: which are sampled, and their labels")
    seed: Seed = Field(0, description="of the reward model: its initialisation, the order of its training, its scale")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self._check_model(self.kind)
        check_preferences(self.kind, self.preferences)
        if (self.kind == "composite") != bool(self.parts):
            raise ValueError(
                "kind: composite and parts need each other; for example parts: {helpful: {kind: learned}, short: {kind:"
                " ...}}"
            )
        if self.against == "none":
            for name, part in self.scorers().items():
                if part.kind == "pairwise":
                    key = f"{part_key(name, self.kind == 'composite')}.kind"
                    raise ValueError(
                        f"{key} 'pairwise' compares two answers, and reward.against is 'none'; use against: reference,"
                        " or kind: learned"
                    )
        if self.parts and not any(part.weight for part in self.parts.values()):
            raise ValueError("parts: every weight is 0, so there is nothing to learn")
        if self.combine == "worst_k" and not self.worst_k < self.ensemble:
            raise ValueError(f"worst_k {self.worst_k} must be below ensemble {self.ensemble}; all of them are the mean")
        if self.ensemble > 1 and any(part.kind == "pairwise" for part in self.scorers().values()):
            raise ValueError(
                f"ensemble {self.ensemble}: its models are brought to one scale by their scores, and kind 'pairwise'"
                " has none; use ensemble: 1, or kind: learned"
            )
        if self.ensemble > 1 and self.against != "none":
            raise ValueError(
                f"ensemble {self.ensemble}: how far its models disagree is not known of a score less that of opponents,"
                f" and against is '{self.against}'; use against: none, or ensemble: 1"
            )
        if self.ensemble > 1 and DISAGREEMENT in self.parts:
            raise ValueError(f"parts: an ensemble calls its spread '{DISAGREEMENT}'; give the part another name")
        self.sizes()
        return self

    def sizes(self) -> ModelConfig:
        """Of a scratch trunk. Raises `ValueError` where its heads do not divide its width."""
        return ModelConfig(
            hidden_size=self.hidden_size,
            layers=self.layers,
            heads=self.heads,
            intermediate_size=self.intermediate_size,
        )

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

    def scorers(self) -> dict[str, PartConfig]:
        """The parts by name; of a reward that is no composite, itself under the name ``reward``."""
        if self.kind == "composite":
            return self.parts
        shared = {name: getattr(self, name) for name in PartConfig.model_fields if name != "weight"}
        return {"reward": PartConfig(**shared)}


def part_key(name: str, composite: bool) -> str:
    """The section of the configuration that describes a part."""
    return f"reward.parts.{name}" if composite else "reward"


def is_judged(preferences: str) -> bool:
    """Whether pairs of reference samples are labelled by a judge: the gold one or a further one."""
    return preferences == JUDGE or preferences.startswith(FURTHER)


def check_preferences(kind: str, preferences: str) -> None:
    """Raise `ValueError` for preferences that nobody reads, or that are no source of pairs."""
    if kind not in LEARNED and preferences != JUDGE:
        raise ValueError(f"preferences '{preferences}' are for kind: {' or '.join(LEARNED)}, kind is '{kind}'")
    if preferences.startswith(FURTHER) and preferences != FURTHER:
        return
    if not preferences or ("/" not in preferences and "." not in preferences and preferences not in PREFERENCES):
        raise ValueError(
            f"preferences '{preferences}' must be judge, judge:NAME, labels, or the path of a parquet or JSONL"
            f" file{nearest(preferences, PREFERENCES)}"
        )


class FurtherJudge(Scorer):
    """A judge whose score is recorded beside that of the gold judge, and decides no win."""

    kind: Literal[*READY] = Field(description="see judge.kind")  # type: ignore[valid-type]

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self._check_model(self.kind)
        return self


class JudgeConfig(Scorer):
    """The gold judge: what decides wins and is never trained on."""

    kind: Literal["auto", *JUDGES] = Field(  # type: ignore[valid-type]
        "auto",
        description=(
            "auto: grammar on built-in reviews (helpful where they insult), else fluent_lexicon; fluent_lexicon: VADER,"
            " and text that no writer would write loses; lexicon: VADER alone, which gibberish can please; cycle: of"
            " built-in reviews fewer faults win, then a strong opinion at the end beats a mild one, a mild one advice,"
            " and advice a strong one"
        ),
    )
    also: dict[PartName, FurtherJudge] = Field(
        {}, description="further judges by name: their scores are recorded, and can label pairs (judge:NAME)"
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        self._check_model(self.kind)
        return self
