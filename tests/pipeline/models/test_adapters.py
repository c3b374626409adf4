"""Adapters, frozen layers and recomputed activations, on three architectures with random weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import trial_config
from tinytrial import BASE, LORA, learned, model, run, trainer

from pipeline.errors import UserError
from pipeline.models.adapters import WithoutAdapter, adapter_layers, adapter_off, blocks, choose_trained, merged
from pipeline.models.loading import prepared
from pipeline.models.policy import Episodes, log_probs, response_hidden
from pipeline.models.recompute import recomputing


def network(architecture: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    common = {"vocab_size": 31, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    wide = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
    }
    if architecture == "gpt2":
        made: Any = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=3, n_head=2, n_positions=64, **common))
    elif architecture == "llama":
        made = LlamaForCausalLM(LlamaConfig(**wide, **common))
    else:
        made = Qwen2ForCausalLM(Qwen2Config(**wide, tie_word_embeddings=True, **common))
    return prepared(made)


def episodes() -> Episodes:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 31, (3, 9), generator=generator)
    query = torch.tensor([[False, True, True, True], [True] * 4, [False, False, True, True]])
    response = torch.arange(5) < torch.tensor([[5], [3], [4]])
    return Episodes(ids, query, response, torch.tensor([False, False, True]))


def say(lm: Any) -> torch.Tensor:
    with torch.no_grad():
        return log_probs(lm, response_hidden(lm, episodes()), 1.0)


@pytest.fixture(params=["qwen2", "gpt2", "llama"])
def lm(request: pytest.FixtureRequest) -> Any:
    return network(request.param)


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


def test_without_an_adapter_there_is_nothing_to_merge() -> None:
    lm = network("qwen2")
    assert merged(lm, network("qwen2")) is lm


def test_frozen_layers_get_no_gradient(lm: Any) -> None:
    choose_trained(lm, trial_config(**{**BASE, "adapter__frozen_layers": 2}))
    response_hidden(lm, episodes()).sum().backward()
    layers = blocks(lm)
    assert all(parameter.grad is None for layer in layers[:2] for parameter in layer.parameters())
    assert any(parameter.grad is not None for parameter in layers[2].parameters())
    assert all(module.weight.grad is None for module in lm.modules() if isinstance(module, torch.nn.Embedding))


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(UserError, match=r"adapter.frozen_layers = 3: the policy has 3 layers"):
        choose_trained(network("qwen2"), trial_config(**{**BASE, "adapter__frozen_layers": 3}))


def test_an_adapter_trial_moves_only_its_adapter_and_keeps_its_checkpoints_small(tmp_path: Path) -> None:
    one = trainer(tmp_path, adapter__kind="lora", adapter__rank=2)
    one.run()
    start = model().state_dict()
    for name, tensor in one.actor.lm.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(tensor, start[name.replace(".base_layer", "")]), name
    assert not any("base_layer" in name for name in dict(one.state.trained()))


def test_recomputed_activations_change_nothing(tmp_path: Path) -> None:
    _, rows, state = run(tmp_path / "kept")
    _, again, recomputed = run(tmp_path / "recomputed", runtime={"gradient_checkpointing": True})
    for step, row in rows.items():
        for key, value in row.items():
            assert again[step][key] == pytest.approx(value, rel=1e-4, abs=1e-5), (step, key)
    assert all(torch.allclose(state[name], recomputed[name], atol=1e-4) for name in state)


def test_activations_really_are_recomputed(tmp_path: Path) -> None:
    one = trainer(tmp_path, runtime={"gradient_checkpointing": True})
    calls = 0
    layer = blocks(one.actor.lm)[0].mlp

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    layer.register_forward_pre_hook(count)
    with recomputing(one.actor.networks, True):
        hidden, _ = one.actor.hidden_and_values(episodes())
        before = calls
        hidden.sum().backward()
    assert calls == before + 1
    assert not one.actor.lm.training
