from __future__ import annotations

from typing import Any

import pytest
import tinytrial
import torch
from tinynets import network
from torch import Tensor
from transformers import CompileConfig

from pipeline.models.adapters import choose_trained, quantize
from pipeline.models.heads import fp32_logits
from pipeline.models.loading import prepared
from pipeline.models.meter import meter
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes
from pipeline.models.precision import Precision
from pipeline.models.sampling import EagerSampler, StaticSampler, choose_sampler, inverse_cdf
from pipeline.models.seeding import uniforms
from pipeline.models.trunk import ARCHITECTURES, trunk

CPU = torch.device("cpu")
VOCAB, PAD, EOS, ROWS, STEPS = 23, 0, 1, 24, 20
NETWORKS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gpt2": {},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"sliding_window": 5},
}
"""Rotary and absolute positions, fewer key-value heads than heads, a window narrower than the episodes."""


@pytest.fixture(scope="module", params=NETWORKS)
def small(request: pytest.FixtureRequest) -> Any:
    model = prepared(network(request.param, vocab_size=VOCAB, **NETWORKS[request.param]))
    for parameter in model.parameters():  # the fresh network is near uniform; make it opinionated
        parameter.data.mul_(2.0)
    return model


def prompts() -> tuple[Tensor, Tensor]:
    """Left-padded, of 1 to 6 tokens, some of which stand together and are equal, with junk for padding."""
    lengths = torch.arange(ROWS) // 3 % 6 + 1
    queries = torch.randint(2, VOCAB, (ROWS, 6), generator=torch.Generator().manual_seed(5))
    pairs = torch.arange(ROWS) // 2 * 2
    return queries[pairs], (torch.arange(6) >= (6 - lengths)[:, None])[pairs]


@torch.no_grad()
def alone(model: Any, query: list[int], noise: list[float], temperature: float) -> list[int]:
    """One row, by the whole network on the whole text for every token."""
    response: list[int] = []
    for number in noise:
        logits = model(torch.tensor([query + response]), use_cache=False).logits[0, -1].double() / temperature
        cumulative = torch.softmax(logits, dim=-1).cumsum(0)
        response.append(int((cumulative <= number * cumulative[-1]).sum()))
        if response[-1] == EOS:
            break
    return response


