"""Requests that come within a few milliseconds are answered together, by one thread that owns the networks."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.resources.out_of_memory import MemoryFull, is_out_of_memory
from studies.serving.decoding import decode_rows
from studies.serving.limits import Limits
from studies.serving.measuring import Answer, Measurer, NotFinite
from studies.serving.metrics import Metrics
from studies.serving.networks import LOOK_SECONDS, Holder, Networks
from studies.serving.refusal import Refusal, failure
from studies.serving.rows import Delta, Job, Row
from studies.serving.transcript import cut_at, texts_of

log = logging.getLogger("uvicorn.error")


class Waiting:
    """The queue. First come, first served; requests for the same network go together."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._jobs, self._closed = limits, deque[Job](), False
        self._change = threading.Condition()

    @property
    def completions(self) -> int:
        """How many wait."""
        with self._change:
            return self._count()

    def put(self, job: Job) -> None:
        """Wait for an answer. Raises `Refusal`: 429 where too many do, 503 where the server ends."""
        with self._change:
            if self._closed:
                raise Refusal(503, "the server is shutting down")
            if self._count() + len(job.rows) > self._limits.waiting:
                raise Refusal(429, f"{self._count()} completions wait already, of at most {self._limits.waiting}")
            self._jobs.append(job)
            self._change.notify()

    def drop(self, job: Job) -> None:
        """Wait no longer: its place is free at once."""
        with self._change:
            job.cancelled = True
            if job in self._jobs:
                self._jobs.remove(job)

    def take(self) -> list[Job]:
        """The next batch, after `Limits.collect_seconds` from the arrival of its first request; nothing at the end."""
        with self._change:
            self._change.wait_for(lambda: self._jobs or self._closed)
            while self._jobs and not self._closed:
                left = self._jobs[0].arrived + self._limits.collect_seconds - time.monotonic()
                if left <= 0 or self._count() >= self._limits.completions:
                    break
                self._change.wait(left)
            return self._first()

    def rest(self, seconds: float, needed: Callable[[], bool]) -> None:
        """Take nothing for a while, as long as that is needed and the server does not end."""
        end = time.monotonic() + seconds
        with self._change:
            while not self._closed and needed() and (left := end - time.monotonic()) > 0:
                self._change.wait(min(left, LOOK_SECONDS))

    def close(self) -> None:
        """Take nothing more; what waits is still answered."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def _first(self) -> list[Job]:
        batch, rows = list[Job](), 0
        for job in list(self._jobs):
            same = not batch or job.request.model == batch[0].request.model
            if same and rows + len(job.rows) <= self._limits.completions:
                batch.append(job)
                rows += len(job.rows)
                self._jobs.remove(job)
        return batch

    def _count(self) -> int:
        return sum(len(job.rows) for job in self._jobs)


class Worker:
    """The thread that answers."""

    def __init__(
        self,
        waiting: Waiting,
        holder: Holder,
        tokenizer: Any,
        measurer: Measurer | None,
        metrics: Metrics,
        share: float,
    ) -> None:
        """`share` as in `Limits`."""
        self._waiting, self._holder, self._tokenizer = waiting, holder, tokenizer
        self._measurer, self._metrics, self._share = measurer, metrics, share
        self.thread = threading.Thread(target=self._run, name="answer", daemon=True)

    def _run(self) -> None:
        while (batch := self._waiting.take()) or not self._waiting.closed:
            if batch:
                self.answer_and_rest(batch)

    def answer_and_rest(self, jobs: Sequence[Job]) -> None:
        """Answer a batch; beside training, compute no more than the server's share of the time."""
        began = time.thread_time()  # what others computed meanwhile is no reason to rest longer
        self.answer(jobs)
        worked = time.thread_time() - began
        self._waiting.rest(worked * (1 / self._share - 1), lambda: self._holder.beside_training)

    def answer(self, jobs: Sequence[Job]) -> None:
        """Answer a batch with the networks of this moment. A fault ends its requests and not the server."""
        networks = self._holder.now
        try:
            _Batch(jobs, networks, self._tokenizer, self._measurer, self._metrics).answer()
        except (MemoryFull, RuntimeError) as error:
            if not isinstance(error, MemoryFull) and not is_out_of_memory(error):
                return self._failed(jobs)
            rows = sum(len(job.rows) for job in jobs)
            self._refuse(jobs, Refusal(503, f"out of memory with {rows} completions at once"))
        except NotFinite:
            self._refuse(jobs, Refusal(503, f"the logits of {networks.revision} are not finite: the policy is broken"))
        except Exception:
            self._failed(jobs)

    def _refuse(self, jobs: Sequence[Job], refusal: Refusal) -> None:
        for job in jobs:
            job.refuse(refusal)

    def _failed(self, jobs: Sequence[Job]) -> None:
        log.exception("a batch failed")
        self._refuse(jobs, failure())


