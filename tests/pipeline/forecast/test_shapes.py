"""Sizes that are counted from a configuration, against networks that are built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pipeline.config.loading import load_config
from pipeline.forecast.advice import predict
from pipeline.forecast.shapes import PUBLISHED, assumed_scorers, classifier_shape, measured

OPT = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072}
TINYLLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
NEOX = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        ({"model_type": "gpt2"}, 124.4),
        (PUBLISHED["Qwen/Qwen1.5-0.5B"], 464.0),
        ({"model_type": "llama", **TINYLLAMA}, 1100.0),
        ({"model_type": "opt", **OPT}, 125.2),
        ({"model_type": "gpt_neox", "vocab_size": 50304, **NEOX}, 70.4),
    ],
    ids=lambda one: one["model_type"] if isinstance(one, dict) else None,
)
def test_shapes_of_any_decoder_come_from_its_configuration(config: dict[str, object], millions: float) -> None:
    shape = measured(json.dumps(config))
    assert shape is not None
    assert shape.parameters / 1e6 == pytest.approx(millions, rel=0.005)
    assert shape.maps == pytest.approx(shape.blocks, rel=0.01)
    assert 0 < shape.kept_half < shape.kept_fp32


@pytest.mark.parametrize("kind", ["t5", "no such thing"])
def test_what_is_no_decoder_has_no_shape(kind: str) -> None:
    assert measured(json.dumps({"model_type": kind})) is None


@pytest.mark.parametrize("groups", [8, 2])
def test_a_forward_keeps_what_is_predicted(groups: int) -> None:
    """A real forward, some of it padding: the bytes that autograd holds for its backward, per position."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 8, "num_key_value_heads": groups}
    config = LlamaConfig(hidden_size=64, num_hidden_layers=3, intermediate_size=160, vocab_size=50, **heads)
    shape = measured(config.to_json_string())
    assert shape is not None
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    network, mask = LlamaForCausalLM(config), torch.ones(8, 32, dtype=torch.long)
    mask[0, :5] = 0
    own = {one.untyped_storage()._cdata for one in network.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.model(torch.zeros(8, 32, dtype=torch.long), attention_mask=mask)
    held = sum(one.untyped_storage().nbytes() for key, one in kept.items() if key not in own)
    assert shape.kept_fp32 * 8 * 32 == pytest.approx(held, rel=0.05)


def test_a_folder_is_sized_by_its_own_configuration_and_an_unknown_base_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    found = predict(load_config("t4", {"model.base": str(tmp_path)}))
    assert found is not None
    assert found.parameters == 500 * 64 + 128 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert predict(load_config("t4", {"model.base": "someone/unknown"})) is None


def test_classifiers_count_by_their_own_configuration_or_by_a_stated_assumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    network = RobertaForSequenceClassification(RobertaConfig(**sizes, vocab_size=1000))
    network.config.save_pretrained(tmp_path)
    local = classifier_shape(str(tmp_path), None)
    assert local is not None
    assert local.parameters == sum(one.numel() for one in network.parameters())
    assert local.maps == 2 * (4 * 64 * 64 + 2 * 64 * 128) + 64 * 64 + 2 * 64
    assert local.block_bytes == 4.0 * (4 * 64 + 2 * 128)
    judge = {"judge.kind": "classifier", "judge.classifier.label": "POSITIVE"}
    absent = {**judge, "judge.classifier.model": "someone/absent", "judge.classifier.revision": "0" * 40}
    assert assumed_scorers(load_config("t4", absent)) == ["someone/absent"]
    assert assumed_scorers(load_config("t4", {**judge, "judge.classifier.model": str(tmp_path)})) == []
    plain, assumed = predict(load_config("t4")), predict(load_config("t4", absent))
    assert plain
    assert assumed
    assert assumed.total_gib - plain.total_gib == pytest.approx(4 * 125e6 / 2**30)
