"""Critics on disk, and a separate one out of a network with a scalar head; safetensors throughout."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.models.policy import ActorCritic

HEAD, TRUNK, ADAPTER = "value_head.", "critic_trunk.", ".lora_"


def save_critic(actor: ActorCritic, path: Path) -> None:
    """The value head, and of a trunk of its own what is trained, in one file; none without a critic."""
    if actor.has_critic:
        tensors = _critic(actor)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def restore_critic(actor: ActorCritic, path: Path) -> None:
    """Give the critic of `actor` the weights that `save_critic` wrote. Raises `ValueError` where they are those of
    another kind of critic."""
    tensors, own = load_file(path), _critic(actor)
    if other := own.keys() ^ tensors.keys():
        raise ValueError(f"{path}: it is not this kind of critic: {', '.join(sorted(other))}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _critic(actor: ActorCritic) -> dict[str, Tensor]:
    """The tensors of a critic, by name. Beside an adapter the trunk is as the trial found it, and is left out."""
    tensors = {name: tensor for name, tensor in actor.state_dict().items() if name.startswith((HEAD, TRUNK))}
    adapters = {name for name in tensors if ADAPTER in name}
    return {
        name: tensor for name, tensor in tensors.items() if not adapters or name in adapters or name.startswith(HEAD)
    }


def calibrated_head(head: nn.Linear, mean: float, std: float) -> nn.Linear:
    """Return a head (H, 1) whose output is (that of `head` - mean) / std."""
    result = nn.Linear(head.in_features, 1).to(head.weight.device)
    with torch.no_grad():
        result.weight.copy_(head.weight / std)
        result.bias.copy_((head.bias - mean) / std)
    return result
