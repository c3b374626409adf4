"""The five stages of a trial, one file each, and their declaration as a graph."""

from __future__ import annotations

from pipeline.config import TrialConfig
from pipeline.dag import Stage, code_digest
from pipeline.data.corpus import fingerprint
from pipeline.models.loading import base_fingerprint
from pipeline.stages.evaluate import evaluate
from pipeline.stages.ppo import ppo
from pipeline.stages.prompts import prompts
from pipeline.stages.reward import reward
from pipeline.stages.sft import sft

JUDGE = ("pipeline.data.semantics", "pipeline.data.grammar", "pipeline.data.lexicon")
"""The gold judge's meaning; the rest of pipeline.data only makes texts, and these are inputs."""


def _texts_and_base(config: TrialConfig) -> dict[str, str]:
    return {**fingerprint(config.data), **base_fingerprint(config.model)}


STAGES = (
    Stage(
        "prompts",
        prompts,
        ("data", "model.base", "model.revision"),
        ("pipeline.stages.prompts", "pipeline.data", "pipeline.models.loading", "pipeline.models.seeding"),
        outside=_texts_and_base,
    ),
    Stage(
        "sft",
        sft,
        ("sft", "model"),
        ("pipeline.stages.sft", "pipeline.models"),
        outside=lambda config: base_fingerprint(config.model),
    ),
    Stage(
        "reward",
        reward,
        ("reward", "judge", "ppo.response_length", "ppo.temperature"),
        ("pipeline.stages.reward", "pipeline.stages.common", "pipeline.rewards", "pipeline.models", *JUDGE),
    ),
    Stage(
        "ppo",
        ppo,
        ("ppo", "judge", "model"),
        (
            "pipeline.stages.ppo",
            "pipeline.stages.common",
            "pipeline.ppo",
            "pipeline.rewards",
            "pipeline.models",
            "pipeline.budget",
            "pipeline.stopping",
            *JUDGE,
        ),
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
            "pipeline.ppo.measure",
            "pipeline.ppo.kl",
            "pipeline.rewards",
            "pipeline.models",
            *JUDGE,
        ),
    ),
)
# The digest is taken when the code is imported, not when a stage runs: a file that is edited while a study
# runs must not give its name to what the code before it made.
for _stage in STAGES:
    code_digest(_stage.modules)
