"""The networks that a trial trains, as they are at its start, and its reference."""

from __future__ import annotations

import torch

from pipeline.config.trial import TrialConfig
from pipeline.models.adapters import Quantize, choose_trained, choose_trained_critic, load_quantized, load_rounded
from pipeline.models.loading import HEAD, TRUNK, CausalLM, freeze, load_head, load_snapshot
from pipeline.models.policy import ActorCritic, calibrated_head
from pipeline.models.trunk import trunk
from pipeline.run.store import Artifact

POLICY_KEY = "adapter.quantize"


def new_actor(cfg: TrialConfig, sft: Artifact, reward: Artifact, device: torch.device) -> ActorCritic:
    """The policy at the reference, with the critic of `cfg`. Raises `UserError` where bitsandbytes is needed and not
    installed."""
    lm = load_quantized(sft.path / "model", cfg.adapter.quantize, device, POLICY_KEY)
    return with_critic(choose_trained(lm, cfg), cfg, cfg.train.seed, sft, reward, device)


def with_critic(
    lm: CausalLM, cfg: TrialConfig, seed: int, sft: Artifact, reward: Artifact, device: torch.device
) -> ActorCritic:
    """A policy with the critic of `cfg`, as it is at the start; `seed` is of its adapter, where it has one."""
    match cfg.critic.kind, cfg.critic.init:
        case "none", _:
            return ActorCritic(lm, has_critic=False).to(device)
        case "shared", _:
            return ActorCritic(lm).to(device)
        case "separate", "reference":
            body = trunk(load_snapshot(sft.path / "model", device))
            return ActorCritic(lm, choose_trained_critic(body, cfg, seed)).to(device)
        case "separate", "reward":
            body, scale = trunk(freeze(load_snapshot(reward.path / TRUNK, device))), reward.meta["parts"]["reward"]
            head = calibrated_head(load_head(reward.path / HEAD, device), scale["mean"], scale["std"])
            return ActorCritic(lm, choose_trained_critic(body, cfg, seed), head).to(device)
        case other:
            raise ValueError(f"no critic is known as {other}")


def load_reference(sft: Artifact, how: Quantize, device: torch.device) -> CausalLM:
    """The reference as a plain network in fp32: the SFT model; of a policy in few bits (`how`) what that is without its
    adapter."""
    return load_rounded(sft.path / "model", how, device, POLICY_KEY)
