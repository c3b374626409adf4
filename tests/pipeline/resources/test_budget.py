from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import Recorder, smoke

from pipeline.config.loading import load_config
from pipeline.forecast.policy_shape import measured, shape_of
from pipeline.forecast.subject import ForecastSubject
from pipeline.forecast.work import estimate
from pipeline.resources.chunking import CARD_TOKENS, CHUNK_TOKENS, chunk_tokens
from pipeline.resources.ledger import Ledger
from pipeline.resources.machine import ALLOCATOR_SETTINGS, GIB, fresh_marks, grow_segments, peak_gib
from pipeline.resources.roofline import t4_seconds
from pipeline.run.layout import Layout
from pipeline.stages.common import settle
from pipeline.trial import prepare, run_trial
from studies.definition.schema import single
from studies.execution.agenda import Agenda
from studies.execution.hand import Hand
from studies.execution.started import Started


def hand() -> None:
    study, layout = single("smoke", {}, 0), Layout(Path("out"))
    run = Started(study, "smoke", {}, layout, layout.study("single", "smoke"))
    Hand(run, Agenda(run), 1, lambda text, style: None)


def trial(profile: str = "t4", **changes: object) -> ForecastSubject:
    config = load_config(profile, {key.replace("__", "."): value for key, value in changes.items()})
    shape = shape_of(config)
    assert shape is not None
    return ForecastSubject(config, shape, "cuda" if config.runtime.device == "cuda" else "cpu")


def test_the_roofline_takes_the_slower_side() -> None:
    assert t4_seconds("train", 65e12 * 0.35, 0.0) == pytest.approx(1.0)
    assert t4_seconds("train", 0.0, 320e9 * 0.35) == pytest.approx(1.0)
    assert t4_seconds("generate", 65e12, 640e9) == pytest.approx(4.0)


def test_a_card_takes_more_tokens_through_a_large_head_at_once() -> None:
    assert chunk_tokens(150_000) == CHUNK_TOKENS
    assert chunk_tokens(150_000, on_card=True) == CARD_TOKENS
    assert chunk_tokens(700) == chunk_tokens(700, on_card=True) > CARD_TOKENS


def test_a_ledger_adds_up_by_phase_and_goes_on_after_a_resume() -> None:
    ledger = Ledger()
    with ledger.timed("train"):
        ledger.work(2e12, 0.0)
        with ledger.timed("checkpoint"):
            ledger.work(1e12, 0.0)  # no phase of a roofline
    ledger.work(1e12, 0.0)
    ledger.generated_tokens = 3000
    resumed = Ledger()
    resumed.load(ledger.state())
    with resumed.timed("train"):
        resumed.work(1e12, 5.0)
    cost = resumed.cost()
    assert (cost["tflop"], cost["train_tflop"], cost["generated_tokens"]) == (3.0, 3.0, 3000.0)
    assert cost["t4_s"] == pytest.approx(3e12 / 65e12 / 0.35)
    assert set(cost) >= {"wall_s", "train_s", "checkpoint_s", "peak_memory_gib"}


def test_the_wall_clock_runs_between_phases_and_not_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    ledger = Ledger()
    clock[0] = 5.0
    state = ledger.state()
    clock[0] = 20.0
    resumed = Ledger()
    resumed.load(state)
    clock[0] = 21.0
    assert resumed.wall_s == 6.0


