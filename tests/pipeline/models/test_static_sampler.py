"""The static sampler against the eager one, token for token, through every bucket that a call can go through."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from syncs import waiting
from tinynets import network
from tinytrial import LORA, learned
from torch import Tensor

from pipeline.models import buckets, sampling, static_sampler
from pipeline.models.adapters import choose_trained
from pipeline.models.anatomy import trunk
from pipeline.models.buckets import LOOK, row_buckets
from pipeline.models.fp32_heads import fp32_logits
from pipeline.models.meter import meter
from pipeline.models.packing import ARCHITECTURES
from pipeline.models.policy import Episodes, gather, log_probs, response_hidden
from pipeline.models.precision import Precision
from pipeline.models.quantization import quantize
from pipeline.models.sampler import EagerSampler
from pipeline.models.sampler_choice import choose_sampler, obstacle, rotations
from pipeline.models.seeding import uniforms
from pipeline.models.static_sampler import StaticSampler
from pipeline.models.working_copy import WorkingCopy
from pipeline.resources.out_of_memory import MemoryFull, Room

VOCAB, PAD, EOS, ROWS, STEPS = 20, 0, 1, 24, 45
IDS = {"eos_id": EOS, "pad_id": PAD}
CPU = torch.device("cpu")


def opinionated(architecture: str, **changes: Any) -> Any:
    """A network whose responses are of many lengths."""
    model = fp32_logits(network(architecture, **{"vocab_size": VOCAB, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model


def prompts() -> tuple[Tensor, Tensor]:
    """Left-padded, of 1 to 6 tokens, some of which stand together and are equal, with junk for padding."""
    lengths = torch.arange(ROWS) // 3 % 6 + 1
    queries = torch.randint(2, VOCAB, (ROWS, 6), generator=torch.Generator().manual_seed(5))
    pairs = torch.arange(ROWS) // 2 * 2
    return queries[pairs], (torch.arange(6) >= (6 - lengths)[:, None])[pairs]


def eager(model: Any, temperature: float = 1.0, rows: int = ROWS) -> EagerSampler:
    return EagerSampler(model, temperature, Room("rows", rows), **IDS)


def static(
    model: Any, temperature: float = 1.0, rows: int = ROWS, precision: str = "no", warnings: list[str] | None = None
) -> StaticSampler:
    one = StaticSampler(
        model,
        temperature,
        Room("rows", rows),
        precision=Precision(CPU, precision),
        tally=lambda flops, bytes_: None,
        warn=(warnings if warnings is not None else []).append,
        **IDS,
    )
    one.refresh()
    return one


def same(one: Episodes, other: Episodes) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


@contextmanager
def sizes_of(sampler: StaticSampler) -> Iterator[list[tuple[int, int]]]:
    """Rows and columns of every step."""
    seen: list[tuple[int, int]] = []
    step = sampler._step
    sampler._step = lambda bucket: (seen.append(bucket[:2]), step(bucket))[1]  # type: ignore[method-assign]
    yield seen
    del sampler._step


@pytest.mark.parametrize(
    ("architecture", "temperature"),
    [*((name, 1.0) for name in sorted(ARCHITECTURES)), ("qwen2", 0.7), ("gpt2", 0.7)],
)
def test_texts_are_those_of_the_eager_sampler(architecture: str, temperature: float) -> None:
    model, noise = opinionated(architecture), uniforms(ROWS, STEPS, "static")
    assert obstacle(model, 6 + STEPS) is None
    sampler = static(model, temperature)
    with sizes_of(sampler) as sizes:
        found = sampler.draw(*prompts(), noise)
    wanted = eager(model, temperature).sample(*prompts(), noise)
    assert same(found.episodes, wanted)
    assert len(set(wanted.lengths.tolist())) > 4
    if (architecture, temperature) != ("gpt2", 0.7):  # of which more than half of the rows go on to the last token
        assert len({rows for rows, _ in sizes}) > 1  # rows were left out between others that went on
    assert {columns for _, columns in sizes} >= {16, 32, 48}
    assert found.logprobs is not None
    with torch.no_grad():
        log_pi = log_probs(model, response_hidden(model, wanted), temperature)
    torch.testing.assert_close(found.logprobs[wanted.response_mask], gather(log_pi, wanted.labels), atol=2e-4, rtol=0)
    assert bool((found.logprobs[~wanted.response_mask] == 0).all())


@pytest.fixture(scope="module")
def model() -> Any:
    return opinionated("qwen2")


def test_a_batch_shrinks_as_its_rows_end_and_never_by_a_row_that_goes_on(model: Any) -> None:
    sampler, noise = static(model), uniforms(ROWS, STEPS, "static")
    with sizes_of(sampler) as sizes:
        lengths = sampler.sample(*prompts(), noise).lengths
    for t, (rows, columns) in enumerate(sizes, start=1):
        look = t // LOOK * LOOK
        left = int((lengths > look).sum()) if look else ROWS
        assert rows == min(size for size in row_buckets(ROWS) if size >= left)
        assert columns >= 6 + t
    assert len(sizes) == min(-(-(int(lengths.max())) // LOOK) * LOOK, STEPS) - 1


def test_one_row_one_token_and_rows_in_parts(model: Any) -> None:
    (queries, mask), noise = prompts(), uniforms(ROWS, STEPS, "static")
    whole = eager(model).sample(queries, mask, noise)
    assert same(static(model, rows=7).sample(queries, mask, noise), whole)
    one = static(model).sample(queries[7:8], mask[7:8], noise[7:8])
    assert torch.equal(one.query_responses[0], whole.query_responses[7])
    first = static(model).sample(queries, mask, noise[:, :1])
    assert torch.equal(first.responses[:, 0], whole.responses[:, 0])


def test_rows_that_all_end_at_once_end_the_work_at_the_next_look(model: Any) -> None:
    queries, mask, noise = (one[:1].expand(8, -1) for one in (*prompts(), uniforms(1, STEPS, "ends")))
    wanted = eager(model, 2.0).sample(queries, mask, noise)
    assert int(wanted.lengths[0]) < STEPS - LOOK
    sampler = static(model, 2.0)
    with sizes_of(sampler) as sizes:
        assert same(sampler.sample(queries, mask, noise), wanted)
    assert len(sizes) + 1 == -(-int(wanted.lengths[0]) // LOOK) * LOOK


def test_greedy_is_greedy(model: Any) -> None:
    assert same(static(model).greedy(*prompts(), STEPS), eager(model).greedy(*prompts(), STEPS))


def test_equal_prompts_that_stand_together_are_read_once(model: Any) -> None:
    sampler = static(model)
    sampler.sample(*prompts(), uniforms(ROWS, 3, "read"))
    assert sampler._copy is not None
    read: list[int] = []
    handle = trunk(sampler._copy.network).register_forward_hook(
        lambda module, inputs, kwargs, output: read.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    sampler.sample(*prompts(), uniforms(ROWS, 3, "read"))
    handle.remove()
    assert read == [ROWS // 2, ROWS, ROWS]


def test_calls_of_other_sizes_leave_nothing_behind(model: Any) -> None:
    """A call that is smaller than the one before, one that is larger, and one after a network that went wrong."""
    (queries, mask), noise = prompts(), uniforms(ROWS, STEPS, "sizes")
    sampler = static(model)
    for rows, steps, first in ((12, 20, 0), (5, 45, 2), (24, 30, 0), (24, 45, 3), (3, 9, 1)):
        part = queries[:rows, first:], mask[:rows, first:] | (torch.arange(6)[first:] == 5), noise[:rows, :steps]
        assert same(sampler.sample(*part), eager(model).sample(*part))
        assert sampler._slots is not None
        with torch.inference_mode():
            for one in (one for layer in sampler._slots.layers for one in layer):
                one.fill_(torch.nan)


# --- the copy ----------------------------------------------------------------------------------------------


def test_a_refresh_brings_the_copy_up_to_date_in_place() -> None:
    model, noise = opinionated("gpt2"), uniforms(ROWS, STEPS, "fresh")
    sampler = static(model)
    before = sampler.sample(*prompts(), noise)
    assert sampler._copy is not None
    places = [weight.data_ptr() for weight in sampler._copy.network.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    wanted = eager(model).sample(*prompts(), noise)
    assert not same(before, wanted)
    assert not same(sampler.sample(*prompts(), noise), wanted)  # the maps are still the old ones
    sampler.refresh()
    assert same(sampler.sample(*prompts(), noise), wanted)
    assert [weight.data_ptr() for weight in sampler._copy.network.parameters()] == places


def test_only_linear_maps_are_copied_and_shared_weights_once() -> None:
    for tied in (True, False):
        model = opinionated("llama", tie_word_embeddings=tied)
        own = WorkingCopy(model, torch.bfloat16)
        maps = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        assert own.nbytes == 2 * sum(module.weight.numel() for module in maps)
        assert own.network.get_input_embeddings().weight is model.get_input_embeddings().weight
        assert own.network.get_output_embeddings().weight.dtype == torch.bfloat16
        assert own.network.model.norm.weight is model.model.norm.weight
    shared = opinionated("llama")
    shared.model.layers[1].mlp.up_proj.weight = shared.model.layers[0].mlp.up_proj.weight
    once = WorkingCopy(shared, torch.bfloat16)
    weights = [once.network.model.layers[layer].mlp.up_proj.weight for layer in (0, 1, 2)]
    assert weights[0] is weights[1] is not weights[2]


def test_the_policy_is_left_as_it_was() -> None:
    """Its hooks are not called by the copy, and its gradients are where they were."""
    model, calls = opinionated("qwen2"), list[float]()
    meter([model], lambda flops, bytes_: calls.append(flops))
    names = {name: (id(parameter), parameter.requires_grad) for name, parameter in model.named_parameters()}
    static(model).sample(*prompts(), uniforms(ROWS, 3, "hooks"))
    assert not calls
    assert {name: (id(one), one.requires_grad) for name, one in model.named_parameters()} == names


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])  # whose maps are transposed
def test_an_adapter_is_merged_and_follows_its_training(architecture: str) -> None:
    model, noise = learned(opinionated(architecture)), uniforms(ROWS, STEPS, "adapter")
    sampler = static(model)
    wanted = eager(model).sample(*prompts(), noise)
    assert same(sampler.sample(*prompts(), noise), wanted)
    assert not same(eager(opinionated(architecture)).sample(*prompts(), noise), wanted)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.neg_()
    sampler.refresh()
    assert same(sampler.sample(*prompts(), noise), eager(model).sample(*prompts(), noise))
    assert sampler._copy is not None
    assert not any("lora" in name for name, _ in sampler._copy.network.named_parameters())


def test_an_adapter_is_merged_in_fp32_also_where_autocast_is_on() -> None:
    own = WorkingCopy(learned(opinionated("qwen2")), torch.float32)
    own.refresh()
    wanted = [weight.clone() for weight in own.network.parameters()]
    with Precision(CPU, "bf16").autocast():
        own.refresh()
    assert all(torch.equal(one, other) for one, other in zip(own.network.parameters(), wanted, strict=True))


def test_an_adapter_on_4_bits_is_merged_with_what_the_codes_stand_for() -> None:
    pytest.importorskip("bitsandbytes")
    base = quantize(opinionated("qwen2"), "4bit", "adapter.quantize")
    model, noise = choose_trained(base, LORA), uniforms(ROWS, STEPS, "few bits")
    assert same(static(model).sample(*prompts(), noise), eager(model).sample(*prompts(), noise))


def test_what_a_head_keeps_in_half_precision_is_not_copied() -> None:
    model = opinionated("qwen2", tie_word_embeddings=False)
    with Precision(CPU, "bf16").autocast():
        model(torch.tensor([[3]]))
    assert model.lm_head._copy is not None
    assert WorkingCopy(model, torch.bfloat16).network.lm_head._copy is None


def test_the_logits_of_a_head_with_a_bias_are_those_of_autocast() -> None:
    model, states = opinionated("phi"), torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.linspace(-9.3, 7.1, VOCAB))
    own = WorkingCopy(model, torch.bfloat16)
    own.refresh()
    with torch.no_grad(), Precision(CPU, "bf16").autocast():
        assert torch.equal(own.network.lm_head(states), model.lm_head(states))
    assert own.network.lm_head.weight.dtype == torch.bfloat16


def test_in_half_precision_it_computes_what_autocast_computes(model: Any) -> None:
    """So the mismatch with the training forward is that of kernels of other shapes, not that of rounded residuals."""
    sampler, noise = static(model, precision="bf16"), uniforms(ROWS, STEPS, "half")
    found = sampler.draw(*prompts(), noise)
    precision = Precision(CPU, "bf16")
    with precision.autocast():
        wanted = eager(model).sample(*prompts(), noise)
    alike = (found.episodes.query_responses == wanted.query_responses).all(1)
    assert float(alike.float().mean()) > 0.8
    assert found.logprobs is not None
    with torch.no_grad(), precision.autocast():
        log_pi = log_probs(model, response_hidden(model, found.episodes), 1.0)
    gap = found.logprobs[found.episodes.response_mask] - gather(log_pi, found.episodes.labels)
    assert 0 < float(gap.abs().mean()) < precision.tolerance
    assert sampler._slots is not None
    assert {one.dtype for layer in sampler._slots.layers for one in layer} == {torch.bfloat16}


# --- steps that can be captured ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "vocab"), [*((name, VOCAB) for name in sorted(ARCHITECTURES)), ("qwen2", 3000), ("gpt2", 3000)]
)
def test_a_step_asks_no_tensor_for_its_value(architecture: str, vocab: int) -> None:
    sampler = static(opinionated(architecture, vocab_size=vocab))
    sampler.sample(*prompts(), uniforms(ROWS, 4, "graph"))
    assert sampler._slots is not None
    for temperature in (1.0, 0.7, 0.0):
        with torch.inference_mode(), waiting() as found:
            sampler._slots.step.zero_()
            sampler._step((ROWS, 16, temperature))
        assert found == []


class Graph:
    """In place of a CUDA graph: takes the step again when it is replayed."""

    def __init__(self) -> None:
        self.bucket: Any = None
        self.resets = 0

    def replay(self) -> None:
        self.sampler._tally, tally = lambda flops, bytes_: None, self.sampler._tally
        self.sampler._step(self.bucket)
        self.sampler._tally = tally

    def reset(self) -> None:
        self.resets += 1

    sampler: Any = None


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """torch.cuda as far as a capture needs it: what runs in it leaves the slots as they were."""
    state: dict[str, Any] = {"captured": 0, "error": None}

    @contextmanager
    def capture(graph: Graph, pool: Any) -> Iterator[None]:
        slots = graph.sampler._slots
        kept = {name: one.clone() for name, one in vars(slots).items() if isinstance(one, Tensor)}
        caches = [(one, one.clone()) for layer in slots.layers for one in layer]
        state["captured"] += 1
        if state["error"] is not None:
            raise state["error"]
        yield
        for name, one in kept.items():
            getattr(slots, name).copy_(one)
        for one, before in caches:
            one.copy_(before)

    monkeypatch.setattr(static_sampler, "_captured", capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(static_sampler, "_side_stream", nullcontext)
    return state


def captured(model: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> StaticSampler:
    sampler = static(model, **settings)
    sampler.captures = True
    monkeypatch.setattr(Graph, "sampler", sampler)
    capture = sampler._capture

    def with_bucket(bucket: Any) -> None:
        capture(bucket)
        if bucket in sampler._graphs:
            sampler._graphs[bucket].graph.bucket = bucket  # type: ignore[attr-defined]

    sampler._capture = with_bucket  # type: ignore[method-assign]
    return sampler


def test_captured_steps_are_replayed_and_their_work_is_counted(
    model: Any, cards: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, plain, replayed = uniforms(ROWS, STEPS, "captured"), list[float](), list[float]()
    wanted, sampler = static(model), captured(model, monkeypatch)
    wanted._tally = lambda flops, bytes_: plain.append(flops)
    sampler._tally = lambda flops, bytes_: replayed.append(flops)
    with sizes_of(wanted) as sizes:
        first = wanted.sample(*prompts(), noise)
    assert same(sampler.sample(*prompts(), noise), first)
    assert cards["captured"] == len(sampler._graphs) == len(set(sizes))
    assert sum(replayed) == pytest.approx(sum(plain))
    assert same(sampler.sample(*prompts(), noise), first)
    assert cards["captured"] == len(set(sizes))  # once, and for good
    assert sum(replayed) == pytest.approx(2 * sum(plain))
    sampler.greedy(*prompts(), STEPS)
    assert cards["captured"] > len(set(sizes))  # greedy steps are others


def test_the_number_of_graphs_is_bounded(model: Any, cards: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "GRAPHS", 3)
    sampler, noise = captured(model, monkeypatch), uniforms(ROWS, STEPS, "bounded")
    assert same(sampler.sample(*prompts(), noise), eager(model).sample(*prompts(), noise))
    assert len(sampler._graphs) == 3 < cards["captured"]


def test_graphs_of_a_cache_that_makes_way_for_a_larger_one_are_dropped(
    model: Any, cards: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would write where the old one was."""
    (queries, mask), noise = prompts(), uniforms(ROWS, STEPS, "larger")
    sampler = captured(model, monkeypatch)
    sampler.sample(queries[:8], mask[:8], noise[:8, :20])
    old: list[Any] = [one.graph for one in sampler._graphs.values()]
    pool, sampler._pool = sampler._pool, "the old one"
    assert old
    sampler.sample(queries[:4], mask[:4], noise[:4])  # longer, and so in a cache of its own
    assert [graph.resets for graph in old] == [1] * len(old)
    assert not {id(graph) for graph in old} & {id(one.graph) for one in sampler._graphs.values()}
    assert sampler._pool == pool
    assert sampler._slots is not None
    assert sampler._slots.holds(8, STEPS, 64)


