"""A PPO trial on a network of a few hundred weights, in a tenth of a second; and ways to kill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from helpers import Recorder, trial_config

from pipeline.config.networks import ModelConfig
from pipeline.config.presets import NAME, PRESETS, preset_of
from pipeline.models.adapters import WithoutAdapter, adapter_layers, choose_trained, choose_trained_critic, quantize
from pipeline.models.loading import freeze, scratch_model
from pipeline.models.meter import meter
from pipeline.models.policy import ActorCritic, Episodes, calibrated_head, response_mask, to_grid
from pipeline.models.trunk import trunk
from pipeline.resources.ledger import Ledger
from pipeline.run.metrics import merged
from pipeline.training.experience import Experience, Measured, Rows
from pipeline.training.judging import Scores, TrainingData, v_star_of
from pipeline.training.rounds import Round
from pipeline.training.trainer import Outcome, Trainer

VOCAB, PAD, EOS = 31, 0, 1
ROUNDING = 1e-5
"""Difference between two ways to sum a gradient of this network in fp32. Measured over 3 seeds, without AVX: up to
3e-6, of gradients of up to 8."""
SIZES = ModelConfig(hidden_size=16, layers=2, heads=2, intermediate_size=32)
BASE: dict[str, Any] = {
    "train__steps": 24, "train__batch_size": 8, "train__num_mini_batches": 2, "train__num_epochs": 2,
    "train__response_length": 10, "optimiser__lr": 1e-2, "critic__vf_coef": 0.5,
}  # fmt: skip
CLOSES = {"clause": torch.arange(VOCAB) % 3 == 2, "sentence": torch.arange(VOCAB) % 6 == 2}
"""Tokens that end a group of the KL penalty; any will do."""
RUNTIME: dict[str, Any] = {"runtime__checkpoint_updates": 2, "runtime__checkpoint_share": None}


def score(episodes: Episodes, rows: Sequence[int]) -> Scores:
    """Likes low token numbers; deterministic."""
    mask = episodes.response_mask
    low = ((episodes.responses < 10) & mask).sum(1).float() / mask.sum(1) * 2 - 0.5
    return Scores(low, low * 2, [str(row) for row in rows], ["text"] * len(rows))


def score_in_two(episodes: Episodes, rows: Sequence[int]) -> Scores:
    """Return the same, and a part that scores odd token numbers."""
    mask, whole = episodes.response_mask, score(episodes, rows)
    odd = ((episodes.responses % 2 == 1) & mask).sum(1).float() / mask.sum(1)
    return replace(whole, parts={"low": whole.proxy, "odd": odd - 1.0})


def score_densely(episodes: Episodes, rows: Sequence[int]) -> Scores:
    """Return the same, of which every odd token earns 0.3."""
    odd = ((episodes.responses % 2 == 1) & episodes.response_mask).float()
    width = BASE["train__response_length"] - odd.shape[1]
    return replace(score(episodes, rows), earned=0.3 * torch.nn.functional.pad(odd, (0, width)))


def samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, lengths and ends of four samples of each prompt; any will do."""
    stream = torch.Generator().manual_seed(4)
    lengths = torch.randint(1, 11, (20, 4), generator=stream)
    return torch.randn(20, 4, generator=stream), lengths, lengths < 10


def stored_pairs() -> Episodes:
    """Ten pairs of responses to prompts of several lengths; any will do."""
    stream = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 11, (20,), generator=stream)
    query_mask = torch.arange(4) >= torch.randint(0, 4, (10, 1), generator=stream).repeat_interleave(2, 0)
    tokens = torch.randint(2, VOCAB, (20, 14), generator=stream)
    tokens[:, :4] = tokens[::2, :4].repeat_interleave(2, 0)
    return Episodes(tokens, query_mask, response_mask(lengths, 10), lengths < 10)


def model() -> Any:
    network = scratch_model(SIZES, VOCAB, PAD, EOS, 64, seed=3)
    for parameter in network.parameters():
        parameter.data.mul_(2.0)
    return network


def actor(knobs: dict[str, Any]) -> ActorCritic:
    """The critic that the stage would build; a "reward model" is the network with its weights scaled."""
    cfg = trial_config(**{**BASE, **knobs})
    policy = choose_trained(quantize(model(), cfg.adapter.quantize, "adapter.quantize"), cfg)
    if knobs.get("critic__kind", "shared") != "separate":
        return ActorCritic(policy, has_critic=knobs.get("critic__kind") != "none")
    if knobs.get("critic__init", "reference") == "reference":
        return ActorCritic(policy, choose_trained_critic(trunk(model()), cfg, cfg.train.seed))
    scorer, head = model(), torch.nn.Linear(16, 1)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(2))
    torch.nn.init.zeros_(head.bias)
    for parameter in scorer.parameters():
        parameter.data.mul_(1.1)
    body = choose_trained_critic(trunk(scorer), cfg, cfg.train.seed)
    return ActorCritic(policy, body, calibrated_head(head, 0.5, 2.0))


