"""The five stages of a trial, one file each, and their declaration as a graph."""

from __future__ import annotations

from pipeline.dag import Stage, code_digest
from pipeline.stages.evaluate import evaluate
from pipeline.stages.ppo import ppo
from pipeline.stages.prompts import prompts
from pipeline.stages.reward import reward
from pipeline.stages.sft import sft

STAGES = (
    Stage(
        "prompts",
        prompts,
        ("data", "model.base", "model.revision"),
        ("pipeline.stages.prompts", "pipeline.data", "pipeline.models.loading"),
    ),
    Stage("sft", sft, ("sft", "model"), ("pipeline.stages.sft", "pipeline.models")),
    Stage(
        "reward",
        reward,
        ("reward", "judge", "ppo.response_length", "ppo.temperature"),
        ("pipeline.stages.reward", "pipeline.stages.common", "pipeline.rewards", "pipeline.models", "pipeline.data.semantics"),
    ),
    Stage(
        "ppo",
        ppo,
        ("ppo", "judge", "model"),
        ("pipeline.stages.ppo", "pipeline.stages.common", "pipeline.ppo", "pipeline.rewards", "pipeline.models", "pipeline.data.semantics"),
        resumable=True,
    ),
    Stage(
        "evaluate",
        evaluate,
        ("evaluate", "judge", "ppo.response_length"),
        (
            "pipeline.stages.evaluate",
            "pipeline.stages.common",
            "pipeline.intervals",
            "pipeline.rewards",
            "pipeline.models",
            "pipeline.data.semantics",
        ),
    ),
)
# The digest is taken when the code is imported, not when a stage runs: a file that is edited while a study
# runs must not give its name to what the code before it made.
for _stage in STAGES:
    code_digest(_stage.modules)
SHARED = ("prompts", "sft", "reward")
"""Stages that the trials of a study have in common."""
