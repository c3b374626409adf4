from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tinynets import UNEVEN, network
from tinytrial import LORA, LORA_CRITIC, actor, learned, run, trainer
from torch import nn

from pipeline.errors import UserError
from pipeline.models.adapters import (
    Quantize,
    QuantizedLinear,
    WithoutAdapter,
    adapter_layers,
    choose_trained,
    load_quantized,
    load_rounded,
    merged,
    quantize,
)
from pipeline.models.heads import fp32_logits, log_probs
from pipeline.models.loading import prepared
from pipeline.models.policy import Episodes, response_hidden, restore_critic, save_critic

CPU = torch.device("cpu")
KEY = "adapter.quantize"
SHAPES = [(48, 64), (48, 40), (17, 16)]
"""The last two have rows that are no multiple of a block of NF4; bitsandbytes 0.50 misreads such on a CPU."""


def say(lm: Any) -> torch.Tensor:
    with torch.no_grad():
        return log_probs(lm, response_hidden(lm, UNEVEN), 1.0)


@pytest.fixture(params=["qwen2", "gpt2", "llama"])
def lm(request: pytest.FixtureRequest) -> Any:
    return prepared(network(request.param))


def test_an_adapter_changes_nothing_until_it_has_learned_and_the_reference_is_the_network_without_it(lm: Any) -> None:
    before = say(lm)
    fresh = choose_trained(copy.deepcopy(lm), LORA)
    assert len(list(adapter_layers(fresh))) >= 3 * 4
    torch.testing.assert_close(say(fresh), before)
    policy = learned(lm)
    assert not torch.allclose(say(policy), before, atol=1e-3)
    torch.testing.assert_close(say(WithoutAdapter(policy)), before)
    assert not torch.allclose(say(policy), before, atol=1e-3)  # and is on again
    assert all(tensor.requires_grad == ("lora_" in name) for name, tensor in policy.named_parameters())


def test_merging_gives_a_plain_network_that_says_the_same(lm: Any) -> None:
    snapshot = copy.deepcopy(lm)
    names = set(snapshot.state_dict())
    policy = learned(lm)
    plain = merged(policy, snapshot)
    assert set(plain.state_dict()) == names
    torch.testing.assert_close(say(plain), say(policy), rtol=1e-4, atol=1e-5)


def weight(shape: tuple[int, int]) -> torch.Tensor:
    scales = torch.logspace(-2, 0, shape[0])[:, None]  # so that a scale of another row shows
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scales


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("how", "error", "bytes_"), [("8bit", 0.01, 1.3), ("4bit", 0.11, 0.56)])
def test_the_codes_stand_for_the_weight_and_are_small(
    shape: tuple[int, int], how: Quantize, error: float, bytes_: float
) -> None:
    wanted = weight(shape)
    layer = QuantizedLinear(wanted, None, how)
    assert float((layer.full() - wanted).norm() / wanted.norm()) < error
    held = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
    assert held < bytes_ * wanted.numel()
    assert not any(parameter.requires_grad for parameter in layer.parameters())


@pytest.mark.parametrize("how", ["8bit", "4bit"])
def test_a_product_is_that_of_the_full_weight_forward_and_backward(how: Quantize) -> None:
    layer = QuantizedLinear(weight((48, 40)), nn.Parameter(torch.ones(48)), how)
    x = torch.randn(3, 7, 40, generator=torch.Generator().manual_seed(1), requires_grad=True)
    plain = nn.Linear(40, 48)
    plain.load_state_dict({"weight": layer.full(), "bias": torch.ones(48)})
    out = layer(x)
    assert torch.equal(out, plain(x))
    with torch.no_grad():
        assert torch.equal(layer(x), out), "a rollout sees what a training step sees"
    (mine,) = torch.autograd.grad(out.square().sum(), x)
    (theirs,) = torch.autograd.grad(plain(x).square().sum(), x)
    torch.testing.assert_close(mine, theirs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = layer(x)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half, plain(x))


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_the_reference_of_a_policy_in_nf4_is_that_network_in_training_and_in_evaluation(
    tmp_path: Path, architecture: str
) -> None:
    fp32_logits(network(architecture)).save_pretrained(tmp_path)
    policy = learned(load_quantized(tmp_path, "4bit", CPU, KEY))
    in_training, in_evaluation = WithoutAdapter(policy), load_rounded(tmp_path, "4bit", CPU, KEY)
    torch.testing.assert_close(say(in_training), say(in_evaluation), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(say(in_training), say(load_rounded(tmp_path, "none", CPU, KEY)), atol=1e-2)
    for name, layer in adapter_layers(policy):
        module = in_evaluation.get_submodule(name)
        plain = module.weight if isinstance(module, nn.Linear) else module.weight.T
        assert torch.equal(layer.get_base_layer().full(), plain), name
    # What is evaluated and exported is the policy that was trained.
    trained = say(policy)
    torch.testing.assert_close(say(merged(policy, in_evaluation)), trained, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(trained, say(in_training), atol=1e-2)


def test_without_the_package_the_setting_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.resources.machine.find_spec", lambda name: None)
    quantize(network("qwen2"), "none", KEY)
    with pytest.raises(
        UserError, match=r"^adapter\.quantize = '4bit': not installed: bitsandbytes; install the extra"
    ) as no:
        quantize(network("qwen2"), "4bit", KEY)
    assert "\n" not in str(no.value)


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
