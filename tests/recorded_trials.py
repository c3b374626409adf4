"""Recorded trials: the smoke trial, really run; and one with a random reward model, of which nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from helpers import Recorder, put_record, smoke, write_sealed
from tinynets import network
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification

from pipeline.models.loading import prepared
from pipeline.models.tokenizers import train_tokenizer
from pipeline.rewards.learned import RewardModel
from pipeline.run.layout import Layout, TrialRecord
from pipeline.run.store import Artifact, read_manifest, write_manifest
from pipeline.trial import environment, run_trial

TEXTS = ["The acting was absolutely superb.", "The plot was dull and the cast not very good.", "It was bad."]
VOCAB = 300
BIAS, MEAN, STD = 0.7, 0.4, 1.7
"""Of the random reward model's head, and of its calibration."""


def recorded(layout: Layout, study: str = "demo", profile: str = "smoke", **changes: Any) -> TrialRecord:
    """The smoke trial as arm `base`, seed 0 of a study."""
    config = smoke(**changes)
    outcome = run_trial(config, layout, Recorder())
    paths = [one.path for one in outcome.artifacts.values()]
    measured = {"summary": dict(outcome.summary), "cost": dict(outcome.cost), "environment": environment()}
    record = put_record(layout, config, paths, study, profile, steps=outcome.steps, **measured)
    write_sealed(layout.study(study, profile).study_file, {})
    return record


def artifacts(layout: Layout, record: TrialRecord, stages: Iterable[str]) -> dict[str, Artifact]:
    """Return the artifacts of these stages of the trial."""
    found = {}
    for stage in stages:
        path = layout.root / record.stages[stage].path
        manifest = read_manifest(path)
        found[stage] = Artifact(stage, record.stages[stage].key, path, manifest.digest, manifest.meta)
    return found


def reward_model(kind: str, seed: int = 0) -> RewardModel:
    """A random trunk under a random head with a bias."""
    lm = prepared(network(kind, seed=seed, vocab_size=VOCAB, tie_word_embeddings=True))
    for parameter in lm.parameters():
        parameter.data.mul_(3.0)
    head = torch.nn.Linear(32, 1)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(seed))
    torch.nn.init.constant_(head.bias, BIAS)
    return RewardModel(lm, head)


def classifier(made: RewardModel, folder: Path) -> str:
    """Write the same network as a classifier with one output, which has no bias; its tokenizer adds EOS."""
    config = made.lm.config
    config.num_labels, config.id2label, config.label2id = 1, {0: "reward"}, {"reward": 0}
    network = AutoModelForSequenceClassification.from_config(config)
    network.model.load_state_dict(made.lm.model.state_dict())
    network.score.weight.data.copy_(made.head.weight)
    network.save_pretrained(folder)
    words = train_tokenizer(TEXTS * 3, VOCAB)
    end = [(words.eos_token, words.eos_token_id)]
    words.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {words.eos_token}", special_tokens=end)
    words.padding_side = "right"
    words.save_pretrained(folder)
    return str(folder)


def recorded_reward(layout: Layout, study: str = "made", kind: str = "qwen2") -> TrialRecord:
    """Trial STUDY/base/0 with a reward stage and a tokenizer, and no other stage."""
    config = smoke()
    prompts, reward = (layout.root / "store" / stage / f"{study}-{kind}" for stage in ("prompts", "reward"))
    train_tokenizer(TEXTS * 3, VOCAB).save_pretrained(prompts / "tokenizer")
    spec = config.reward.scorers()["reward"].model_dump(mode="json")
    made: dict[str, Any] = {"spec": spec, "mean": MEAN, "std": STD}
    reward_model(kind).save(reward)
    measured = {f"{key}{end}": 0.8 for key in ("accuracy", "accuracy_gold") for end in ("", "_low", "_high")}
    meta = {"kind": "learned", "judge": "grammar", "parts": {"reward": made}, "mean": 0.0, "std": 1.0, **measured}
    write_manifest(prompts, "prompts", prompts.name, {}, {})
    write_manifest(reward, "reward", reward.name, {}, meta)
    record = put_record(layout, config, (prompts, reward), study)
    write_sealed(layout.study(study, "smoke").study_file, {})
    return record
