from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import Recorder, smoke

from pipeline.config.loading import load_config
from pipeline.models.out_of_memory import CARD_TOKENS, CHUNK_TOKENS, chunk_tokens
from pipeline.models.process import settle
from pipeline.resources.ledger import Ledger, t4_seconds
from pipeline.resources.machine import ALLOCATOR_SETTINGS, GIB, fresh_marks, peak_gib
from pipeline.run.layout import Layout
from pipeline.trial import prepare, run_trial
from studies.definition.schema import single
from studies.execution.agenda import Agenda
from studies.execution.hand import Hand
from studies.execution.started import Started


def hand() -> None:
    study, layout = single("smoke", {}, 0), Layout(Path("out"))
    run = Started(study, "smoke", {}, layout, layout.study("single", "smoke"))
    Hand(run, Agenda(run), 1, lambda text, style: None)


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
        assert f"reached caps.{key} = {value:g}" in said["words"]
        assert said["key"] == key


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the mark can be reset on Linux only")
def test_the_high_water_mark_remembers_what_is_gone_and_starts_afresh_for_the_next_trial() -> None:
    fresh_marks()
    before = peak_gib()
    block = torch.ones(GIB // 4 // 4)
    del block
    assert peak_gib() == pytest.approx(before + 0.25, abs=0.03)
    fresh_marks()
    assert peak_gib() == pytest.approx(before, abs=0.03)


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


@pytest.mark.parametrize("own", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None])
@pytest.mark.parametrize("starts", [lambda: settle(smoke().runtime), hand])
def test_every_process_that_may_use_a_card_grows_segments_unless_the_user_sets_them(
    starts: Callable[[], object], own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ALLOCATOR_SETTINGS:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    if own:
        monkeypatch.setenv(own, "max_split_size_mb:64")
    starts()
    found = {name: os.environ[name] for name in ALLOCATOR_SETTINGS if name in os.environ}
    assert found == ({own: "max_split_size_mb:64"} if own else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