class _Batch:
    """Requests that are answered together, by the same networks from the first token to the last score."""

    def __init__(
        self, jobs: Sequence[Job], networks: Networks, tokenizer: Any, measurer: Measurer | None, metrics: Metrics
    ) -> None:
        self.jobs, self.networks, self.tokenizer = jobs, networks, tokenizer
        self.measurer, self.metrics = measurer, metrics
        self.rows: list[tuple[Job, Row]] = [(job, row) for job in jobs for row in job.rows]
        self.eos, self.pad = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)

    def answer(self) -> None:
        model = self.jobs[0].request.model
        self.metrics.add("batches_total")
        self.metrics.add("batch_completions_total", len(self.rows))
        for job in self.jobs:
            job.revision = self.networks.revision
        rows = [row for _, row in self.rows]
        decode_rows(
            self.networks.named(model),
            [row.query for row in rows],
            [row.noise for row in rows],
            [job.request.temperature for job, _ in self.rows],
            self.pad,
            self._step,
        )
        for job in self.jobs:
            if job.request.measure and not job.cancelled:
                assert self.measurer is not None
                answers = [Answer(row.prompt, row.query, row.tokens, self._by_eos(row)) for row in job.rows]
                job.measured = self.measurer.measure(self.networks, answers)
                self._done(job)

    def _step(self, live: list[int], tokens: list[int], logits: Tensor) -> list[bool]:
        here = [self.rows[number] for number in live]
        if not bool(logits.amax(1).isfinite().all()):  # a token that can never come has -inf; the likeliest cannot
            raise NotFinite
        self.metrics.add("tokens_total", len(here), model=self.jobs[0].request.model or "policy")
        for (_, row), token in zip(here, tokens, strict=True):
            row.tokens.append(token)
        self._note_logprobs(here, tokens, logits)
        self._note_texts(here)
        for job, row in here:
            self._note_end(job, row)
        for job, row in here:
            if job.request.stream:
                text, new = row.fresh(job.request.stop)
                if text or new or row.finish:
                    job.emit(Delta(self._choice(job, row, text, new)))
        for job in {id(job): job for job, _ in here}.values():
            if job.ended and not job.request.measure:
                self._done(job)
        return [row.finish is None for _, row in here]

    def _note_logprobs(self, here: Sequence[tuple[Job, Row]], tokens: Sequence[int], logits: Tensor) -> None:
        asked = [place for place, (job, _) in enumerate(here) if job.request.logprobs is not None]
        if not asked:
            return
        said = torch.log_softmax(logits[asked].float(), dim=-1)
        most = max(here[place][0].request.logprobs or 0 for place in asked)
        best = said.topk(most, dim=-1) if most else None
        for i, place in enumerate(asked):
            job, row = here[place]
            row.logprobs.append(float(said[i, tokens[place]]))
            found = [] if best is None else zip(best.indices[i].tolist(), best.values[i].tolist(), strict=True)
            row.tops.append(list(found)[: job.request.logprobs])

    def _note_texts(self, here: Sequence[tuple[Job, Row]]) -> None:
        read = [row for job, row in here if job.watched]
        if read:
            for row, text in zip(read, self._texts(read), strict=True):
                row.texts.append(text)

    def _note_end(self, job: Job, row: Row) -> None:
        if job.request.stop and (cut := cut_at(row.texts[-1], job.request.stop)) is not None:
            row.cut, row.finish = cut, "stop"
        elif row.tokens[-1] == self.eos:
            row.finish = "stop"
        elif len(row.tokens) >= len(row.noise):
            row.finish = "length"
        elif job.cancelled:
            row.finish = "cancelled"

    def _done(self, job: Job) -> None:
        if job.answered or job.cancelled:
            return
        if not job.watched:
            for row, text in zip(job.rows, self._texts(job.rows), strict=True):
                row.texts = [text]
        if not job.request.stream:
            job.choices = [self._choice(job, row, *row.fresh(job.request.stop)) for row in job.rows]
        job.answered = True
        job.emit(job)

    def _choice(self, job: Job, row: Row, text: str, tokens: range) -> dict[str, Any]:
        logprobs = None if job.request.logprobs is None else row.explained(tokens, self._token_text)
        return {"index": row.index, "text": text, "logprobs": logprobs, "finish_reason": row.finish}

    def _texts(self, rows: Sequence[Row]) -> list[str]:
        return texts_of(self.tokenizer, [row.query for row in rows], [row.tokens for row in rows], self.pad)

    def _token_text(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))

    def _by_eos(self, row: Row) -> bool:
        return row.tokens[-1] == self.eos
