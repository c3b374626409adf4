"""The stages of a trial, one file each, and their declaration as a graph; importing it imports none of them."""

from __future__ import annotations

from pipeline.config.names import TRAINING
from pipeline.run.dag import Stage, code_digest
from pipeline.stages import pausing, sources

JUDGE = ("pipeline.data.semantics", "pipeline.data.reviews", "pipeline.data.vocabulary")
"""The gold judge's meaning; the rest of pipeline.data only makes texts, and these are inputs."""
SUPERVISED = (
    "pipeline.training.supervised",
    "pipeline.resources.out_of_memory",
    "pipeline.stages.spending",
    "pipeline.resources.chunking",
    "pipeline.resources.machine",
)
"""Gradient steps outside of PPO."""
HELDOUT = ("evaluate.prompts", "evaluate.first_prompt", "evaluate.temperature", "evaluate.seed")
"""Which prompts are answered, and by which noise."""


STAGES = (
    Stage(
        "prompts",
        "pipeline.stages.prompts:prompts",
        ("data", "model.base", "model.revision", "needs_labels"),
        (
            "pipeline.stages.prompts",
            "pipeline.data",
            "pipeline.models.pretrained_tokenizer",
            "pipeline.models.seeding",
        ),
        outside=sources.texts_and_base,
    ),
    Stage(
        "sft",
        "pipeline.stages.sft:sft",
        ("sft", "model"),
        ("pipeline.stages.sft", "pipeline.models", "pipeline.models.cpu", *SUPERVISED),
        outside=sources.base,
        precision=sources.precision,
    ),
    Stage(
        "reward",
        "pipeline.stages.reward:reward",
        ("reward", "gold", "train.response_length", "train.temperature"),
        (
            "pipeline.stages.reward",
            "pipeline.stages.preference_pairs",
            "pipeline.stages.common",
            "pipeline.models.cpu",
            "pipeline.intervals",
            "pipeline.rewards",
            "pipeline.models",
            "pipeline.data.preferences",
            "pipeline.data.text_episodes",
            "pipeline.data.files",
            "pipeline.data.cleaning",
            *SUPERVISED,
            *JUDGE,
        ),
        outside=sources.scorers_and_pairs,
        precision=sources.precision,
    ),
    Stage(
        "reference",
        "pipeline.stages.reference:reference",
        (*HELDOUT, "evaluate.reference_draws", "gold", "train.response_length"),
        (
            "pipeline.stages.reference",
            "pipeline.stages.heldout",
            "pipeline.stages.common",
            "pipeline.models.cpu",
            "pipeline.intervals",
            "pipeline.rewards",
            "pipeline.models",
            *SUPERVISED,
            *JUDGE,
        ),
        outside=sources.scorers,
        precision=sources.precision,
    ),
    Stage(
        "values",
        "pipeline.stages.values:values",
        ("values", "train.response_length", "train.temperature"),
        (
            "pipeline.stages.values",
            "pipeline.stages.scored_samples",
            "pipeline.stages.common",
            "pipeline.models.cpu",
            "pipeline.rewards",
            "pipeline.models",
            "pipeline.resources.ledger",
            *SUPERVISED,
            *JUDGE,
        ),
        outside=sources.scorers,
        only=lambda config: config.needs_samples,
        precision=sources.precision,
    ),
    Stage(
        "critic",
        "pipeline.stages.critic:critic",
        (
            "critic.kind",
            "critic.init",
            "critic.pretraining_steps",
            "critic.pretraining_lr",
            "adapter",
            "values.seed",
            "algorithm.gamma",
            "train.response_length",
            "train.batch_size",
            "train.missing_eos",
            "train.missing_eos_penalty",
            "train.overlong_share",
            "train.overlong_penalty",
        ),
        (
            "pipeline.stages.critic",
            "pipeline.stages.new_actor",
            "pipeline.stages.scored_samples",
            "pipeline.stages.common",
            "pipeline.models.cpu",
            "pipeline.algorithms",
            "pipeline.training.judging",
            "pipeline.training.processes",
            "pipeline.training.token_stats",
            "pipeline.training.value_pretraining",
            "pipeline.rewards",
            "pipeline.models",
            "pipeline.resources.ledger",
            *SUPERVISED,
            *JUDGE,
        ),
        only=lambda config: config.pretrains_critic,
        precision=sources.precision,
    ),
    Stage(
        "train",
        "pipeline.stages.train:train",
        (*TRAINING, "gold", "model"),
        (
            "pipeline.stages.train",
            "pipeline.stages.new_actor",
            "pipeline.config.replay",
            "pipeline.stages.scored_samples",
            "pipeline.stages.launch",
            "pipeline.stages.pausing",
            "pipeline.stages.common",
            "pipeline.models.cpu",
            "pipeline.algorithms",
            "pipeline.training",
            "pipeline.rewards",
            "pipeline.models",
            "pipeline.resources.chunking",
            "pipeline.resources.machine",
            "pipeline.resources.ledger",
            "pipeline.resources.out_of_memory",
            "pipeline.run.stopping",
            *JUDGE,
        ),
        resumable=True,
        unfinished=pausing.raised_cap,
        kept=pausing.KEPT,
        outside=sources.scorers,
        precision=sources.precision,
    ),
    Stage(
        "evaluate",
        "pipeline.stages.evaluate:evaluate",
        (*HELDOUT, "evaluate.sample_rows", "gold", "train.response_length"),
        (
            "pipeline.stages.evaluate",
            "pipeline.stages.heldout",
            "pipeline.stages.common",
            "pipeline.models.cpu",
            "pipeline.intervals",
            "pipeline.training.token_stats",
            "pipeline.models.lm_head",
            "pipeline.algorithms.mathematics.kl",
            "pipeline.rewards",
            "pipeline.models",
            *SUPERVISED,
            *JUDGE,
        ),
        outside=sources.scorers,
        precision=sources.precision,
    ),
)
# The digest is taken here, not when a stage runs: a file that is edited while a study runs must not give its name to
# what the code before it made.
for _stage in STAGES:
    code_digest(_stage.modules)
