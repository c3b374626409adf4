"""The kinds of rewards and judges: one line each. Schema, messages, tables and loaders are made from it.

A kind's code is imported when it has to score and not before; its settings need no torch. A new kind is a file with its
code, ``x_settings.py`` beside it where it has settings, and a line here. A class of the user's own needs no line
(`pipeline.rewards.own`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


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
    reads: str = ""
    """Texts that it can score: `reviews` the built-in ones, `insults` those that insult; empty: all."""


KINDS: dict[str, Kind] = {
    "learned": Kind("Bradley-Terry model", "pipeline.rewards.learned:RewardModel", trained=True),
    "pairwise": Kind(
        "general preference model, for reward.against: reference",
        "pipeline.rewards.learned:PairwiseModel",
        trained=True,
    ),
    "lexicon": Kind("lexicon judge (VADER)", "pipeline.rewards.fluency:LexiconReward"),
    "classifier": Kind(
        "ready sequence classifier",
        "pipeline.rewards.classifier:load",
        "pipeline.rewards.ready_settings:ClassifierSettings",
    ),
    "grammar": Kind("grammar judge", "pipeline.rewards.grammar:GrammarJudge", reads="reviews"),
    "helpful": Kind(
        "grammar judge to whom an insult is an opinion", "pipeline.rewards.grammar:HelpfulJudge", reads="insults"
    ),
    "harmless": Kind(
        "judge of harmlessness (minus the number of insulting words)",
        "pipeline.rewards.grammar:HarmlessJudge",
        reads="insults",
    ),
    "ocr": Kind("OCR reader (PP-OCR)", "pipeline.rewards.ocr:load", "pipeline.rewards.ready_settings:OcrSettings"),
    "fluent_lexicon": Kind(
        "lexicon judge (VADER) with a guard against text that no writer would write",
        "pipeline.rewards.fluency:load",
        scores=False,
    ),
    "cycle": Kind(
        "cyclic judge (fewer faults, then the ending)",
        "pipeline.rewards.grammar:CycleJudge",
        scores=False,
        reads="reviews",
    ),
}
GUARDED = "fluent_lexicon"
"""The kind that judges with what the stage `judge` has made."""
TRAINED = tuple(name for name, kind in KINDS.items() if kind.trained)
SCORING = tuple(name for name, kind in KINDS.items() if kind.scores and not kind.trained)
"""Kinds that score without being trained here, and can be trained on."""
JUDGING = tuple(name for name, kind in KINDS.items() if not kind.trained)
OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""A class of the user's own: ``package.module:Class``."""


def is_own(kind: str) -> bool:
    """Return whether a kind is a class of the user's own."""
    return ":" in kind