def test_every_cap_ends_a_trial_and_says_so() -> None:
    caps = load_config("tiny").caps
    ledger = Ledger()
    ledger.generated_tokens = 3000
    assert ledger.exceeded(caps) is None
    for key, value in (("generated_tokens", 3000), ("wall_clock_h", 1e-9), ("memory_gib", 0.01)):
        said = ledger.exceeded(caps.model_copy(update={key: value}))
        assert said is not None
        assert f"reached caps.{key} = {value:g}" in str(said)
        assert said.key == key


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the mark can be reset on Linux only")
def test_the_high_water_mark_remembers_what_is_gone_and_starts_afresh_for_the_next_trial() -> None:
    fresh_marks()
    before = peak_gib()
    block = torch.ones(GIB // 4 // 4)
    del block
    assert peak_gib() == pytest.approx(before + 0.25, abs=0.03)
    fresh_marks()
    assert peak_gib() == pytest.approx(before, abs=0.03)


def test_a_trial_on_the_cpu_touches_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*args: object, **kwargs: object) -> None:
        raise AssertionError("this would open a CUDA context")

    for name in (
        "current_device",
        "get_device_properties",
        "max_memory_allocated",
        "reset_peak_memory_stats",
        "set_device",
        "empty_cache",
    ):
        monkeypatch.setattr(torch.cuda, name, touched)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    prepare(load_config("tiny", {"runtime.device": "cpu"}))
    fresh_marks()
    ledger = Ledger()
    ledger.mark()
    assert ledger.peak_gib == pytest.approx(peak_gib(), abs=0.1)


def test_a_whole_trial_on_the_cpu_opens_no_context_of_a_card(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*args: object, **kwargs: object) -> None:
        raise AssertionError("this would open a CUDA context")

    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_stream", touched)  # what optimisers ask for, where there is a card
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    prepare(smoke())
    assert run_trial(smoke(sft__steps=4, train__steps=8, evaluate__prompts=16), layout, Recorder()).status == "complete"


@pytest.mark.parametrize("starts", [lambda: settle(smoke().runtime), hand])
def test_every_process_that_may_use_a_card_is_told_to_grow_segments(
    starts: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ALLOCATOR_SETTINGS:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    starts()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize("own", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None])
def test_the_cuda_allocator_grows_its_segments_unless_the_user_says_otherwise(
    own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ALLOCATOR_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(own, "max_split_size_mb:64")
    grow_segments()
    found = {name: os.environ[name] for name in ALLOCATOR_SETTINGS if name in os.environ}
    assert found == ({own: "max_split_size_mb:64"} if own else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        ('{"model_type": "gpt2"}', 124.4),
        ('{"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, '
         '"ffn_dim": 3072}', 125.2),
        ('{"model_type": "gpt_neox", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, '
         '"intermediate_size": 2048, '
         '"vocab_size": 50304}', 70.4),
    ],
)  # fmt: skip
def test_shapes_of_any_decoder_come_from_its_configuration(config: str, millions: float) -> None:
    shape = measured(config)
    assert shape is not None
    assert shape.parameters / 1e6 == pytest.approx(millions, rel=0.005)
    assert shape.maps == pytest.approx(shape.blocks, rel=0.01)
    assert 0 < shape.kept_half < shape.kept_fp32


def test_what_is_no_decoder_has_no_shape() -> None:
    assert measured('{"model_type": "t5"}') is None
    assert measured('{"model_type": "no such thing"}') is None


