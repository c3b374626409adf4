"""A kind that the configuration came to know and the code did not raises where it would act; none falls through to
another."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import trial_config
from tinytrial import model
from transformers import BatchEncoding

from pipeline.algorithms.aggregation import response_weights
from pipeline.algorithms.mathematics.controllers import lr_schedule, scheduled
from pipeline.algorithms.mathematics.losses import group_kl_loss, kl_loss
from pipeline.algorithms.mathematics.shaping import beta_in_reward, handle_missing_eos, non_score_reward
from pipeline.algorithms.mathematics.token_groups import credited
from pipeline.algorithms.registry import estimator_of, surrogate_of
from pipeline.config.trial import TrialConfig
from pipeline.data.corpus import load_corpus
from pipeline.data.prompts import cut_at
from pipeline.data.settings import DataConfig
from pipeline.models.adapters import choose_trained, choose_trained_critic
from pipeline.models.out_of_memory import Room
from pipeline.models.quantization import quantize
from pipeline.rewards.classifier import ClassifierReward
from pipeline.rewards.scorers import judge_of, ready
from pipeline.rewards.settings import JudgeConfig, PartConfig

CPU = torch.device("cpu")
NEW: Any = "made_up"
ONE = torch.ones(1)
ROOM = Room("rows", 1)


def made(**changes: Any) -> TrialConfig:
    """A configuration that pydantic has not seen, as if its lists of values had grown."""
    config = trial_config()
    for key, value in changes.items():
        section, name = key.split("__")
        config = config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})
    return config


def judge(kind: str) -> JudgeConfig:
    return JudgeConfig().model_copy(update={"kind": kind})


def classifier() -> Any:
    answer = SimpleNamespace(logits=torch.zeros(1, 2))
    model = SimpleNamespace(device=CPU, config=SimpleNamespace(problem_type=None))
    called = {"__call__": lambda self, **inputs: answer, "get_input_embeddings": lambda self: torch.nn.Embedding(2, 1)}
    network = type("Network", (), {**called, **vars(model)})()
    inputs = BatchEncoding({"input_ids": torch.zeros(1, 1, dtype=torch.long)})
    return ClassifierReward(network, lambda *args, **options: inputs, 0, NEW, 1)


def critic(kind: str, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = import_module("pipeline.training.new_actor")
    for load in ("load_snapshot", "load_quantized"):
        monkeypatch.setattr(stage, load, lambda *args: torch.nn.Linear(1, 1))
    nothing: Any = SimpleNamespace(path=Path())
    stage.new_actor(made(critic__kind=kind, critic__init=start), nothing, nothing, CPU)


CASES: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "reward.kind": lambda patch: ready(
        "reward", PartConfig(kind="lexicon").model_copy(update={"kind": NEW}), CPU, ROOM
    ),
    "judge.kind": lambda patch: judge_of(judge(NEW), CPU, ROOM),
    "judge.kind auto": lambda patch: judge_of(judge("auto"), CPU, ROOM),
    "reward.output": lambda patch: classifier()._score(["text"]),
    "data.source": lambda patch: load_corpus(DataConfig().model_copy(update={"source": NEW})),
    "data.prompt_unit": lambda patch: cut_at(NEW, None),
    "kl.control": lambda patch: scheduled(made(kl__control=NEW).kl.schedule, 0.5),
    "entropy.control": lambda patch: scheduled(made(entropy__control=NEW).entropy.schedule, 0.5),
    "kl.place": lambda patch: beta_in_reward(0.1, NEW),
    "kl.reward_estimator": lambda patch: non_score_reward(ONE, ONE, ONE > 0, 0.1, NEW),
    "algorithm.advantage": lambda patch: estimator_of(made(algorithm__advantage=NEW).algorithm),
    "algorithm.trust_region": lambda patch: surrogate_of(made(algorithm__trust_region=NEW).algorithm),
    "algorithm.aggregation": lambda patch: response_weights(ONE, ONE, 1, 1, made(algorithm__aggregation=NEW).algorithm),
    "kl.loss_estimator": lambda patch: kl_loss(ONE, ONE, ONE, NEW),
    "kl.loss_estimator of a group": lambda patch: group_kl_loss(ONE, NEW),
    "kl.group_credit": lambda patch: credited(ONE[None], ONE[None].long(), ONE[None] > 0, NEW),
    "optimiser.lr_schedule": lambda patch: lr_schedule(made(optimiser__lr_schedule=NEW), 1),
    "train.missing_eos": lambda patch: handle_missing_eos(ONE, ONE > 0, NEW, 1.0),
    "adapter.kind": lambda patch: choose_trained(torch.nn.Linear(1, 1), made(adapter__kind=NEW)),
    "adapter.quantize": lambda patch: quantize(model(), NEW, "adapter.quantize"),
    "critic.adapter": lambda patch: choose_trained_critic(torch.nn.Linear(1, 1), made(critic__adapter=NEW), 0),
    "critic.kind": lambda patch: critic(NEW, "reference", patch),
    "critic.init": lambda patch: critic("separate", NEW, patch),
}


@pytest.mark.parametrize("knob", CASES)
def test_a_made_up_kind_raises(knob: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((AssertionError, ValueError, KeyError), match=r"made_up|auto"):
        CASES[knob](monkeypatch)
