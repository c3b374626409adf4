from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tinynets
import torch
from helpers import Recorder, smoke, trial_config
from tinytrial import FEW_BITS, LORA_CRITIC, RLOO, preset
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pipeline.config.loading import load_config
from pipeline.forecast.memory import ForecastSubject, measured
from pipeline.forecast.work import update_work
from pipeline.models.adapters import WithoutAdapter, choose_trained, choose_trained_critic, quantize
from pipeline.models.heads import fp32_logits
from pipeline.models.loading import freeze, prepared
from pipeline.models.meter import meter
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import ActorCritic, Episodes
from pipeline.models.process import settle
from pipeline.models.trunk import trunk
from pipeline.resources.ledger import Ledger, t4_seconds
from pipeline.resources.machine import ALLOCATOR_SETTINGS, GIB, fresh_marks, peak_gib
from pipeline.rewards.base import Completions
from pipeline.rewards.learned import LearnedReward, RewardModel
from pipeline.rewards.settings import RewardConfig
from pipeline.run.layout import Layout
from pipeline.training.judging import Scores, TrainingData
from pipeline.training.trainer import Trainer
from pipeline.trial import prepare, run_trial
from studies.definition.schema import single
from studies.execution.agenda import Agenda
from studies.execution.hand import Hand
from studies.execution.started import Started

VOCAB, LAYERS, WIDTH = 257, 6, 64
KNOBS: dict[str, Any] = {
    "train__steps": 2,
    "train__batch_size": 8,
    "train__num_mini_batches": 2,
    "train__num_epochs": 1,
    "train__response_length": 8,
    "optimiser__lr": 1e-4,
}


def network(architecture: str) -> Any:
    """Tiny random weights; llama, with grouped keys and a head of its own, is padded, the others packed."""
    wide = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "intermediate_size": 160, "head_dim": WIDTH // 4}
    if architecture == "llama":
        made = tinynets.network("llama", "sdpa", vocab_size=VOCAB, num_key_value_heads=2, **wide)
        return fp32_logits(made).eval()
    tied = {"n_embd": WIDTH, "n_layer": LAYERS, "n_inner": 160, "tie_word_embeddings": True}
    return prepared(tinynets.network(architecture, vocab_size=VOCAB, **wide, **tied))


class Counted(Ledger):
    """Counts every phase a second time, by torch."""

    def __post_init__(self, on_card: bool) -> None:
        super().__post_init__(on_card)
        self.seen: dict[str, float] = {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        # The counter does not see the products within torch's fused attention on a CPU.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), super().timed(phase):
            yield
        self.seen[phase] = self.seen.get(phase, 0.0) + counter.get_total_flops()


def spend(folder: Path, architecture: str, checkpointing: bool = False, full: bool = False, **knobs: Any) -> Counted:
    """One update with a learned reward; prompts and responses of all lengths, or all of the `full` one."""
    runtime = {"runtime__micro_batch_size": 4, "runtime__rollout_batch_size": 4, "runtime__device": "cpu"}
    cfg = trial_config(**{**KNOBS, **runtime, "runtime__gradient_checkpointing": checkpointing, **knobs})
    lm = choose_trained(quantize(network(architecture), cfg.adapter.quantize, ""), cfg)
    actor = ActorCritic(
        lm,
        choose_trained_critic(trunk(network(architecture)), cfg, 0) if cfg.critic.kind == "separate" else None,
        has_critic=cfg.critic.kind != "none",
    )
    reference = WithoutAdapter(lm) if cfg.adapter.kind == "lora" else freeze(network(architecture))
    reward = LearnedReward(
        freeze(RewardModel.new(network(architecture), RewardConfig(), torch.device("cpu"))), Room("rows", 5)
    )
    ledger = Counted()
    meter([*actor.networks, *([] if cfg.adapter.kind == "lora" else [reference]), *reward.networks], ledger.work)

    def score(episodes: Episodes, rows: Any) -> Scores:
        texts = [""] * len(rows)
        proxy = reward(Completions(episodes, texts, texts))
        return Scores(proxy, proxy, texts, texts)

    generator = torch.Generator().manual_seed(0)
    queries = torch.randint(2, VOCAB, (20, 9), generator=generator)
    mask = torch.arange(9) >= torch.randint(0, 1 if full else 8, (20, 1), generator=generator)
    folder.mkdir(exist_ok=True)
    tokens = {"eos_id": -1 if full else 1, "pad_id": 0}
    pairs = None
    if cfg.train.data == "pairs":  # responses of full length to every prompt, one pair of them to two
        responses = torch.randint(2, VOCAB, (len(queries), KNOBS["train__response_length"]))
        whole = torch.ones_like(queries, dtype=torch.bool), torch.ones_like(responses, dtype=torch.bool)
        pairs = Episodes(torch.cat([queries, responses], 1), *whole, torch.ones(len(queries), dtype=torch.bool))
    data = TrainingData(queries, mask, tokens, pairs=pairs)
    Trainer(cfg, (actor, reference), data, score, folder, Recorder(), ledger).run()
    return ledger


@pytest.mark.parametrize(
    ("architecture", "knobs"),
    [
        ("qwen2", {}),
        ("qwen2", {"critic__kind": "separate"}),
        ("qwen2", {"adapter__kind": "lora", "adapter__rank": 4}),
        ("qwen2", {"checkpointing": True}),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("qwen2", FEW_BITS), ("gpt2", {}), ("llama", {}))),
    ],
)
def test_work_agrees_with_torchs_counter_in_every_phase(
    tmp_path: Path, architecture: str, knobs: dict[str, Any]
) -> None:
    ledger = spend(tmp_path, architecture, **knobs)
    for phase in ("generate", "score", "train", "selfcheck"):
        assert ledger.flops[phase] == pytest.approx(ledger.seen[phase], rel=0.05), phase


