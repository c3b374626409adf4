"""Refusals, advised changes, and the bases that have a forecast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.forecast.advice import Forecast, changed, check_budget, fitting_changes, predict, remedy
from pipeline.forecast.shapes import measured

SEPARATE = {"critic.kind": "separate"}


def t4(**changes: Any) -> TrialConfig:
    return load_config("t4", {key.replace("__", "."): value for key, value in changes.items()})


def forecast(config: TrialConfig | None) -> Forecast:
    assert config is not None
    found = predict(config)
    assert found is not None
    return found


@pytest.mark.parametrize("profile", ["smoke", "tiny", "t4", "t4-256"])
def test_every_shipped_profile_is_predicted_to_fit(profile: str) -> None:
    assert forecast(load_config(profile)).fits
    check_budget(load_config(profile), "fits")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (SEPARATE, r"^X would exceed its caps: 21\.3 GiB predicted in stage train \(optimiser 6\.9, .*, \.\.\.\),"
                   r" caps\.memory_gib = 14\.6; 3\.16 h predicted on a T4,"
                   r" caps\.wall_clock_h = 2\.5\. .*critic\.kind=shared \(13\.3 "),
        ({"train.steps": 6_000},
         r"^X would exceed its caps: 3\.95 h predicted on a T4, caps.wall_clock_h = 2\.5\. .*steps=3748 "),
        ({"caps.memory_gib": 0.5}, r"No single knob makes it fit: take a smaller base"),
        ({"adapter.kind": "lora", "adapter.quantize": "4bit", "caps.memory_gib": 9.0}, r"predicted in stage sft"),
        ({"algorithm": "trpo"}, r"would exceed its caps"),
    ],
    ids=["both", "time", "nothing helps", "another stage", "TRPO"],
)  # fmt: skip
def test_a_trial_that_cannot_fit_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        check_budget(load_config("t4", changes), "X")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("visible", "refused"), [("NVIDIA H100 80GB HBM3", False), ("Tesla T4", True)])
def test_a_t4s_hours_count_only_on_a_t4(monkeypatch: pytest.MonkeyPatch, visible: str, refused: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: visible)
    assert forecast(t4(train__steps=6_000)).fits is not refused
    assert not forecast(t4(critic__kind="separate")).fits, "the allocator is limited on any card"


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (SEPARATE, ["critic.kind"]),
        (
            {**SEPARATE, "caps.memory_gib": 16.0, "caps.wall_clock_h": 4.0},
            ["critic.adapter", "critic.kind", "adapter.kind"],
        ),
        (
            {"runtime.micro_batch_size": 64, "runtime.gradient_checkpointing": False, "caps.wall_clock_h": 10.0},
            ["runtime.gradient_checkpointing", "adapter.kind", "runtime.micro_batch_size"],
        ),
    ],
)
def test_each_advised_change_makes_the_trial_fit(changes: dict[str, Any], keys: list[str]) -> None:
    config = load_config("t4", changes)
    found = fitting_changes(config)
    named = [next(iter(one)) for one, _ in found]
    assert [key for key in dict.fromkeys(named) if key in keys] == keys
    for one, with_it in found:
        again = forecast(changed(config, one))
        assert again.fits
        assert (again.total_gib, again.t4_hours) == (with_it.total_gib, with_it.t4_hours)
        assert f"({again.total_gib:.1f} GiB, {again.t4_hours:.2f} h)" in remedy(config)


TINYLLAMA = {"vocab_size": 32_000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
             "num_attention_heads": 32, "num_key_value_heads": 4, "tie_word_embeddings": False}  # fmt: skip
NEOX = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        ({"model_type": "gpt2"}, 124.4),
        ({"model_type": "llama", **TINYLLAMA}, 1100.0),
        ({"model_type": "gpt_neox", "vocab_size": 50304, **NEOX}, 70.4),
    ],
)
def test_shapes_of_any_decoder_come_from_its_configuration(config: dict[str, object], millions: float) -> None:
    shape = measured(json.dumps(config))
    assert shape is not None
    assert shape.parameters / 1e6 == pytest.approx(millions, rel=0.005)
    assert shape.maps == pytest.approx(12 * shape.layers * shape.hidden**2, rel=0.15)


def test_bases_without_a_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    found = forecast(load_config("t4", {"model.base": str(tmp_path)}))
    assert found.parameters == 500 * 64 + 128 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert measured(json.dumps({"model_type": "t5"})) is None
    unknown = load_config("t4", {"model.base": "someone/unknown"})
    assert predict(unknown) is None
    check_budget(unknown, "not refused")
