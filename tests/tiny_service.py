"""A server around random networks of a few hundred weights; no process and no files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from pipeline.config.networks import ModelConfig
from pipeline.models.loading import CausalLM, freeze, scratch_model
from pipeline.models.tokenizers import train_tokenizer
from pipeline.rewards.base import Calibrated, Completions, Proxy
from studies.serving import batching
from studies.serving.batching import Completion, Server
from studies.serving.weights import Revision, ServedTrial

SIZES = ModelConfig(hidden_size=16, layers=2, heads=2, intermediate_size=32)
POSITIONS = 96
TEXTS = ["The acting was good, and the film moves. It charms."] * 4
CPU = torch.device("cpu")
NAME = "study/arm/0"


@lru_cache
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, 300)


def network(seed: int) -> CausalLM:
    """Random, and sharp enough that its text is not all alike."""
    lm = scratch_model(SIZES, len(tokenizer()), 0, 1, POSITIONS, seed)
    with torch.no_grad():
        lm.get_input_embeddings().weight.mul_(20)
    return freeze(lm)


class States(ServedTrial):
    """A trial whose newest weights are those of `step`, and whose reference is network 0."""

    def __init__(self) -> None:
        self.name, self.device, self.config, self.made = NAME, CPU, SimpleNamespace(gold=None), {"reward": None}  # type: ignore[assignment, dict-item]
        self.step, self.training, self.fault, self.loads, self.tokenizer = 1, False, None, 0, Path()

    def newest(self) -> Any:
        return f"at {self.step}", self._load

    def trains(self) -> bool:
        return self.training

    def reference(self) -> CausalLM:
        return network(0)

    def _load(self) -> tuple[Revision, CausalLM]:
        self.loads += 1
        if self.fault is not None:
            raise self.fault
        return Revision("k" * 8, self.step, "training"), network(self.step)


def by_text(score: Callable[[str], float]) -> Any:
    def call(completions: Completions) -> torch.Tensor:
        return torch.tensor([score(text) for text in completions.texts])

    call.networks = []  # type: ignore[attr-defined]
    return call


@dataclass
class Tiny:
    """The server; its proxy is (length - 1) / 2, its judge counts vowels."""

    share: float = 0.2
    source: States = field(default_factory=States)

    def __post_init__(self) -> None:
        proxy = Proxy({"length": Calibrated(by_text(len), 1.0, 2.0)}, {"length": 1.0})
        gold = by_text(lambda text: sum(letter in "aeiou" for letter in text))
        made = {"reward_of": proxy, "judge_of": gold, "load_tokenizer": tokenizer()}
        with patch.multiple(batching, **{name: lambda *given, one=one: one for name, one in made.items()}):
            self.server = Server(self.source, self.share)

    def asked(self, prompt: str | list[str] = "The acting", **body: Any) -> Completion:
        prompts = [prompt] if isinstance(prompt, str) else prompt
        return Completion.model_validate({"prompt": prompts, "model": NAME, "max_tokens": 12, "seed": 5, **body})

    def answer(self, prompt: str | list[str] = "The acting", **body: Any) -> list[dict[str, Any]]:
        choices: list[dict[str, Any]] = self.server.answers([self.asked(prompt, **body)])[0]["choices"]
        return choices

    def texts(self, prompt: str | list[str] = "The acting", **body: Any) -> list[str]:
        return [choice["text"] for choice in self.answer(prompt, **body)]
