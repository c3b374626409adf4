"""Requests that arrive within a few milliseconds are answered together, by the one thread that owns the networks."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from pipeline.errors import Fault, UserError
from pipeline.models.heads import head_logprobs
from pipeline.models.loading import CausalLM, freeze
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import response_hidden
from pipeline.models.precision import Precision
from pipeline.models.sampling import EagerSampler, tokenize_prompts
from pipeline.models.seeding import uniforms
from pipeline.models.tokenizers import load_tokenizer
from pipeline.rewards.base import Completions
from pipeline.rewards.scorers import judge_of, reward_of
from pipeline.stages.evaluate import drift
from pipeline.wording import in_words
from studies.serving.weights import Folder, ServedTrial

COMPLETIONS, WAITING = 64, 256
"""Completions of a batch, and of all requests that wait for one."""
COLLECT_SECONDS, LOOK_SECONDS = 0.004, 1.0
"""Seconds to wait for further requests of a batch, and between two looks for newer weights while idle."""
SHARE = 0.2
"""Part of the time in which the server may compute while a trial trains: the trial keeps its pace."""
log = logging.getLogger("uvicorn.error")


class Refused(HTTPException):
    """A request without an answer: one sentence, and the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status, message, {"Retry-After": "1"} if status == 429 else None)
        self.param, self.code = param, code


