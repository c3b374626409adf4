"""A service around two random networks of a few hundred weights, no process and no thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from pipeline.config.model import ModelConfig
from pipeline.data.tokenizer import train_tokenizer
from pipeline.models.loading import CausalLM, freeze, scratch_model
from pipeline.resources.out_of_memory import Room
from pipeline.rewards.base import Calibrated, Completions
from pipeline.rewards.composite import Proxy
from studies.serving.app import Service
from studies.serving.asking import read_request
from studies.serving.decoding import noise_of
from studies.serving.limits import Limits
from studies.serving.measuring import Measurer
from studies.serving.refusal import Refusal
from studies.serving.revision import Revision
from studies.serving.rows import Delta, Job, Row
from studies.serving.server import UNMEASURED, assemble
from studies.serving.sources import Found

SIZES = ModelConfig(hidden_size=16, layers=2, heads=2, intermediate_size=32)
POSITIONS = 96
TEXTS = ["The acting was good, and the film moves. It charms."] * 4
CPU = torch.device("cpu")


@lru_cache
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, 300)


def network(seed: int) -> CausalLM:
    """Random, and sharp enough that its text is not all alike."""
    lm = scratch_model(SIZES, len(tokenizer()), 0, 1, POSITIONS, seed)
    with torch.no_grad():
        lm.get_input_embeddings().weight.mul_(20)
    return freeze(lm)


@dataclass
class States:
    """A source whose newest weights are those of `step`."""

    step: int = 1
    name: str = "study/arm/0"
    tokenizer: Path = Path()
    device: torch.device = CPU
    fault: Exception | None = None
    loads: int = 0
    training: bool = False

    def newest(self) -> Found:
        return Found(f"at {self.step}", self._load)

    def trains(self) -> bool:
        return self.training

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
    """The service, and what it was heard to say."""

    source: States = field(default_factory=States)
    limits: Limits = field(default_factory=Limits)
    with_reference: bool = True
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        length, vowels = by_text(lambda text: len(text)), by_text(lambda text: sum(c in "aeiou" for c in text))
        room, proxy = Room("rows", 64), Proxy({"length": Calibrated(length, 1.0, 2.0)}, {"length": 1.0})
        measurer = Measurer(tokenizer(), CPU, proxy, vowels, room) if self.with_reference else None
        reference = network(0) if self.with_reference else None
        self.service: Service = assemble(
            self.source, (tokenizer(), tokenizer()), self.said.append, reference, measurer, self.limits,
            hosts=frozenset({"testserver", "127.0.0.1"}),
        )  # fmt: skip

    def job(self, emit: Callable[[Any], None] = lambda event: None, **body: Any) -> Job:
        """A request as the app makes it, without a queue."""
        import json

        content = {"prompt": "The acting", "max_tokens": 12, "seed": 5, **body}
        unmeasured = None if self.with_reference else UNMEASURED
        asked = read_request(json.dumps(content).encode(), self.limits, self.service.models, unmeasured)
        asked = asked.model_copy(update={"model": None if asked.model == self.service.name else asked.model})
        rows = [
            Row(i, prompt, tokenizer()(prompt)["input_ids"], noise_of(asked.seed or 0, i, asked.max_tokens))
            for i, prompt in enumerate(prompt for prompt in asked.prompt for _ in range(asked.n))
        ]
        return Job(asked, rows, asked.seed or 0, emit)

    def answers(self, *jobs: Job) -> list[list[dict[str, Any]]]:
        """What each job of one batch is answered."""
        self.service.worker.answer(jobs)
        return [job.choices for job in jobs]

    def answer(self, **body: Any) -> list[dict[str, Any]]:
        return self.answers(self.job(**body))[0]

    def texts(self, **body: Any) -> list[str]:
        return [choice["text"] for choice in self.answer(**body)]

    def streamed(self, **body: Any) -> list[list[dict[str, Any]]]:
        """The chunks of a streamed answer, by completion."""
        heard: list[Any] = []
        job = self.job(heard.append, stream=True, **body)
        self.service.worker.answer([job])
        assert heard[-1] is job
        chunks: list[list[dict[str, Any]]] = [[] for _ in job.rows]
        for event in heard[:-1]:
            assert isinstance(event, Delta), event
            chunks[event.choice["index"]].append(event.choice)
        return chunks


def together(chunks: list[dict[str, Any]]) -> Mapping[str, Any]:
    """Chunks of one completion as the choice that they make."""
    logprobs = None
    if chunks[0]["logprobs"] is not None:
        names = [name for name, value in chunks[0]["logprobs"].items() if value is not None]
        logprobs = {name: [one for chunk in chunks for one in chunk["logprobs"][name] or []] for name in names}
    return {
        "index": chunks[0]["index"],
        "text": "".join(chunk["text"] for chunk in chunks),
        "logprobs": logprobs,
        "finish_reason": chunks[-1]["finish_reason"],
    }


__all__ = ["CPU", "POSITIONS", "Refusal", "States", "Tiny", "network", "together", "tokenizer"]