def test_where_capture_fails_the_steps_are_run_as_they_are(
    model: Any, cards: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    cards["error"] = RuntimeError("operation not permitted when stream is capturing\nmore")
    sampler, noise = captured(model, monkeypatch, warnings=warnings), uniforms(ROWS, STEPS, "fails")
    assert same(sampler.sample(*prompts(), noise), eager(model).sample(*prompts(), noise))
    assert cards["captured"] == 1
    assert len(warnings) == 1
    assert "not permitted when stream is capturing)" in warnings[0]


@pytest.mark.parametrize(("fails", "open_"), [("nowhere", False), ("step", False), ("end", True)])
def test_a_capture_that_fails_leaves_no_pool_open(monkeypatch: pytest.MonkeyPatch, fails: str, open_: bool) -> None:
    """As torch does it: the end of a capture closes the pool only where the capture is whole."""
    pool, underway, released = (0, 7), set[Any](), list[Any]()

    @contextmanager
    def graph(one: Any, pool: Any, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        underway.add(pool)
        try:
            yield
        finally:
            if fails == "end":
                raise RuntimeError("operation failed due to a previous error during capture")
            underway.remove(pool)

    def end(device: int, pool: Any) -> None:
        if pool not in underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        underway.remove(pool)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, one: released.append(one), raising=False)
    expected = nullcontext() if fails == "nowhere" else pytest.raises(RuntimeError, match="captur")
    with expected, static_sampler._captured(Graph(), pool):  # type: ignore[arg-type]
        if fails != "nowhere":
            raise RuntimeError("operation not permitted when stream is capturing")
    assert not underway
    assert released == [pool] * open_


@pytest.mark.parametrize("where", ["step", "capture", "end of a capture"])
def test_when_memory_runs_out_everything_is_freed_and_half_the_rows_are_sampled(
    model: Any, cards: dict[str, Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    noise, held = uniforms(ROWS, STEPS, "memory"), list[tuple[int, bool]]()
    sampler = captured(model, monkeypatch)
    sampler.room = Room("rows", ROWS, lambda said: held.append((sampler.nbytes, sampler._pool is None)))
    step, capture = sampler._step, sampler._capture

    def full(call: Any) -> Any:
        def maybe(bucket: Any) -> None:
            if bucket[0] > ROWS // 2:
                try:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
                except torch.OutOfMemoryError:
                    if where == "end of a capture":
                        raise RuntimeError("capture was invalidated")  # noqa: B904, as it is raised
                    raise
            call(bucket)

        return maybe

    if where == "step":
        sampler._step = full(step)  # type: ignore[method-assign]
    else:
        sampler._capture = full(capture)  # type: ignore[method-assign]
    assert same(sampler.sample(*prompts(), noise), eager(model).sample(*prompts(), noise))
    assert sampler.room.rows == ROWS // 2
    assert held == [(0, True)]


def test_a_row_that_does_not_fit_is_an_error(model: Any) -> None:
    sampler = static(model, rows=2)

    def full(bucket: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    sampler._step = full  # type: ignore[method-assign]
    with pytest.raises(MemoryFull, match="single row"):
        sampler.sample(*prompts(), uniforms(ROWS, 4, "memory"))
    assert sampler.nbytes == 0


def test_between_rollouts_memory_is_kept_only_where_there_is_room_and_given_back_when_it_is_needed(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, noise = static(model), uniforms(ROWS, 4, "rest")
    sampler._may_keep = True
    # What training takes is known from the second rollout on.
    for room, kept in ((True, False), (False, False), (True, True), (False, True)):
        sampler.refresh()
        sampler.sample(*prompts(), noise)
        monkeypatch.setattr(sampler, "_has_room", lambda room=room: room)
        sampler.rest()
        assert (sampler.nbytes > 0) == kept
    tried: list[int] = []

    def training(rows: int) -> int:
        tried.append(rows)
        if len(tried) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return sampler.nbytes

    assert Room("runtime.micro_batch_size", 8, spare=sampler.give_way).fit(training) == 0
    assert tried == [8, 8, 4]  # first the sampler gives way, then there are fewer rows
    sampler.sample(*prompts(), noise)
    monkeypatch.setattr(sampler, "_has_room", lambda: True)
    sampler.rest()
    assert sampler.nbytes == 0


def test_there_is_room_where_what_is_held_fits_beside_the_peak_within_the_share_that_is_allowed(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.85 of half a card; held: copy, cache, and 12 bytes for each logit of a step."""
    sampler = static(model)
    sampler.sample(*prompts(), uniforms(ROWS, 4, "room"))
    needs = sampler.nbytes + 12 * ROWS * VOCAB
    for allowed, fits in ((10_000 + needs + 100, True), (10_000 + needs - 100, False)):
        card = SimpleNamespace(total_memory=allowed / 0.5 / static_sampler.SHARE)
        for name, value in {
            "current_device": lambda: 0,
            "get_per_process_memory_fraction": lambda device: 0.5,
            "get_device_properties": lambda device, card=card: card,
            "max_memory_reserved": lambda device: 10_000,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        assert sampler._has_room() == fits


# --- which sampler -----------------------------------------------------------------------------------------


def chosen(choice: Any, model: Any, warnings: list[str], longest: int = 40) -> type:
    kinds = {"precision": Precision(CPU, "no"), "tally": lambda flops, bytes_: None, "warn": warnings.append}
    return type(choose_sampler(choice, model, longest, temperature=1.0, room=Room("rows", 4), **kinds, **IDS))


def test_a_cpu_samples_eagerly_unless_it_is_asked_not_to(model: Any) -> None:
    warnings: list[str] = []
    assert chosen("auto", model, warnings) is EagerSampler
    assert chosen("eager", model, warnings) is EagerSampler
    assert chosen("static", model, warnings) is StaticSampler
    assert not warnings


@pytest.mark.parametrize(
    ("architecture", "changes", "said"),
    [
        ("bloom", {"attention": "eager"}, "BloomForCausalLM passes a mask"),
        ("qwen2", {"attention": "eager"}, "attention 'eager' is not sdpa"),
        ("mistral", {"sliding_window": 39}, "sees 39 tokens, and rows have up to 40"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "(dynamic)"),
    ],
)
def test_a_network_that_cannot_be_captured_is_sampled_eagerly_and_the_reason_is_shown(
    architecture: str, changes: dict[str, Any], said: str
) -> None:
    warnings: list[str] = []
    assert chosen("static", network(architecture, **changes), warnings) is EagerSampler
    assert len(warnings) == 1
    assert said in warnings[0]


def test_a_window_that_is_wide_enough_is_none() -> None:
    model = opinionated("mistral", sliding_window=6 + STEPS)
    assert obstacle(model, 6 + STEPS) is None
    noise = uniforms(ROWS, STEPS, "window")
    assert same(static(model).sample(*prompts(), noise), eager(model).sample(*prompts(), noise))


def test_rotations_are_found_wherever_a_configuration_names_them() -> None:
    said = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "longrope"}}
    assert rotations(SimpleNamespace(rope_parameters=said)) == {"default", "longrope"}
    assert rotations(SimpleNamespace(rope_parameters=None, rope_scaling={"rope_type": "yarn"})) == {"yarn"}
    assert rotations(SimpleNamespace()) == set()


def test_documentation_runs() -> None:
    for module, least in ((buckets, 2), (sampling, 2)):
        result = doctest.testmod(module)
        assert result.attempted >= least
        assert result.failed == 0
