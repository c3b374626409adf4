"""Counted work against torch's own counter, phase by phase, on whole updates of real networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tinynets
import torch
from helpers import Recorder, trial_config
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
from pipeline.models.trunk import trunk
from pipeline.resources.ledger import Ledger
from pipeline.rewards.base import Completions
from pipeline.rewards.learned import LearnedReward, RewardModel
from pipeline.rewards.settings import RewardConfig
from pipeline.training.judging import Scores, TrainingData
from pipeline.training.trainer import Networks, Trainer

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
    Trainer(cfg, Networks(actor, reference), data, score, folder, Recorder(), ledger).run()
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