def test_a_forward_keeps_what_is_predicted() -> None:
    """A real forward: the bytes that autograd holds for its backward, per position."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    spec = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 160,
    }
    config = Qwen2Config(**spec, vocab_size=50)
    shape = measured(config.to_json_string())
    assert shape is not None
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    network = Qwen2ForCausalLM(config)
    own = {one.untyped_storage()._cdata for one in network.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.model(torch.zeros(8, 32, dtype=torch.long))
    held = sum(one.untyped_storage().nbytes() for key, one in kept.items() if key not in own)
    assert shape.kept_fp32 * 8 * 32 == pytest.approx(held, rel=0.05)


def test_components_follow_the_knobs() -> None:
    full, separate = estimate(trial()), estimate(trial(critic__kind="separate"))
    lora = estimate(trial(adapter__kind="lora"))
    quantized = estimate(trial(adapter__kind="lora", adapter__quantize="4bit"))
    assert full.stages["train"]["optimiser"] == pytest.approx(8 * full.parameters / GIB)
    assert separate.stages["train"]["optimiser"] == pytest.approx(2 * full.stages["train"]["optimiser"], rel=0.01)
    assert "reference" not in lora.stages["train"]
    assert lora.trained < 0.02 * lora.parameters
    assert quantized.stages["train"]["policy"] < 0.5 * lora.stages["train"]["policy"]
    assert separate.t4_hours > full.t4_hours > lora.t4_hours


def test_frozen_networks_are_forecast_as_they_are_held() -> None:
    """Halved weights of linear maps; and off the card the whole of them, but while a rollout is scored."""
    plain, half, away = (
        estimate(trial("t4", **changes))
        for changes in ({}, {"train__frozen_dtype": "fp16"}, {"runtime__offload_reference": True})
    )
    shape = trial("t4").shape
    of_each = 4 * shape.parameters / GIB
    assert {name: plain.stages["train"][name] for name in ("reference", "reward")} == pytest.approx(
        dict.fromkeys(("reference", "reward"), of_each)
    )
    saved = 2 * 2 * shape.maps / GIB
    assert plain.stage_gib("train") - half.stage_gib("train") == pytest.approx(saved)
    assert not {"reference", "reward"} & away.stages["train"].keys()
    assert plain.stage_gib("train") - away.stage_gib("train") == pytest.approx(2 * of_each)
    updates = trial("t4").config.train.updates
    assert away.hours["offload"] * 3600 == pytest.approx(updates * 2 * of_each * GIB / 12e9)
    assert "offload" not in plain.hours.keys() | half.hours.keys()
    other = ("sft", "reward", "evaluate")
    assert [half.stage_gib(stage) for stage in other] == [plain.stage_gib(stage) for stage in other]
    assert [away.stage_gib(stage) for stage in other] == [plain.stage_gib(stage) for stage in other]


def test_the_phase_that_needs_most_has_the_networks_that_it_asks() -> None:
    """An ensemble of eight comes back to score, without the gradients."""
    eight = {"reward__ensemble": 8, "runtime__offload_reference": True}
    parts = estimate(trial("t4", **eight)).stages["train"]
    assert parts["reward"] == pytest.approx(8 * estimate(trial("t4")).stages["train"]["reward"])
    assert not {"reference", "gradients", "logits"} & parts.keys()


def test_an_adapter_has_no_reference_to_take_off_and_a_cpu_no_card() -> None:
    for profile, knobs in (("t4", {"adapter__kind": "lora"}), ("tiny", {})):
        plain = estimate(trial(profile, **knobs))
        config = trial(profile, **knobs).config
        moved = config.model_copy(update={"runtime": config.runtime.model_copy(update={"offload_reference": True})})
        again = estimate(replace(trial(profile, **knobs), config=moved))
        assert again.stages == plain.stages


def test_eight_bits_and_an_adapter_halve_what_a_separate_critic_adds() -> None:
    knobs = {"critic__kind": "separate", "critic__adapter": "lora"}
    shared, separate, lora, eight, four = (
        estimate(trial("t4", **changes))
        for changes in (
            {},
            {"critic__kind": "separate"},
            knobs,
            {**knobs, "critic__quantize": "8bit"},
            {**knobs, "critic__quantize": "4bit"},
        )
    )
    tax = [one.stage_gib("train") - shared.stage_gib("train") for one in (separate, lora, eight, four)]
    assert tax[0] > tax[1] > tax[2] > tax[3] > 0
    assert tax[2] < 0.25 * tax[0]
    assert eight.disk["checkpoints"] < 1.05 * shared.disk["checkpoints"] < separate.disk["checkpoints"]
    assert separate.t4_hours > eight.t4_hours > shared.t4_hours
    assert "adapter library" in estimate(trial("tiny", **knobs)).stages["train"]


def test_the_interpreter_counts_on_a_cpu_alone() -> None:
    assert "interpreter and libraries" in estimate(trial("tiny")).memory_gib
    assert "interpreter and libraries" not in estimate(trial("t4")).memory_gib
