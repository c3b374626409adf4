"""The kinds of rewards and judges, an entry of ``kinds.yaml`` each, and the settings of the ready ones.

Schema, messages, tables and loaders are made from the entries. A kind's code is imported when it has to score; its
settings need no torch. A new kind is a file with its code, its settings where it has some, and an entry. A class of the
user's own needs none (`pipeline.rewards.own`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from pipeline.config.base import Fraction, NonNegative, Section


@dataclass(frozen=True)
class Kind:
    """A way to score texts."""

    words: str
    code: str
    """``module:name``. Without settings a class that is made without arguments; with settings a function of the key of
    the section for messages, the settings, the device and the `Room`; of a trained kind its `RewardModel`."""
    settings: str | None = None
    """``module:class``; they stand in the section that has the kind's name."""
    trained: bool = False
    """True where the reward stage fits it to pairs."""
    scores: bool = True
    """True where a policy can be trained on it; the others judge alone."""
    dense: bool = False
    """True where points are earned before the end of a text (`TextScore.earned`)."""
    reads: str = ""
    """Texts that it can score: `reviews` the built-in ones, `insults` those that insult, `chains`; empty: all."""


KINDS: dict[str, Kind] = {
    name: Kind(**kind)
    for name, kind in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))["kinds"].items()
}
GUARDED = "fluent_lexicon"
"""The kind that judges with what the stage `judge` has made."""
TRAINED = tuple(name for name, kind in KINDS.items() if kind.trained)
SCORING = tuple(name for name, kind in KINDS.items() if kind.scores and not kind.trained)
"""Kinds that score without being trained here, and can be trained on."""
DENSE = tuple(name for name, kind in KINDS.items() if kind.dense)
JUDGING = tuple(name for name, kind in KINDS.items() if not kind.trained)
OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""A class of the user's own: ``package.module:Class``."""


def is_own(kind: str) -> bool:
    """Return whether a kind is a class of the user's own."""
    return ":" in kind


class ClassifierSettings(Section):
    """The model of the kind `classifier`; the score is the log-odds of a label."""

    model: str | None = Field(
        None, description="hub id or local folder of a sequence-classification model with its tokenizer"
    )
    revision: str | None = Field(None, description="commit of a hub id, 40 hexadecimal digits")
    label: str | None = Field(None, description="the model's name of the output that is wanted; none: its only one")


class VerifierSettings(Section):
    """Errors and generosity of a verifier. 1 less the two error rates is Youden's J: at 0 the reward holds no
    information on the answer, below 0 it misleads."""

    false_positive: Fraction = Field(0.0, description="probability that a wrong answer is accepted")
    false_negative: Fraction = Field(0.0, description="probability that a right answer is rejected")
    extract: Literal["strict", "lenient"] = Field(
        "strict",
        description="strict: the response must end with its only answer; lenient: a right answer anywhere in it counts",
    )
    sound_steps: NonNegative = Field(
        0.0, description="points for a working all of whose steps are sound; in part for a share"
    )


class OcrSettings(Section):
    """The image of a text. The score depends on the text and on these alone."""

    size: Annotated[int, Field(ge=8, le=96)] = Field(24, description="size of the font, DejaVu Sans [pixels]")
    blur: NonNegative = Field(0.0, description="standard deviation of a Gaussian blur [pixels]")
    noise: Annotated[float, Field(ge=0.0, le=255.0)] = Field(
        0.0, description="standard deviation of Gaussian noise [grey levels; paper is 255, ink is 0]"
    )
    rotation: Annotated[float, Field(ge=0.0, le=45.0)] = Field(
        0.0, description="largest angle [degrees]; each text has its own, uniform between minus and plus this"
    )
