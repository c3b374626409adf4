"""Critics on disk, and a separate one out of a network with a scalar head; safetensors throughout."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pipeline.models.anatomy import trunk
from pipeline.models.loading import CausalLM
from pipeline.models.policy import ActorCritic

HEAD, TRUNK = "value_head.", "critic_trunk."


def save_critic(actor: ActorCritic, path: Path) -> None:
    """The value head, and the critic's trunk where it has one of its own, in one file; none without a critic."""
    if not actor.has_critic:
        return
    tensors = {name: tensor for name, tensor in actor.state_dict().items() if name.startswith((HEAD, TRUNK))}
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def load_critic(path: Path, lm: CausalLM) -> ActorCritic:
    """`lm` with the critic that `save_critic` wrote; a separate trunk has the architecture of the policy's."""
    separate = any(name.startswith(TRUNK) for name in load_file(path))
    actor = ActorCritic(lm, copy.deepcopy(trunk(lm)) if separate else None)
    restore_critic(actor, path)
    return actor.to(next(lm.parameters()).device)


def restore_critic(actor: ActorCritic, path: Path) -> None:
    """Give the critic of `actor` the weights that `save_critic` wrote. Raises `ValueError` where they are those of
    another kind of critic."""
    tensors = load_file(path)
    own = {name for name in actor.state_dict() if name.startswith((HEAD, TRUNK))}
    if other := own ^ tensors.keys():
        raise ValueError(f"{path}: it is not this kind of critic: {', '.join(sorted(other))}")
    actor.load_state_dict(tensors, strict=False)


def calibrated_head(head: nn.Linear, mean: float, std: float) -> nn.Linear:
    """A head (H, 1) whose output is (what `head` says - mean) / std."""
    result = nn.Linear(head.in_features, 1).to(head.weight.device)
    with torch.no_grad():
        result.weight.copy_(head.weight / std)
        result.bias.copy_((head.bias - mean) / std)
    return result