class Completion(BaseModel):
    """The body of ``POST /v1/completions``; null counts as left out."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt: list[str] = Field(min_length=1)
    model: str
    max_tokens: int = Field(16, ge=1, le=1024)
    temperature: float = Field(1.0, ge=0.0, le=2.0, allow_inf_nan=False)
    """Temperature of sampling; 0 takes the likeliest token."""
    n: int = Field(1, ge=1)
    seed: int = Field(default_factory=lambda: secrets.randbits(53), ge=-(2**63), lt=2**63)
    logprobs: int | None = Field(None, ge=0, le=0)
    """0: log-probs of the tokens that were drawn, and of no others."""
    stop: list[str] = Field([], max_length=4)
    stream: bool = False
    measure: bool = False
    """Own field: also log-probs under policy and reference, exact KL, proxy and gold."""
    # Clients send these too. They change nothing, at these values alone where there are bounds.
    user: str = ""
    stream_options: dict[str, Any] = {}
    top_p: float = Field(1.0, ge=1.0, le=1.0)
    presence_penalty: float = Field(0.0, ge=0.0, le=0.0)
    frequency_penalty: float = Field(0.0, ge=0.0, le=0.0)

    @property
    def size(self) -> int:
        return len(self.prompt) * self.n

    @property
    def kind(self) -> tuple[object, ...]:
        return self.model, self.temperature, self.max_tokens


Job = tuple[Completion, asyncio.Future[dict[str, Any]]]


class Server:
    """The networks, and the requests that wait for them: first come, first served."""

    def __init__(self, source: Folder | ServedTrial, share: float = SHARE) -> None:
        self.source, self._share, self.models = source, share, {source.name: "policy"}
        self._mark, self._room = "", Room("completions at once", COMPLETIONS)
        self._jobs, self._arrived = list[Job](), asyncio.Event()
        if isinstance(source, ServedTrial):
            self.models["reference"] = "reference"
            self._reference = source.reference()
            self._proxy = reward_of(source.made["reward"], source.device, self._room)
            self._gold = judge_of(source.config.gold, source.device, self._room, source.made.get("judge"))
        self.tokenizer = load_tokenizer(source.tokenizer)
        self.look()

    def look(self) -> None:
        """Take newer weights where there are any. Those that cannot be loaded are not tried again. Raises `Fault`."""
        self._beside_training, newest = self.source.trains(), self.source.newest()
        if newest is not None and newest[0] != self._mark:
            self._mark = newest[0]
            revision, policy = newest[1]()
            if not all(bool(weight.isfinite().all()) for weight in policy.parameters()):
                raise Fault(f"{revision} is broken: its weights are not finite")
            self.revision, self._policy = revision, freeze(policy)
            self.positions: int | None = getattr(policy.config, "max_position_embeddings", None)
            log.warning(f"answering with {revision} ({revision.state})")

    @property
    def waiting(self) -> int:
        return sum(request.size for request, _ in self._jobs)

    async def answer(self, request: Completion) -> dict[str, Any]:
        """Wait for the answer. Raises `Refused` where too many do."""
        if self.waiting + request.size > WAITING:
            raise Refused(429, f"{self.waiting} completions wait already, of at most {WAITING}")
        self._jobs.append((request, answer := asyncio.Future[dict[str, Any]]()))
        self._arrived.set()
        return await answer

    async def run(self) -> None:
        """Answer batch after batch; between two of them, and while idle, take newer weights."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), LOOK_SECONDS)
                await asyncio.sleep(COLLECT_SECONDS)
            batch = list[Job]()
            for job in self._jobs:
                fits = sum(request.size for request, _ in [*batch, job]) <= COMPLETIONS
                batch += [job] if fits and job[0].kind == self._jobs[0][0].kind else []
            self._jobs = [job for job in self._jobs if job not in batch]
            if not self._jobs:
                self._arrived.clear()
            answers, rest = await asyncio.to_thread(self._work, [request for request, _ in batch])
            for (_, answer), found in zip(batch, answers, strict=True):
                answer.set_exception(found) if isinstance(found, Exception) else answer.set_result(found)
            await asyncio.sleep(rest)

    def _work(self, batch: Sequence[Completion]) -> tuple[Sequence[Any], float]:
        """The answers of a batch, or the fault for each, and for how many seconds to rest."""
        began = time.thread_time()  # what others compute meanwhile is no reason to rest longer
        try:
            self.look()
        except Exception as error:  # whatever is wrong with newer weights, those that answer are sound
            log.warning(f"newer weights cannot be loaded, those of {self.revision} go on: {in_words(error)}")
        try:
            answers: Sequence[Any] = self.answers(batch) if batch else []
        except Exception as error:
            answers = [error] * len(batch)
        return answers, (time.thread_time() - began) * (1 / self._share - 1) if self._beside_training else 0.0

    @torch.inference_mode()
    def answers(self, batch: Sequence[Completion]) -> list[dict[str, Any]]:
        """The answers to requests of one kind, with the weights of this moment."""
        first, device = batch[0], self.source.device
        model = self._reference if first.model == "reference" else self._policy
        prompts = [prompt for request in batch for prompt in request.prompt for _ in range(request.n)]
        queries, mask = (tensor.to(device) for tensor in tokenize_prompts(self.tokenizer, prompts))
        # The noise of a completion depends on seed and index alone, and that of a longer one begins alike.
        noise = [uniforms(1, first.max_tokens, "serve", one.seed, i) for one in batch for i in range(one.size)]
        temperature = first.temperature if first.temperature > 1e-6 else 0.0  # or logits / temperature overflow
        ends = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        with Precision.of(device).autocast():
            episodes = EagerSampler(model, temperature, self._room, *ends).sample(queries, mask, torch.cat(noise))
            drawn = Completions.of(self.tokenizer, episodes, prompts)
            pairs = zip(batch, accumulate(one.size for one in batch), strict=True)
            return [self._answer(one, model, drawn.take(slice(end - one.size, end))) for one, end in pairs]

    def _answer(self, request: Completion, model: CausalLM, drawn: Completions) -> dict[str, Any]:
        choices, episodes = list[dict[str, Any]](), drawn.episodes
        for i, text in enumerate(drawn.texts):
            cut = min((at for stop in request.stop if (at := text.find(stop)) >= 0), default=None)
            finish = "stop" if cut is not None or episodes.ended[i] else "length"
            logprobs = None if request.logprobs is None else self._explained(model, drawn.take(slice(i, i + 1)), cut)
            choices.append({"index": i, "text": text[:cut], "logprobs": logprobs, "finish_reason": finish})
        for choice, measured in zip(choices, self._measured(drawn) if request.measure else (), strict=False):
            choice["measured"] = measured
        read, new = int(episodes.query_mask[:: request.n].sum()), int(episodes.lengths.sum())
        about = {"model": request.model, "system_fingerprint": str(self.revision), "seed": request.seed}
        usage = {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}
        return {**about, "revision": self.revision._asdict(), "choices": choices, "usage": usage}

    def _explained(self, model: CausalLM, one: Completions, cut: int | None) -> dict[str, Any]:
        """OpenAI's ``logprobs`` of one completion: nats, at temperature 1, by the forward of training."""
        hidden, labels = response_hidden(model, one.episodes), one.episodes.labels
        texts = [self.tokenizer.decode([token], skip_special_tokens=True) for token in labels.tolist()]
        starts = list(accumulate(map(len, texts[:-1]), initial=0))
        n = len(texts) if cut is None else sum(start < cut for start in starts)
        logprobs = head_logprobs(model, hidden, labels, 1.0).tolist()
        return {"tokens": texts[:n], "token_logprobs": logprobs[:n], "text_offset": starts[:n], "top_logprobs": None}

    def _measured(self, drawn: Completions) -> list[dict[str, Any]]:
        """Return each completion's log-probs under both networks and exact KL, token by token, proxy and gold."""
        kl, _, nats, ratios = drift(self._policy, self._reference, drawn.episodes, 1.0, self._room)
        proxy, gold = [None] * len(drawn.texts), self._gold(drawn).tolist()
        with suppress(UserError):  # a reward with opponents has its trial's prompts alone
            proxy = self._proxy(drawn).tolist()
        columns = (ratios - nats).tolist(), (-nats).tolist(), kl.tolist(), drawn.episodes.lengths.tolist(), proxy, gold
        return [
            {"policy_logprobs": a[:n], "reference_logprobs": b[:n], "kl": kls[:n], "proxy": score, "gold": judged}
            for a, b, kls, n, score, judged in zip(*columns, strict=True)
        ]
