"""The configuration of one trial, all of it.

Every key that can change a result is part of some stage's identity (`pipeline.run.dag`); what cannot (device,
micro-batches, cadence of checkpoints) lives in ``runtime`` and is part of none. ``caps`` end a trial early and are part
of none either: a trial that has reached one goes on when it is raised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.algorithms.kinds import PARTS
from pipeline.algorithms.settings import LEARNS, KlConfig
from pipeline.config.algorithm import AlgorithmConfig, OptimiserConfig
from pipeline.config.base import Positive, Section, Seed, StrictlyPositive, with_settings
from pipeline.config.checks import check_combinations
from pipeline.config.effects import content_of, setting
from pipeline.config.networks import AdapterConfig, CriticConfig, ModelConfig, SftConfig
from pipeline.config.train import REPLAY, SAMPLES_USED, ReplayConfig, TrainConfig, ValuesConfig
from pipeline.data.settings import DataConfig
from pipeline.rewards.kinds import GUARDED
from pipeline.rewards.settings import JudgeConfig, RewardConfig, ScorerConfig, is_judged

CONFIG_FOR_HASH = "pipeline.config/1"
PILES_UP = (
    "the gold judge (lexicon) counts happy words, so strings of praise win against it; with judge.kind"
    f" {GUARDED} text that no writer would write loses"
)


class EvaluateConfig(Section):
    """Held-out evaluation: one answer of the policy against several of the reference, by independent noise."""

    prompts: Annotated[Positive, Field(ge=2)] = Field(512, description="number of held-out prompts to answer")
    first_prompt: Annotated[int, Field(ge=0)] = Field(
        0,
        description=(
            "held-out prompts before the first one that is answered; the confirmation of a search passes over those it"
            " used"
        ),
    )
    # Measured on `tiny` (512 prompts, beta 0.05, 512 steps): with k = 1, 2, 4, 8, 16 the standard error of the win rate
    # is 2.0, 1.7, 1.5, 1.4, 1.3 points (1.3 is what the prompts and the policy's own draws leave), that of the
    # reference's gold score 0.114, 0.083, 0.059, 0.044, 0.033 points. A draw costs a quarter of what a policy's
    # evaluation costs, and all trials share it.
    reference_draws: Positive = Field(
        8, description="answers of the reference to each prompt, drawn once for all trials"
    )
    best_of: Positive = Field(
        1,
        description=(
            "samples of the policy for each prompt, of which it answers with the best by the training reward; the gold"
            " judge never chooses"
        ),
    )
    passes: Annotated[Positive, setting("data.source", "chains"), setting("evaluate.best_of", 1)] = Field(
        1,
        description=(
            "answers of the policy to each prompt, for pass@k: the probability that one of k answers (1, 4, 16, 64) is"
            " right. The first answer is the one that is judged"
        ),
    )
    kl_gradient: Annotated[
        Literal["exact", "k1_reward", "k1_score", "k1_loss", "k2_loss", "k3_loss"] | None,
        setting("evaluate.best_of", 1),
    ] = Field(
        None,
        description=(
            "estimator of the KL, and its place, whose gradient at the trained policy is compared with that of the"
            " exact KL. k1_score is on average also that of k2 of whole responses in the loss"
        ),
    )
    sample_rows: Positive = Field(16, description="prompts in the fixed sample table")
    seed: Seed = Field(
        0,
        description="seed of the sampling noise: equal for all arms, different for policy and reference",
    )


class RuntimeConfig(Section):
    """Execution of a trial: changes no result and is part of no stage's identity.

    The exception is the numeric precision, which follows from the device and is part of the identity by itself
    (`pipeline.run.dag`). The sampler of rollouts counts as part of it: its rounding decides which texts are drawn.
    """

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU where there is one")
    threads: Positive = Field(1, description="CPU threads of one process of a trial")
    processes: Positive = Field(
        1, description="processes that share the training of one trial, each with its own GPU where there are any"
    )
    micro_batch_size: Positive = Field(64, description="episodes in memory at once during training")
    rollout_batch_size: Positive = Field(512, description="episodes in memory at once during generation and scoring")
    checkpoint_updates: Positive = Field(16, description="least number of updates between two checkpoints")
    checkpoint_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        0.02,
        description=(
            "largest share of a trial's time that checkpoints may take, so that they are rarer on a slow disk; none:"
            " checkpoint_updates alone decides"
        ),
    )
    gradient_checkpointing: bool = Field(False, description="compute activations twice instead of keeping them")
    sampler: Literal["auto", "eager", "static"] = Field(
        "auto",
        description=(
            "how rollouts are sampled. static: transformers' generate with a static cache, and on a GPU compiled decode"
            " steps; eager: one forward per token; auto: static on a GPU"
        ),
    )
    code: str | None = Field(
        None,
        description=(
            "folder in which classes of your own (kind: package.module:Class) are looked for before PYTHONPATH; a study"
            " sets it to the folder of its file"
        ),
    )

    def static_sampler(self, on_card: bool) -> bool:
        return self.sampler == "static" or (self.sampler == "auto" and on_card)


class CapsConfig(Section):
    """Limits of what a trial may spend; at a cap it ends as `budget`. Part of no stage's identity: a larger cap
    continues it."""

    wall_clock_h: StrictlyPositive = Field(2.5, description="most hours of training")
    generated_tokens: Positive = Field(50_000_000, description="largest number of tokens sampled in rollouts")
    memory_gib: StrictlyPositive = Field(
        14.6, description="peak memory: RSS on a CPU, allocator on a GPU, which enforces it"
    )


@with_settings(PARTS, LEARNS)
class TrialConfig(Section):
    """Everything about one trial."""

    profile: str
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sft: SftConfig = SftConfig()
    reward: RewardConfig = RewardConfig()
    judge: JudgeConfig = JudgeConfig()
    values: Annotated[ValuesConfig, SAMPLES_USED] = ValuesConfig()
    train: Annotated[TrainConfig, LEARNS] = TrainConfig()
    algorithm: Annotated[AlgorithmConfig, LEARNS] = AlgorithmConfig()
    kl: Annotated[KlConfig, LEARNS] = KlConfig()
    optimiser: Annotated[OptimiserConfig, LEARNS] = OptimiserConfig()
    critic: Annotated[CriticConfig, LEARNS] = CriticConfig()
    replay: Annotated[ReplayConfig, LEARNS, REPLAY] = ReplayConfig()
    adapter: Annotated[AdapterConfig, LEARNS] = AdapterConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    caps: CapsConfig = CapsConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def gold(self) -> JudgeConfig:
        """The gold judge with `auto` resolved."""
        if self.judge.kind != "auto":
            return self.judge
        builtin = "helpful" if self.data.builtin.insults else "grammar"
        kind = {"builtin": builtin, "chains": "verifier"}.get(self.data.source, GUARDED)
        return self.judge.model_copy(update={"kind": kind})

    @property
    def judges(self) -> dict[str, ScorerConfig]:
        """The gold judge and the further ones, by the keys of their sections."""
        return {"judge": self.gold, **{f"judge.also.{name}": also for name, also in self.judge.also.items()}}

    @property
    def scorers(self) -> dict[str, ScorerConfig]:
        """Every judge and every reward, by the keys of their sections."""
        return {**self.judges, **{self.reward.key(name): part for name, part in self.reward.scorers().items()}}

    @property
    def needs_judge(self) -> bool:
        return bool(self.gold.kind == GUARDED)

    @property
    def gradient_steps(self) -> int:
        return self.train.steps if self.algorithm.learns else 0

    @property
    def rounds(self) -> int:
        """Times that preferences are collected, each followed by its share of the training; 1 where no judge labels
        pairs, or nothing is trained."""
        judged = any(is_judged(part.preferences) for part in self.reward.trained().values())
        return self.reward.learned.rounds if judged and self.algorithm.learns else 1

    @property
    def needs_samples(self) -> bool:
        return self.algorithm.needs_values or self.pretrains_critic

    @property
    def pretrains_critic(self) -> bool:
        return self.critic.kind != "none" and self.critic.pretraining_steps > 0

    def cautions(self) -> list[str]:
        """Return what is allowed and yet likely to mislead, one line each."""
        scores = "lexicon" if self.gold.kind == GUARDED else self.gold.kind
        same = [
            name
            for name, part in self.reward.scorers().items()
            if (part.kind, _model(part)) == (scores, _model(self.gold))
        ]
        model = _model(self.gold)
        what = f"'{model}'" if model else self.gold.kind
        where = ", ".join(f"reward.parts.{name}" for name in same) if self.reward.parts else "reward"
        shows = "can show no over-optimisation but gibberish" if self.needs_judge else "cannot show over-optimisation"
        lines = [f"the gold judge ({what}) is also what is trained on ({where}): win rates {shows}"] * bool(same)
        if self.gold.kind == "lexicon":
            lines += [PILES_UP]
        return lines

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        check_combinations(self)
        for name, part in PARTS.items():
            if part.settings is not None:
                getattr(self, name).check(self)
        return self

    def digest(self) -> str:
        """Hash of all that can change a result: sixteen hexadecimal digits."""
        content = {
            name: value for name, value in content_of(self, self).items() if name not in ("runtime", "caps", "profile")
        }
        return hashlib.sha256(canonical_json([CONFIG_FOR_HASH, content]).encode()).hexdigest()[:16]


def _model(scorer: ScorerConfig) -> str | None:
    return str(scorer.chosen.model) if scorer.kind == "classifier" else None


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, value)`` of nested mappings.

    >>> dict(flatten({"optimiser": {"lr": 0.1}, "profile": "tiny"}))
    {'optimiser.lr': 0.1, 'profile': 'tiny'}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
