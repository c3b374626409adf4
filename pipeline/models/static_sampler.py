"""Sampling with a copy of the policy, a static cache and, on a card, decode steps that are captured once and replayed.

A bucket is a number of rows and a number of columns of the cache; each has a graph of its own. Rows that have ended go
on until the next look, every few tokens, and leave the batch where those that remain fit into half as many rows. So the
host waits for the card once in `buckets.LOOK` tokens, and starts one graph a token instead of some thousand kernels. On
a CPU the same buckets are run without capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.models import buckets
from pipeline.models.anatomy import CausalLM, trunk
from pipeline.models.meter import meter
from pipeline.models.policy import Episodes, positions, response_mask
from pipeline.models.precision import DTYPES, Precision
from pipeline.models.sampler import Drawn
from pipeline.models.sampling import distinct, drawn
from pipeline.models.static_cache import Slots
from pipeline.models.working_copy import WorkingCopy
from pipeline.resources.out_of_memory import Room, is_out_of_memory

TINY = torch.finfo(torch.float32).tiny
SHARE = 0.85
"""Of the memory that a process may take: what is held between rollouts, and the peak without it, stay below it."""

Tally = Callable[[float, float], None]
Bucket = tuple[int, int, float]
"""Rows, columns, temperature."""


@dataclass
class _Recorded:
    """One decode step of a bucket."""

    graph: torch.cuda.CUDAGraph
    flops: float
    bytes_: float


class StaticSampler:
    """Samples with a copy of `lm`. Same noise, same text as the eager sampler's, up to rounding."""

    def __init__(
        self,
        lm: CausalLM,
        temperature: float,
        room: Room,
        eos_id: int,
        pad_id: int,
        precision: Precision,
        tally: Tally,
        warn: Callable[[str], None],
    ) -> None:
        """`tally` takes the work of every call, FLOPs and bytes; `warn` a line where capture fails."""
        self.lm, self.temperature, self.room, self.eos_id, self.pad_id = lm, temperature, room, eos_id, pad_id
        self.precision, self._tally, self._warn = precision, tally, warn
        self.captures = precision.device.type == "cuda"
        self._copy: WorkingCopy | None = None
        self._slots: Slots | None = None
        self._graphs: dict[Bucket, _Recorded] = {}
        self._pool: Any = None
        self._counted: list[tuple[float, float]] | None = None
        self._rests, self._keeps, self._may_keep = 0, False, precision.device.type == "cuda"

    def sample(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Episodes:
        return self.draw(queries, query_mask, noise).episodes

    def draw(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Drawn:
        return self._draw(queries, query_mask, noise, self.temperature)

    def greedy(self, queries: Tensor, query_mask: Tensor, longest: int) -> Episodes:
        return self._draw(queries, query_mask, torch.zeros(len(queries), longest), 0.0).episodes

    def refresh(self) -> None:
        """Bring the copy up to date, in place; where there is none, the next call makes it."""
        if self._copy is not None:
            self._copy.refresh()

    def rest(self) -> None:
        """Free copy, cache and graphs between two rollouts, unless a card has room for them beside the training: then
        the graphs serve for the whole trial."""
        self._rests += 1
        self._keeps = self._keeps or (self._may_keep and self._rests > 1 and self._has_room())
        if not self._keeps:
            self.release()

    def give_way(self) -> bool:
        held, self._keeps, self._may_keep = self.nbytes > 0, False, False
        self.release()
        return held

    def release(self) -> None:
        """Free everything but the policy."""
        self._forget()
        self._copy = self._slots = None
        if self.precision.device.type == "cuda":
            torch.cuda.empty_cache()

    def _forget(self) -> None:
        """Drop all graphs: what they read and write is about to go."""
        for recorded in self._graphs.values():
            recorded.graph.reset()
        self._graphs.clear()
        self._pool = None  # an empty pool must not be used again

    @property
    def nbytes(self) -> int:
        """Memory of copy and cache."""
        return sum(one.nbytes for one in (self._copy, self._slots) if one is not None)

    def _has_room(self) -> bool:
        """Whether what is held now fits beside the most that was ever allocated, of which the training is part from the
        second rollout on."""
        device = torch.cuda.current_device()
        share = SHARE * torch.cuda.get_per_process_memory_fraction(device)
        allowed = share * torch.cuda.get_device_properties(device).total_memory
        # All graphs share the memory of one step: logits, their softmax and what is drawn from it.
        step = 12 * self._slots.rows * int(self.lm.config.vocab_size) if self._slots else 0
        return torch.cuda.max_memory_reserved(device) + self.nbytes + step < allowed

    def _draw(self, queries: Tensor, query_mask: Tensor, noise: Tensor, temperature: float) -> Drawn:
        parts = self.room.over(
            len(queries), lambda rows: self._some(queries[rows], query_mask[rows], noise[rows], temperature)
        )
        responses, logprobs, lengths = (torch.cat(column) for column in zip(*parts, strict=True))
        mask = response_mask(lengths, noise.shape[1])
        last = responses.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)
        episodes = Episodes(torch.cat([queries, responses], dim=1), query_mask, mask, last == self.eos_id)
        return Drawn(episodes, torch.where(mask, logprobs, 0.0))

    def _some(
        self, queries: Tensor, query_mask: Tensor, noise: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Responses (B, T), log-probabilities (B, T) and lengths (B,) of rows that are in memory together."""
        try:
            if self._copy is None:
                self._copy = WorkingCopy(self.lm, DTYPES[self.precision.name])
                self._copy.refresh()
                meter([self._copy.network], self._count, ready=True)
            with torch.inference_mode(), self._autocast():
                return self._decoded(queries, query_mask, noise, temperature)
        except RuntimeError as error:
            # Fewer rows would find no more room beside what these have left.
            self.release()
            raise _root(error) from None

    def _autocast(self) -> AbstractContextManager[Any]:
        # Without its cache, whose tensors a graph must not remember: the copy's weights need no cast.
        name = self.precision.name
        return torch.autocast(self.precision.device.type, dtype=DTYPES[name], enabled=name != "no", cache_enabled=False)

    def _decoded(
        self, queries: Tensor, query_mask: Tensor, noise: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, width = noise.shape
        context, size = queries.shape[1], rows
        sizes, spans = buckets.row_buckets(rows), buckets.column_buckets(context + width)
        hidden, slots = self._read(queries, query_mask, noise, spans[-1])
        self._choose(hidden, rows, temperature)
        for t in range(1, width):
            if t % buckets.LOOK == 0:
                left = int(slots.open[:size].sum())
                if not left:
                    break
                fewer = min(bucket for bucket in sizes if bucket >= left)
                if fewer < size:
                    slots.compact(size, fewer, context + t - 1)
                    size = fewer
            columns = min(span for span in spans if span >= context + t)
            self._advance((size, columns, temperature))
        found = (slots.responses[:rows, :width], slots.logprobs[:rows, :width], slots.lengths[:rows])
        return found[0].clone(), found[1].clone(), found[2].clone()

    def _read(self, queries: Tensor, query_mask: Tensor, noise: Tensor, columns: int) -> tuple[Tensor, Slots]:
        """Read the prompts, equal ones that stand together once, and hand them to the slots; the states (B, H) that the
        first tokens are drawn from."""
        from transformers import DynamicCache

        assert self._copy is not None
        network, (once, copies) = self._copy.network, distinct(queries, query_mask)
        cache: Any = DynamicCache(config=network.config)
        mask = query_mask[once].long()
        places = positions(mask)
        output = trunk(network)(
            input_ids=queries[once], attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
        )
        read = [(layer.keys, layer.values) for layer in cache.layers]
        slots = self._slots_for(len(noise), noise.shape[1], columns, read)
        slots.begin(read, copies, query_mask, places[:, -1:][copies], noise.to(queries.device), self.pad_id)
        return output.last_hidden_state[:, -1][copies], slots

    def _slots_for(self, rows: int, steps: int, columns: int, read: list[tuple[Tensor, Tensor]]) -> Slots:
        old = self._slots
        if old is None or not old.holds(rows, steps, columns):
            if old is not None:
                self._forget()
                rows, steps, columns = max(rows, old.rows), max(steps, old.steps), max(columns, old.columns)
            self._slots = old = None
            self._slots = Slots(rows, steps, columns, read, DTYPES[self.precision.name])
        assert self._slots is not None
        return self._slots

    def _advance(self, bucket: Bucket) -> None:
        """Draw the next token of every row of a bucket."""
        if not self.captures:
            self._step(bucket)
        elif recorded := self._graphs.get(bucket):
            recorded.graph.replay()
            self._tally(recorded.flops, recorded.bytes_)
        else:
            # The first token of a bucket is drawn without a graph, which warms up the libraries.
            with _side_stream():
                self._step(bucket)
            self._capture(bucket)

    def _capture(self, bucket: Bucket) -> None:
        """Record a step of a bucket, without taking it."""
        if len(self._graphs) >= buckets.GRAPHS:
            self._graphs.pop(next(iter(self._graphs))).graph.reset()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph, self._counted = torch.cuda.CUDAGraph(), []
        try:
            with _captured(graph, self._pool):
                self._step(bucket)
        except RuntimeError as error:
            if is_out_of_memory(_root(error)):
                raise
            self.captures = False
            said = str(error).strip().splitlines()[0]
            self._warn(f"sampling goes on without CUDA graphs: a decode step could not be captured ({said})")
        else:
            self._graphs[bucket] = _Recorded(graph, *(sum(column) for column in zip(*self._counted, strict=True)))
        finally:
            self._counted = None

    def _count(self, flops: float, bytes_: float) -> None:
        """Of a call of the copy; during a capture nothing is computed."""
        if self._counted is None:
            self._tally(flops, bytes_)
        else:
            self._counted.append((flops, bytes_))

    def _step(self, bucket: Bucket) -> None:
        """One token for every row of a bucket. Reads and writes the slots alone, and asks no tensor for its value."""
        rows, columns, temperature = bucket
        slots = self._slots
        assert slots is not None
        assert self._copy is not None
        slots.seen.index_fill_(1, slots.column, True)
        body = trunk(self._copy.network)
        output = body(
            input_ids=slots.tokens[:rows],
            attention_mask=slots.seen[:rows, None, None, :columns],  # of four dimensions: passed on as it is
            position_ids=slots.place[:rows],
            past_key_values=slots.bucket(rows, columns),
            use_cache=True,
        )
        slots.column.add_(1)
        self._choose(output.last_hidden_state[:, -1], rows, temperature)

    def _choose(self, hidden: Tensor, rows: int, temperature: float) -> None:
        """Draw a token from each state (rows, H), and note it for the rows that have not ended."""
        slots = self._slots
        assert slots is not None
        assert self._copy is not None
        logits = self._copy.network.get_output_embeddings()(hidden)
        live, open_, t = slots.live[:rows], slots.open[:rows], slots.step
        if temperature:
            chosen, p = drawn(logits, slots.noise[live, t], temperature)
            # Rounding can leave a product of two probabilities at 0.
            slots.logprobs[live, t] = p.clamp(min=TINY).log()
        else:
            chosen = logits.argmax(1)
        slots.responses[live, t] = torch.where(open_, chosen, self.pad_id)
        slots.lengths[live] += open_
        open_.logical_and_(chosen != self.eos_id)
        slots.tokens[:rows] = chosen.unsqueeze(1)
        slots.place[:rows] += 1
        t.add_(1)


@contextmanager
def _side_stream() -> Iterator[None]:
    """Work on another stream, which begins behind the present one, and which that one then waits for."""
    here, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        yield
    here.wait_stream(beside)


@contextmanager
def _captured(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """What is begun within is recorded in the graph, and not done. Other threads may use the card meanwhile."""
    # The outer context puts the stream back where the end of a capture fails.
    with torch.cuda.stream(torch.cuda.current_stream()):
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                yield
        except BaseException:
            _close(pool)
            raise


def _close(pool: Any) -> None:
    """Give back the pool of a capture that has failed."""
    device = torch.cuda.current_device()
    # torch leaves it open where the end of the capture fails, and then refuses to empty its cache for good. Where that
    # end succeeded it is closed, and belongs to the graph.
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


def _root(error: RuntimeError) -> RuntimeError:
    """The lack of memory behind an error, if it is one: the end of a failed capture raises an error of its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RuntimeError) and is_out_of_memory(cause):
            return cause
        cause = cause.__context__
    return error