@pytest.mark.parametrize(("temperature", "pad"), [(1.0, PAD), (0.7, EOS)])
def test_a_response_is_that_of_its_row_alone(small: Any, temperature: float, pad: int) -> None:
    """Whatever stands on padding, EOS too (as in GPT-2); equal prompts that stand together are read once."""
    noise, (queries, mask), read = uniforms(ROWS, STEPS, "alone"), prompts(), list[int]()
    handle = trunk(small).register_forward_hook(
        lambda module, inputs, kwargs, output: read.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    episodes = EagerSampler(small, temperature, Room("rows", ROWS), EOS, pad).sample(queries, mask, noise)
    handle.remove()
    assert read[:2] == [ROWS // 2, ROWS]
    rows = zip(queries, mask, noise.tolist(), strict=True)
    found = [row[:n] for row, n in zip(episodes.responses.tolist(), episodes.lengths.tolist(), strict=True)]
    assert found == [alone(small, query[kept].tolist(), own, temperature) for query, kept, own in rows]
    assert bool((episodes.responses[~episodes.response_mask] == pad).all())
    fewer = EagerSampler(small, temperature, Room("rows", 5), EOS, pad).sample(queries, mask, noise)
    assert torch.equal(episodes.query_responses, fewer.query_responses)
    lengths = set(episodes.lengths.tolist())
    assert len(lengths) > 4  # rows end at many moments, so rows were dropped between others that went on
    assert STEPS in lengths


@pytest.mark.parametrize("vocab", [1, 700, 32_000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_draw_is_the_inverse_of_the_cumulative_distribution(vocab: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(64, vocab, generator=generator) * 4
    noise = torch.rand(64, generator=generator, dtype=torch.float64)
    cumulative = torch.softmax(logits.double() / temperature, dim=-1).cumsum(-1)
    wanted = (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(-1)
    assert torch.equal(inverse_cdf(logits, noise, temperature), wanted)


def test_the_tail_of_a_large_vocabulary_is_drawn() -> None:
    """Half the mass on one token, most of the rest on 150,000, and 1e-10 on each of the last 1,000."""
    p = torch.full((151_001,), 0.5 / 150_000, dtype=torch.float64)
    p[0], p[-1000:] = 0.5, 1e-10
    logits = p.log().float().unsqueeze(0)
    noise = 1 - (torch.arange(1000, dtype=torch.float64) + 0.5) * 1e-10 / p.sum()
    drawn = [inverse_cdf(logits.expand(len(part), -1), part) for part in noise.split(50)]
    assert torch.cat(drawn).tolist() == list(range(151_000, 150_000, -1))


@pytest.mark.parametrize("vocab", [700, 3000])
def test_the_ends_of_the_noise_are_inside_the_vocabulary(vocab: int) -> None:
    """And never on a token of mass 0."""
    logits = torch.randn(64, vocab, generator=torch.Generator().manual_seed(0))
    logits[:, :5] = logits[:, -300:] = -torch.inf
    ends = torch.tensor([[0.0], [1 - 2**-53]], dtype=torch.float64).expand(2, 64)
    assert inverse_cdf(logits, ends[0]).tolist() == [5] * 64
    assert inverse_cdf(logits, ends[1]).tolist() == [vocab - 301] * 64


def test_eos_in_the_prompt_ends_no_response() -> None:
    """Templates of chat models put it there; some prompts here are nothing else."""
    queries = torch.tensor([[EOS, 5, 6], [EOS, EOS, EOS], [PAD, EOS, 7], [9, 8, EOS]]).repeat(4, 1)
    sampler = EagerSampler(tinytrial.model(), 1.0, Room("rows", 16), EOS, PAD)
    episodes = sampler.sample(queries, queries != PAD, uniforms(16, 20, "prompt"))
    rows = episodes.responses.tolist()
    assert episodes.lengths.tolist() == [row.index(EOS) + 1 if EOS in row else 20 for row in rows]
    assert episodes.ended.tolist() == [EOS in row for row in rows]
    assert len(set(episodes.ended.tolist())) == 2  # both kinds were seen


def opinionated(architecture: str, **changes: Any) -> Any:
    """A network whose responses are of many lengths."""
    model = fp32_logits(network(architecture, **{"vocab_size": VOCAB, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model


def both(
    model: Any, temperature: float = 1.0, precision: str = "fp32", rows: int = ROWS, pad: int = PAD
) -> tuple[EagerSampler, StaticSampler]:
    eager = EagerSampler(model, temperature, Room("rows", rows), EOS, pad)
    static = choose_sampler("static", eager, Precision(CPU, precision), pytest.fail)
    assert isinstance(static, StaticSampler)
    return eager, static


def same(one: Episodes, other: Episodes) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


@pytest.mark.parametrize(
    ("architecture", "temperature", "changes"),
    [
        *((name, 1.0, {}) for name in sorted(ARCHITECTURES)),
        ("qwen2", 0.7, {}),
        ("mistral", 1.0, {"sliding_window": 8}),
        ("gpt2", 0.7, {"eos_token_id": None}),
    ],
)
def test_texts_are_those_of_the_eager_sampler(architecture: str, temperature: float, changes: dict[str, Any]) -> None:
    model, noise = opinionated(architecture, **changes), uniforms(ROWS, STEPS, "static")
    eager, static = both(model, temperature)
    found, wanted = static.sample(*prompts(), noise), eager.sample(*prompts(), noise)
    assert same(found, wanted)
    assert len(set(wanted.lengths.tolist())) > 4
    assert same(static.greedy(*prompts(), STEPS), eager.greedy(*prompts(), STEPS))
    eager, static = both(model, temperature, rows=7, pad=EOS)
    assert same(static.sample(*prompts(), noise), eager.sample(*prompts(), noise))


@pytest.fixture(scope="module")
def model() -> Any:
    return opinionated("qwen2")


def test_defaults_of_a_network_for_generation_change_nothing(model: Any) -> None:
    """A folder may come with a penalty of repetition, other ends, or a way of sampling."""
    eager, static = both(model)
    noise, plain = uniforms(ROWS, STEPS, "static"), model.generation_config
    own = type(plain)(repetition_penalty=3.0, eos_token_id=[1, 2, 3, 4], top_k=2, do_sample=True, suppress_tokens=[5])
    model.generation_config = own
    try:
        assert same(static.sample(*prompts(), noise), eager.sample(*prompts(), noise))
        assert model.generation_config is own
    finally:
        model.generation_config = plain


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])  # whose maps are transposed
@pytest.mark.parametrize("base", ["whole", "lora", "4 bits"])
def test_in_half_precision_it_is_the_policy_under_autocast_and_leaves_it_as_it_was(
    architecture: str, base: str
) -> None:
    model, precision = opinionated(architecture), Precision(CPU, "bf16")
    if base == "4 bits":
        quantize(model, "4bit", "adapter.quantize")
    if base != "whole":
        choose_trained(model, tinytrial.LORA)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(1))
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in model.named_parameters()}
    eager, static = both(model, precision="bf16")
    noise = uniforms(ROWS, 8, "half")
    found = static.sample(*prompts(), noise)
    with precision.autocast():
        wanted = eager.sample(*prompts(), noise)
    assert (found.query_responses == wanted.query_responses).all(1).float().mean() > 0.7
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is one and torch.equal(one, value) for name, (one, value) in before.items())


def test_a_compiled_step_draws_and_counts_what_an_uncompiled_one_does(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile without a backend's kernels, as on a card but for these; one compilation serves all rollouts."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(CompileConfig, "_compile_all_devices", True)
    own, spent = opinionated("qwen2"), [0.0, 0.0]

    def tally(flops: float, bytes_: float) -> None:
        spent[:] = spent[0] + flops, spent[1] + bytes_

    meter([own], tally)
    _, static = both(own, precision="bf16")
    compiled = StaticSampler(**{**vars(static), "compilation": CompileConfig(backend="eager", mode="default")})
    torch._dynamo.reset()
    counters.clear()
    graphs = []
    for number in range(3):
        noise = uniforms(ROWS, STEPS, "compiled", number)
        spent[:] = 0.0, 0.0
        wanted, counted = static.sample(*prompts(), noise), tuple(spent)
        spent[:] = 0.0, 0.0
        found = compiled.sample(*prompts(), noise)
        assert same(found, wanted)
        assert tuple(spent) == counted
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs == graphs[:1] * 3


def test_who_samples() -> None:
    """The eager sampler on a CPU, and for a network that transformers does not declare to be compilable."""
    warnings: list[str] = []
    eager = EagerSampler(opinionated("qwen2"), 1.0, Room("rows", ROWS), EOS, PAD)
    card = Precision(torch.device("cuda"), "fp16")
    assert choose_sampler("auto", eager, Precision(CPU, "fp32"), warnings.append) is eager
    assert choose_sampler("eager", eager, card, warnings.append) is eager
    compiled = choose_sampler("auto", eager, card, warnings.append)
    assert isinstance(compiled, StaticSampler)
    assert compiled.compilation.mode == "default"
    assert not warnings
    eager.lm._can_compile_fullgraph = False
    assert choose_sampler("auto", eager, card, warnings.append) is eager
    assert len(warnings) == 1
    assert "Qwen2ForCausalLM" in warnings[0]
