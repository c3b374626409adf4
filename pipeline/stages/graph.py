"""The stages of a trial, declared as a graph; importing it imports none of them."""

from __future__ import annotations

from pipeline.algorithms.kinds import PARTS
from pipeline.config.names import TRAINING
from pipeline.config.trial import TrialConfig
from pipeline.resources.ledger import KEPT, raised_cap
from pipeline.run.dag import Stage
from pipeline.stages import sources

REFERENCE = ("adapter.quantize",)
"""Settings of the reference beside those of the SFT model."""
JUDGED = (
    "evaluate.prompts", "evaluate.first_prompt", "evaluate.seed", *REFERENCE, "gold", "train.response_length"
)  # fmt: skip
"""Settings of the answered prompts, of the noise and length of the answers, and of the judges."""
CRITIC = (
    *REFERENCE, "critic.kind", "critic.init", "critic.pretraining_steps", "critic.adapter", "critic.quantize",
    "adapter.rank", "adapter.alpha", "algorithm.gamma", "train.response_length", "train.batch_size",
    "train.missing_eos", "train.missing_eos_penalty", "train.overlong_share", "train.overlong_penalty",
)  # fmt: skip
"""Settings of the critic that is trained before the policy, and of what it learns."""


def _rewards(config: TrialConfig) -> set[str]:
    return {part.kind for part in config.reward.scorers().values()}


def _scorers(config: TrialConfig) -> set[str]:
    return _rewards(config) | {config.gold.kind} | {also.kind for also in config.judge.also.values()}


def _trained(config: TrialConfig) -> set[str]:
    parts = {name for name, part in PARTS.items() if part.settings is None or getattr(config, name).acts}
    return _scorers(config) | parts | {config.algorithm.advantage, config.algorithm.trust_region}


STAGES = (
    Stage(
        "prompts",
        "pipeline.stages.prompts:prompts",
        ("data", "model.base", "model.revision"),
        outside=sources.texts_and_base,
    ),
    Stage(
        "judge",
        "pipeline.stages.judge:judge",
        ("gold", "data.prompt_unit", "data.prompt_length", "data.seed", "train.response_length"),
        only=lambda config: config.needs_judge,
    ),
    Stage(
        "sft",
        "pipeline.stages.sft:sft",
        ("sft", "model"),
        outside=sources.base,
        precision=sources.precision,
    ),
    Stage(
        "reward",
        "pipeline.stages.reward:reward",
        ("reward", "rounds", "gold", "train.response_length", "train.temperature"),
        kinds=_scorers,
        outside=sources.scorers_and_pairs,
        precision=sources.precision,
        rounds=lambda config: config.rounds,
    ),
    Stage(
        "reference",
        "pipeline.stages.reference:reference",
        (*JUDGED, "evaluate.reference_draws"),
        kinds=_scorers,
        outside=sources.scorers,
        precision=sources.precision,
    ),
    Stage(
        "values",
        "pipeline.stages.values:values",
        ("values", *REFERENCE, "train.response_length", "train.temperature"),
        kinds=_rewards,
        outside=sources.scorers,
        only=lambda config: config.needs_samples,
        precision=sources.precision,
    ),
    Stage(
        "critic",
        "pipeline.stages.critic:critic",
        CRITIC,
        only=lambda config: config.pretrains_critic,
        precision=sources.precision,
    ),
    Stage(
        "train",
        "pipeline.stages.train:train",
        (*TRAINING, "gold", "model", "rounds", "reward.dense"),
        kinds=_trained,
        resumable=True,
        unfinished=lambda config, artifact: raised_cap(config, artifact.meta),
        kept=KEPT,
        outside=sources.scorers,
        precision=sources.rollout_precision,
        rounds=lambda config: config.rounds,
    ),
    Stage(
        "evaluate",
        "pipeline.stages.evaluate:evaluate",
        (
            *JUDGED,
            *(f"evaluate.{name}" for name in ("best_of", "passes", "kl_gradient", "sample_rows")),
            "sft.max_tokens",
        ),
        kinds=_scorers,
        outside=sources.scorers,
        precision=sources.precision,
    ),
)
# Sources are read here, not when a stage runs: a file that is edited while a study runs must not give its name to what
# the code before it made.
for _stage in STAGES:
    _stage.read()
