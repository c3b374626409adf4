"""The networks that a trial trains, as they are at its start."""

from __future__ import annotations

import torch

from pipeline.config.trial import TrialConfig
from pipeline.models.adapters import choose_trained
from pipeline.models.anatomy import trunk
from pipeline.models.critic import calibrated_head
from pipeline.models.loading import CausalLM, load_quantized, load_snapshot
from pipeline.models.policy import ActorCritic
from pipeline.rewards.learned import RewardModel
from pipeline.run.store import Artifact


def new_actor(cfg: TrialConfig, sft: Artifact, reward: Artifact, device: torch.device) -> ActorCritic:
    """The policy at the reference, with the critic that `cfg` asks for."""
    load = load_quantized if cfg.adapter.quantize == "4bit" else load_snapshot
    policy: CausalLM = choose_trained(load(sft.path / "model", device), cfg)
    match cfg.critic.kind, cfg.critic.init:
        case "none", _:
            return ActorCritic(policy, has_critic=False).to(device)
        case "shared", _:
            return ActorCritic(policy).to(device)
        case "separate", "reference":
            return ActorCritic(policy, trunk(load_snapshot(sft.path / "model", device))).to(device)
        case "separate", "reward":
            scorer = RewardModel.load(reward.path, device)
            scale = reward.meta["parts"]["reward"]
            head = calibrated_head(scorer.head, scale["mean"], scale["std"])
            return ActorCritic(policy, trunk(scorer.lm).requires_grad_(True), head).to(device)
        case other:
            raise ValueError(f"no critic is known as {other}")
