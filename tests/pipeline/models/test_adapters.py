"""Adapters on three architectures with random weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tinynets import UNEVEN, network
from tinytrial import LORA, learned, model, trainer

from pipeline.models.adapters import WithoutAdapter, adapter_layers, adapter_off, choose_trained, merged
from pipeline.models.loading import prepared
from pipeline.models.policy import log_probs, response_hidden


def say(lm: Any) -> torch.Tensor:
    with torch.no_grad():
        return log_probs(lm, response_hidden(lm, UNEVEN), 1.0)


@pytest.fixture(params=["qwen2", "gpt2", "llama"])
def lm(request: pytest.FixtureRequest) -> Any:
    return prepared(network(request.param))


def test_an_adapter_changes_nothing_until_it_has_learned(lm: Any) -> None:
    before = say(lm)
    choose_trained(lm, LORA)
    assert len(list(adapter_layers(lm))) >= 3 * 4
    torch.testing.assert_close(say(lm), before)
    assert {name for name, tensor in lm.named_parameters() if tensor.requires_grad} == {
        name for name, _ in lm.named_parameters() if "lora_" in name
    }


def test_the_reference_is_the_network_without_its_adapter(lm: Any) -> None:
    before = say(lm)
    policy = learned(lm)
    assert not torch.allclose(say(policy), before, atol=1e-3)
    torch.testing.assert_close(say(WithoutAdapter(policy)), before)
    with adapter_off(policy):
        torch.testing.assert_close(say(policy), before)
    assert not torch.allclose(say(policy), before, atol=1e-3)  # switched on again
    assert all("lora_" in name for name, tensor in policy.named_parameters() if tensor.requires_grad)


def test_merging_gives_a_plain_network_that_says_the_same(lm: Any) -> None:
    snapshot = copy.deepcopy(lm)
    names = set(snapshot.state_dict())
    policy = learned(lm)
    plain = merged(policy, snapshot)
    assert set(plain.state_dict()) == names
    torch.testing.assert_close(say(plain), say(policy), rtol=1e-4, atol=1e-5)


def test_an_adapter_trial_moves_only_its_adapter_and_keeps_its_checkpoints_small(tmp_path: Path) -> None:
    one = trainer(tmp_path, adapter__kind="lora", adapter__rank=2)
    one.run()
    start = model().state_dict()
    for name, tensor in one.actor.lm.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(tensor, start[name.replace(".base_layer", "")]), name
    assert not any("base_layer" in name for name in dict(one.state.trained()))
