"""A whole trial whose frozen networks are held in half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import smoke
from smoke_record import recorded

from pipeline.models.anatomy import blocks_of
from pipeline.models.quantization import HalfLinear, hold
from pipeline.run.layout import Layout
from pipeline.stages import train as stage
from pipeline.stages.graph import STAGES


def test_only_the_training_knows_in_what_frozen_networks_are_held() -> None:
    knowing = [one.name for one in STAGES if {"train", "train.frozen_dtype"} & set(one.sections)]
    assert knowing == ["train"]
    assert smoke(train__frozen_dtype="fp16").digest() != smoke().digest()


def test_reference_and_reward_are_held_and_the_judge_and_what_is_trained_are_not(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, trained = [], []

    def seen(networks: Any, how: Any) -> None:
        held.extend(networks)
        hold(networks, how)

    build = stage.Trainer

    def training(cfg: Any, networks: Any, *args: Any) -> Any:
        trained.append(networks.actor)
        return build(cfg, networks, *args)

    monkeypatch.setattr(stage, "hold", seen)
    monkeypatch.setattr(stage, "Trainer", training)
    record = recorded(layout, train__frozen_dtype="bf16")
    assert record.status == "complete"
    assert len(held) == 2
    for network in held:
        maps = [one for block in blocks_of(network) for one in block.modules() if isinstance(one, HalfLinear)]
        assert len(maps) == 7 * network.config.num_hidden_layers
    assert {one.dtype for one in trained[0].parameters()} == {torch.float32}
