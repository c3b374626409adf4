"""The configuration of one trial, all of it.

Every key that can change a result is part of some stage's identity (`pipeline.run.dag`); what cannot (device,
micro-batches, cadence of checkpoints) lives in ``runtime`` and is part of none. ``caps`` end a trial early and are part
of none either: a trial that has reached one goes on when it is raised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pipeline.config.algorithm import AlgorithmConfig, OptimiserConfig
from pipeline.config.base import Positive, Section, Seed, StrictlyPositive
from pipeline.config.data import DataConfig
from pipeline.config.entropy import EntropyConfig
from pipeline.config.floor import FloorConfig
from pipeline.config.kl import KlConfig
from pipeline.config.model import ModelConfig, SftConfig
from pipeline.config.networks import AdapterConfig, CriticConfig
from pipeline.config.pairs import check_pairs
from pipeline.config.presets import ADVANTAGES, check_natural_step, check_needs
from pipeline.config.rankings import check_rankings
from pipeline.config.replay import ReplayConfig, teaches
from pipeline.config.rewards import GUARDED, LEARNED, JudgeConfig, RewardConfig, Scorer
from pipeline.config.rounds import check_rounds, rounds_of
from pipeline.config.runtime import CapsConfig, RuntimeConfig
from pipeline.config.scorers import check_floor, check_scorers
from pipeline.config.train import TrainConfig
from pipeline.config.values import ValuesConfig

CONFIG_FOR_HASH = "pipeline.config/1"
PILES_UP = (
    "the gold judge (lexicon) counts happy words, so strings of praise win against it; with judge.kind"
    f" {GUARDED} text that no writer would write loses"
)


class EvaluateConfig(Section):
    """Held-out evaluation: one answer of the policy against several of the reference, by independent noise."""

    prompts: Annotated[Positive, Field(ge=2)] = Field(512, description="held-out prompts that are answered")
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
    texts: Positive = Field(
        256,
        description=(
            "held-out texts on which the perplexity of policy and reference is measured; there are at most"
            " data.heldout_prompts"
        ),
    )
    temperature: StrictlyPositive = Field(1.0, description="of sampling, for both networks")
    sample_rows: Positive = Field(16, description="prompts in the fixed sample table")
    seed: Seed = Field(
        0, description="of the sampling noise, which differs between policy and reference and is the same for every arm"
    )


class TrialConfig(Section):
    """Everything about one trial."""

    profile: str
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    sft: SftConfig = SftConfig()
    reward: RewardConfig = RewardConfig()
    judge: JudgeConfig = JudgeConfig()
    values: ValuesConfig = ValuesConfig()
    train: TrainConfig = TrainConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    kl: KlConfig = KlConfig()
    entropy: EntropyConfig = EntropyConfig()
    floor: FloorConfig = FloorConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    critic: CriticConfig = CriticConfig()
    replay: ReplayConfig = ReplayConfig()
    adapter: AdapterConfig = AdapterConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    caps: CapsConfig = CapsConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def gold(self) -> JudgeConfig:
        """The gold judge with `auto` resolved."""
        if self.judge.kind != "auto":
            return self.judge
        builtin = "helpful" if self.data.insults else "grammar"
        return self.judge.model_copy(update={"kind": builtin if self.data.source == "builtin" else GUARDED})

    @property
    def judges(self) -> dict[str, Scorer]:
        """The gold judge and the further ones, by the keys of their sections."""
        return {"judge": self.gold, **{f"judge.also.{name}": also for name, also in self.judge.also.items()}}

    @property
    def needs_judge(self) -> bool:
        """Whether the trial has the stage `judge`."""
        return bool(self.gold.kind == GUARDED)

    @property
    def gradient_steps(self) -> int:
        """Those that the trial is to take."""
        return self.train.steps if self.algorithm.learns else 0

    @property
    def rounds(self) -> int:
        """Times that preferences are collected; each ends with its share of the training."""
        return rounds_of(self)

    @property
    def needs_samples(self) -> bool:
        """Whether the trial has the stage `values`."""
        return self.algorithm.needs_values or self.pretrains_critic

    @property
    def pretrains_critic(self) -> bool:
        """Whether the trial has the stage `critic`."""
        return self.critic.kind != "none" and self.critic.pretraining_steps > 0

    @property
    def needs_labels(self) -> bool:
        """Whether some reward is learned from the labels of the texts."""
        return any(part.preferences == "labels" for part in self.reward.scorers().values())

    @property
    def learned_rewards(self) -> int:
        """Reward models that are trained: members of ensembles, over all parts."""
        return self.reward.ensemble * sum(part.kind in LEARNED for part in self.reward.scorers().values())

    @property
    def reward_classifiers(self) -> int:
        """Ready classifiers that reward."""
        return sum(part.model is not None for part in self.reward.scorers().values())

    @property
    def reward_pretraining(self) -> SftConfig | None:
        """How a scratch trunk of a learned reward becomes a language model; None where none does."""
        steps = self.reward.pretraining_steps
        if not self.learned_rewards or self.reward.trunk == "reference" or not steps:
            return None
        return self.sft.model_copy(update={"steps": steps, "seed": self.reward.seed})

    def cautions(self) -> list[str]:
        """What is allowed and yet likely to mislead, one line each."""
        scores = "lexicon" if self.gold.kind == GUARDED else self.gold.kind
        same = [
            name for name, part in self.reward.scorers().items() if (part.kind, part.model) == (scores, self.gold.model)
        ]
        what = f"'{self.gold.model}'" if self.gold.model else self.gold.kind
        where = ", ".join(f"reward.parts.{name}" for name in same) if self.reward.parts else "reward"
        shows = "can show no over-optimisation but gibberish" if self.needs_judge else "cannot show over-optimisation"
        lines = [f"the gold judge ({what}) is also what is trained on ({where}): win rates {shows}"] * bool(same)
        if self.gold.kind == "lexicon":
            lines += [PILES_UP]
        return lines

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        last = self.evaluate.first_prompt + self.evaluate.prompts
        if last > self.data.heldout_prompts:
            asked = f"evaluate.first_prompt {self.evaluate.first_prompt} + " * bool(self.evaluate.first_prompt)
            raise ValueError(
                f"{asked}evaluate.prompts {self.evaluate.prompts} is more than data.heldout_prompts"
                f" {self.data.heldout_prompts}; raise the latter to at least {last}"
            )
        check_needs(self.algorithm.advantage, self.critic.kind, self.train.responses_per_prompt)
        check_pairs(self)
        check_rounds(self)
        check_rankings(self)
        if self.algorithm.ratio == "none" and self.train.num_epochs > 1 and not self.kl.squares_throughout:
            unless = ", or a kl.beta above 0 in every update" * self.kl.by_sequence
            raise ValueError(
                f"algorithm.ratio 'none' does not correct a second pass over a rollout, and train.num_epochs is"
                f" {self.train.num_epochs}; use 1, or ratio: token{unless}"
            )
        if self.algorithm.by_sequence and self.kl.place == "reward":
            raise ValueError(
                f"algorithm.ratio '{self.algorithm.ratio}' needs one advantage for a whole response, and a KL penalty"
                " in the reward gives every token its own; use kl.place: score or loss"
            )
        if ADVANTAGES[self.algorithm.advantage].replay and self.replay.share < 1:
            raise ValueError(
                f"algorithm.advantage 'replay' needs values in every episode, and replay.share is"
                f" {self.replay.share:g}; use 1, or a critic with critic.target: replay"
            )
        if self.critic.warmup_steps >= self.train.steps:
            raise ValueError(
                f"critic.warmup_steps {self.critic.warmup_steps} leaves the policy none of train.steps"
                f" {self.train.steps}; use fewer"
            )
        self._check_units()
        self.values.check_enough(self.algorithm.v_star_samples)
        if self.algorithm.trust_region == "trpo":
            critic = self.critic
            check_natural_step(critic.kind, critic.vf_coef, self.adapter.quantize, self.kl)
        batch = self.train.batch_size
        self.kl.schedule.check_horizon("kl.horizon", "beta", self.kl.horizon, batch)
        self.entropy.schedule.check_horizon("entropy.horizon", "entropy.coef", self.entropy.horizon, batch)
        if self.train.mini_batch_size % self.runtime.processes:
            raise ValueError(
                f"runtime.processes {self.runtime.processes} does not divide a mini-batch of"
                f" {self.train.mini_batch_size} episodes (train.batch_size / train.num_mini_batches)"
            )
        check_scorers(self)
        check_floor(self)
        if self.needs_labels and self.data.source == "builtin":
            raise ValueError(
                "preferences 'labels' need labelled texts, data.source is 'builtin'; use judge, or texts of your own"
            )
        if self.critic.kind == "separate" and self.critic.init == "reward" and self.reward.kind != "learned":
            raise ValueError(
                f"critic.init 'reward' needs a reward that is a network with a score, reward.kind is"
                f" '{self.reward.kind}'; use learned"
            )
        if self.critic.kind == "separate" and self.critic.init == "reward" and self.reward.against != "none":
            raise ValueError(
                "critic.init 'reward' starts the critic at the reward model's score, and with reward.against"
                f" '{self.reward.against}' the reward is this score less that of opponents; use critic.init: reference,"
                " or against: none"
            )
        if self.critic.kind == "separate" and self.critic.init == "reward":
            self._check_critic_source()
        return self

    def _check_units(self) -> None:
        """Refuse rewards of variance 1 beside a critic that starts, or is fitted, in score units."""
        in_score_units = {
            "critic.target 'replay'": teaches(self),
            "critic.pretraining_steps": self.pretrains_critic,
            "critic.init 'reward'": self.critic.kind == "separate" and self.critic.init == "reward",
        }
        found = [key for key, holds in in_score_units.items() if holds]
        if found and self.algorithm.whiten_rewards:
            raise ValueError(
                f"the critic has score units ({', '.join(found)}), and algorithm.whiten_rewards divides its rewards by"
                " their standard deviation; use whiten_rewards: false"
            )

    def _check_critic_source(self) -> None:
        """Refuse a critic out of a reward that is several networks, or one of another size than the policy's."""
        if self.reward.ensemble > 1:
            raise ValueError(
                f"critic.init 'reward' needs one reward model, reward.ensemble is {self.reward.ensemble}; use"
                " critic.init: reference"
            )
        if self.reward.trunk != "reference":
            raise ValueError(
                f"critic.init 'reward' needs a reward model of the policy's shape, reward.trunk is"
                f" '{self.reward.trunk}'; use critic.init: reference"
            )

    def digest(self) -> str:
        """Hash of all that can change a result: sixteen hexadecimal digits."""
        content = self.model_dump(mode="json", exclude={"runtime", "caps", "profile"})
        return hashlib.sha256(canonical_json([CONFIG_FOR_HASH, content]).encode()).hexdigest()[:16]


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