@pytest.mark.parametrize("quantize", ["none", "8bit", "4bit"])
def test_work_counts_weights_and_not_their_codes(quantize: str) -> None:
    """Two weights of NF4 share a byte; what a frozen one costs is the same however it is held."""
    seen = []
    for how in ("none", quantize):
        knobs = {**LORA_CRITIC, "critic__quantize": how}
        body = choose_trained_critic(trunk(network("qwen2")), trial_config(**knobs), 0)
        meter([body], lambda flops, bytes_: seen.append((flops, bytes_)))
        body(input_ids=torch.ones(1, 3, dtype=torch.long))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"critic__kind": "separate"},
        {"adapter__kind": "lora", "adapter__rank": 4},
        {**LORA_CRITIC, "adapter__rank": 4},
        {"checkpointing": True},
        RLOO,
        preset("dpo"),
    ],
    ids=lambda one: str(one),
)
def test_predicted_work_is_what_is_counted(tmp_path: Path, knobs: dict[str, Any]) -> None:
    """A plan's arithmetic from a configuration alone, against the ledger of an update with full-length episodes."""
    ledger = spend(tmp_path, "qwen2", full=True, **knobs)
    runtime = {
        "gradient_checkpointing": knobs.get("checkpointing", False),
        "micro_batch_size": 4,
        "rollout_batch_size": 4,  # whole groups: prompts that two batches share are not forecast
    }
    changes = {key.replace("__", "."): value for key, value in {**KNOBS, **knobs}.items() if key != "checkpointing"}
    prompts = {"data.prompt_unit": "tokens", "data.prompt_length": [9, 9]}
    config = load_config("smoke", {**changes, **prompts, **{f"runtime.{key}": value for key, value in runtime.items()}})
    shape = measured(network("qwen2").config.to_json_string())
    assert shape is not None
    trial = ForecastSubject(config, shape, on_card=False)
    for phase, work in update_work(trial).items():
        assert work[0] == pytest.approx(ledger.flops[phase], rel=0.06), phase


def hand() -> None:
    study, layout = single("smoke", {}, 0), Layout(Path("out"))
    run = Started(study, "smoke", {}, layout, layout.study("single", "smoke"))
    Hand(run, Agenda(run), 1, lambda text, style: None)


def test_the_roofline_takes_the_slower_side() -> None:
    assert t4_seconds("train", 65e12 * 0.35, 0.0) == pytest.approx(1.0)
    assert t4_seconds("train", 0.0, 320e9 * 0.35) == pytest.approx(1.0)
    assert t4_seconds("generate", 65e12, 640e9) == pytest.approx(4.0)


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
