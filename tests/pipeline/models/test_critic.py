"""Critics: separate ones share nothing, start as they should, and survive their file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tinytrial import actor, model, run, trainer

from pipeline.models.anatomy import trunk
from pipeline.models.critic import load_critic, save_critic
from pipeline.models.policy import Episodes


def test_a_separate_critic_shares_nothing_with_the_policy(tmp_path: Path) -> None:
    """With the policy's rate at 0 only the critic learns, and the policy's gradient does not know of it."""
    _, rows, state = run(
        tmp_path, critic__kind="separate", optimiser__lr=0.0, critic__lr=1e-2, critic__head_lr=1e-2, train__steps=80
    )
    assert all(torch.equal(state[f"lm.{name}"], tensor) for name, tensor in model().state_dict().items())
    start = trunk(model()).state_dict()
    assert any(not torch.equal(state[f"critic_trunk.{name}"], tensor) for name, tensor in start.items())
    losses = [row["value/vf_loss"] for row in rows.values() if "value/vf_loss" in row]
    assert sum(losses[-8:]) < sum(losses[:8])


def test_a_critic_from_the_reward_model_starts_with_its_calibrated_scores(tmp_path: Path) -> None:
    start = actor({"critic__kind": "separate", "critic__init": "reward"})
    assert start.critic_trunk is not None
    ids = torch.tensor([[4, 5, 6, 7]])
    episodes = Episodes(
        ids, torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool), torch.tensor([False])
    )
    with torch.no_grad():
        hidden = start.critic_trunk(input_ids=ids).last_hidden_state[0, 1:3]
        head = torch.nn.Linear(16, 1)
        torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(2))
        expected = (hidden @ head.weight.T).squeeze(-1) / 2.0 - 0.25  # (raw - mean 0.5) / std 2
        torch.testing.assert_close(start.hidden_and_values(episodes)[1], expected)


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_a_critic_survives_its_file(tmp_path: Path, critic: str) -> None:
    one = trainer(tmp_path, critic__kind=critic)
    one.run()
    save_critic(one.actor, tmp_path / "critic.safetensors")
    loaded = load_critic(tmp_path / "critic.safetensors", one.actor.lm)
    assert loaded.state_dict().keys() == one.actor.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in one.actor.state_dict().items())