def trainer(
    folder: Path,
    reporter: Recorder | None = None,
    device: str = "cpu",
    part: Round | None = None,
    **knobs: Any,
) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randint(2, VOCAB, (20, 4), generator=generator)
    mask = torch.arange(4) >= torch.randint(0, 4, (20, 1), generator=generator)
    actor_critic = actor(knobs).to(device)
    reference = (
        freeze(model().to(device)) if knobs.get("adapter__kind", "none") == "none" else WithoutAdapter(actor_critic.lm)
    )
    ledger = Ledger()
    meter([*actor_critic.networks, *([] if isinstance(reference, WithoutAdapter) else [reference])], ledger.work)
    config = trial_config(**{**BASE, **RUNTIME, **knobs})
    return Trainer(
        config,
        (actor_critic, reference),
        TrainingData(
            queries,
            mask,
            {"eos_id": EOS, "pad_id": PAD},
            v_star_of(config, *samples()) if config.algorithm.needs_values else None,
            stored_pairs() if config.train.data == "pairs" else None,
            CLOSES.get(config.kl.group),
        ),
        score_in_two if config.floor.part else score_densely if config.reward.dense else score,
        folder,
        reporter or Recorder(),
        ledger,
        part,
    )


def run(folder: Path, **knobs: Any) -> tuple[Outcome, dict[int, dict[str, float]], dict[str, torch.Tensor]]:
    one = trainer(folder, **knobs)
    outcome = one.run()
    return outcome, merged(folder / "metrics.jsonl"), one.actor.state_dict()


def moved(one: Trainer, by: float) -> Trainer:
    """The trial after its policy has moved, in all weights by normal numbers of this standard deviation."""
    with torch.no_grad():
        for seed, parameter in enumerate(one.actor.lm.parameters()):
            parameter.add_(by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return one


def rows_of(
    old: torch.Tensor, mask: torch.Tensor, ref: torch.Tensor | None = None, advantages: torch.Tensor | None = None
) -> Rows:
    """All responses of a rollout that is known by the numbers of its valid tokens alone, (N,) each; a response is a
    group."""
    grid, ref = to_grid(old, mask), to_grid(old if ref is None else ref, mask)
    worth = torch.zeros_like(grid) if advantages is None else to_grid(advantages, mask)
    size, width = mask.shape
    tokens = torch.zeros(size, width + 1, dtype=torch.long)
    episodes = Episodes(tokens, torch.ones(size, 1, dtype=torch.bool), mask, torch.ones(size, dtype=torch.bool))
    measured = Measured(grid, ref, grid * 0, grid * 0, None)
    experience = Experience(episodes, measured, worth, None, 0.0, groups=torch.zeros_like(mask, dtype=torch.long))
    return Rows(experience, torch.arange(size))


def preset(name: str) -> dict[str, Any]:
    settings = preset_of(BASE["train__num_epochs"] * BASE["train__num_mini_batches"], {NAME: name})
    return {"algorithm__name": name, **{key.replace(".", "__"): value for key, value in settings.items()}}


TRAINED = [name for name in PRESETS if preset(name).get("algorithm__advantage") != "none"]
"""The algorithms that take gradient steps."""
RLOO = preset("rloo")
LORA_CRITIC: dict[str, Any] = {"critic__kind": "separate", "critic__adapter": "lora"}
FEW_BITS = LORA_CRITIC | {"critic__quantize": "8bit", "adapter__kind": "lora", "adapter__quantize": "4bit"}
PARTS = {"low": {"kind": "learned"}, "odd": {"kind": "learned", "weight": 0.0}}
FLOOR: dict[str, Any] = {
    "reward__kind": "composite", "reward__parts": PARTS, "floor__part": "odd",
}  # fmt: skip
DENSE: dict[str, Any] = {"reward__kind": "grammar", "reward__dense": True}
CONTROLS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "adaptive": {"kl__control": "adaptive", "kl__adaptive__horizon": 20.0},
    "linear": {"kl__control": "linear", "kl__end": 0.5},
    "cosine": {"kl__control": "cosine", "kl__end": 0.5},
    "adaptive bonus": {
        "entropy__coef": 0.1, "entropy__control": "adaptive", "entropy__adaptive__target": 3.0,
        "entropy__adaptive__horizon": 20.0,
    },
    "falling bonus": {"entropy__coef": 0.5, "entropy__control": "linear"},
    "floor": FLOOR,
    "guard": {"optimiser__guard": True},
    "hinge": {"kl__hinge": 1e-3},
    "target": {"algorithm__target_kl": 1e-3},
    "in the loss": {"kl__place": "loss"},
    "clauses in the reward": {"kl__group": "clause", "kl__group_credit": "last"},
    "sentences in the loss": {"kl__place": "loss", "kl__loss_estimator": "k3", "kl__group": "sentence"},
    "separate": {"critic__kind": "separate"},
    "lora": {"adapter__kind": "lora"},
    "few bits": FEW_BITS,
    **{name: preset(name) for name in TRAINED if name != "ppo"},
    "old sampler": {"rollout__every": 4, "rollout__correction": "truncated"},
    "replayed targets": {"critic__target": "replay", "replay__every": 3, "replay__share": 0.5},
}  # fmt: skip


class Killed(BaseException):
    pass


class Killer(Recorder):
    """Dies when the given update has been reported, as a process would: without any farewell."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def metrics(self, step: int, values: Any) -> None:
        super().metrics(step, values)
        if len(self.steps) == self.after:
            raise Killed


LORA = trial_config(**{**BASE, "adapter__kind": "lora", "adapter__rank": 4})


def learned(lm: Any) -> Any:
    choose_trained(lm, LORA)
    generator = torch.Generator().manual_seed(3)
    for _, layer in adapter_layers(lm):
        torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1, generator=generator)
    return lm
