"""Critics: separate ones share nothing, start as they should, and survive their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tinytrial import LORA_CRITIC, actor, run, trainer

from pipeline.models.policy import Episodes, restore_critic, save_critic


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


CRITICS: dict[str, dict[str, Any]] = {
    "shared": {},
    "separate": {"critic__kind": "separate"},
    "lora": LORA_CRITIC,
    "8 bits": {**LORA_CRITIC, "critic__quantize": "8bit", "critic__init": "reward"},
    "4 bits": {**LORA_CRITIC, "critic__quantize": "4bit"},
}


@pytest.mark.parametrize("critic", CRITICS)
def test_a_critic_survives_its_file(tmp_path: Path, critic: str) -> None:
    one = trainer(tmp_path, train__steps=4, **CRITICS[critic])
    one.run()
    save_critic(one.actor, tmp_path / "critic.safetensors")
    loaded, kept = actor(CRITICS[critic]), load_file(tmp_path / "critic.safetensors")
    restore_critic(loaded, tmp_path / "critic.safetensors")
    if critic in ("8 bits", "4 bits"):  # what is trained alone
        assert {name for name in kept if ".lora_" not in name} == {"value_head.weight", "value_head.bias"}
        with pytest.raises(ValueError, match="it is not this kind of critic: "):
            restore_critic(actor(CRITICS["separate"]), tmp_path / "critic.safetensors")
    found, wanted = loaded.state_dict(), one.actor.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items() if not name.startswith("lm."))
    assert any(not torch.equal(actor(CRITICS[critic]).state_dict()[name], found[name]) for name in found)


@pytest.mark.parametrize("critic", [pytest.param("lora", marks=pytest.mark.slow), "8 bits"])
def test_a_critic_with_an_adapter_moves_it_and_its_head_alone(tmp_path: Path, critic: str) -> None:
    knobs = {**CRITICS[critic], "optimiser__lr": 0.0, "critic__lr": 1e-2, "critic__head_lr": 1e-2, "train__steps": 48}
    _, rows, state = run(tmp_path, **knobs)
    start = actor(knobs).state_dict()
    moved = {name for name in start if not torch.equal(state[name], start[name])}
    assert moved == {name for name in start if name.startswith("value_head.") or ".lora_" in name}
    losses = [row["value/vf_loss"] for row in rows.values() if "value/vf_loss" in row]
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])
