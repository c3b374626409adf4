"""The verifier of `chains`: 1 for a right answer, else 0; as a training reward it can err, be lenient, or reward sound
steps as well. With its defaults it is the gold judge."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipeline.data.chains import read, task
from pipeline.rewards.base import Completions, Reward, TextScore
from pipeline.rewards.kinds import VerifierSettings
from pipeline.training.judging import FORKS


class Verifier(TextScore):
    """Points of a completion: 1 where its answer is accepted, and `sound_steps` times the share of its steps that are
    sound."""

    def __init__(self, settings: VerifierSettings) -> None:
        self.settings = settings

    def score(self, prompt: str, text: str) -> float:
        found, own = read(prompt, text), self.settings
        right = found.right if own.extract == "strict" else found.found
        wrong_rate = own.false_negative if right else own.false_positive
        accepted = right != (wrong_rate > 0 and _uniform(prompt, text) < wrong_rate)
        return accepted + own.sound_steps * found.sound_steps / max(found.steps, 1)

    def earned(self, prompt: str, text: str) -> list[tuple[int, float]]:
        """At the end of each sound step its part of a full working. What later steps make of the share is settled at
        the end: no payment depends on what follows it."""
        words, steps = list(re.finditer(r"\S+", text)), elements_of(prompt) - 1
        return [(words[end].end(), self.settings.sound_steps / steps) for end in read(prompt, text).step_ends]


def load(section: str, settings: VerifierSettings, *_: Any) -> Verifier:
    """Make the verifier of a section."""
    return Verifier(settings)


def _uniform(prompt: str, text: str) -> float:
    """A number in [0, 1) that depends on the two texts alone: an answer that is judged twice is judged alike."""
    digest = hashlib.sha256("\0".join((prompt, *text.split())).encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def elements_of(prompt: str) -> int:
    """Return the number of elements of a prompt; 0 of one that was not understood."""
    asked = task(prompt)
    return len(asked.chain) if asked else 0


def marks_of(judge: Reward, completions: Completions, width: int) -> Mapping[str, Tensor]:
    """What the judge finds in completions beside their points: right, worked (it has a step) and sound, (B,)
    float32 of 0 and 1; and forks (B, `width`), True at tokens where several were sound. Empty for other judges."""
    if not isinstance(judge, Verifier):
        return {}
    found = [read(*row) for row in zip(completions.prompts, completions.texts, strict=True)]
    forks = torch.zeros(len(found), width, dtype=torch.bool)
    for row, one in enumerate(found):
        forks[row, : len(one.forks)] = torch.tensor(one.forks[:width], dtype=torch.bool)
    return {
        "right": torch.tensor([float(one.right) for one in found]),
        "worked": torch.tensor([float(one.steps > 0) for one in found]),
        "sound": torch.tensor([float(one.sound) for one in found]),
        FORKS: forks,
    }
