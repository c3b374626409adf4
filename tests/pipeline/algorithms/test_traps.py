"""Traps that other implementations of PPO fell into, and that no other file tests."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from tinytrial import EOS, PAD, model

from pipeline.models.out_of_memory import Room
from pipeline.models.sampling import EagerSampler
from pipeline.models.seeding import uniforms
from pipeline.run import metrics
from studies.definition.space import Prune


def test_eos_in_the_prompt_ends_no_response() -> None:
    """Templates of chat models put it there; some prompts here are nothing else."""
    queries = torch.tensor([[EOS, 5, 6], [EOS, EOS, EOS], [PAD, EOS, 7], [9, 8, EOS]]).repeat(4, 1)
    sampler = EagerSampler(model(), 1.0, Room("rows", 16), EOS, PAD)
    episodes = sampler.sample(queries, queries != PAD, uniforms(16, 20, "prompt"))
    rows = episodes.responses.tolist()
    assert episodes.lengths.tolist() == [row.index(EOS) + 1 if EOS in row else 20 for row in rows]
    assert episodes.ended.tolist() == [EOS in row for row in rows]
    assert len(set(episodes.ended.tolist())) == 2  # both kinds were seen


def test_only_a_ceiling_on_the_divergence_prunes() -> None:
    kl_alone = {"objective/kl", "objective/kl_per_token", "objective/kl_exact_per_token", "objective/kl_k3_per_token"}
    for key in metrics.METRICS:
        if key in kl_alone:
            assert Prune(metric=key, above=1.0).rule.op == ">"  # type: ignore[arg-type]
        else:
            with pytest.raises(ValidationError, match="Input should be"):
                Prune(metric=key, above=1.0)  # type: ignore[arg-type]


def test_every_metric_has_one_definition_and_a_unit() -> None:
    keys = [metric.key for metric in metrics._ROWS]
    assert len(keys) == len(set(keys)) == len(metrics.METRICS) + len(metrics.FAMILIES)
    assert all(metric.unit.strip() and metric.formula.strip() for metric in metrics._ROWS)
    for metric in metrics._ROWS:
        for words in ("per_token", "per_sequence"):
            assert words not in metric.key or metric.unit == f"nats {words.replace('_', ' ')}", metric.key
