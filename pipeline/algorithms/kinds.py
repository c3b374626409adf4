"""Kinds of advantages, trust regions and parts of training, one line each.

Settings, schema, messages and code are found by these lines. Code is imported when a trial needs it, settings need no
torch, and a line whose code is not chosen is part of no key. A new kind is a file with its code, its settings beside
it where it has some, and a line here.

Imports nothing outside the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Advantage:
    """A value of ``algorithm.advantage``."""

    words: str
    code: str | None
    """``module:name`` of its `pipeline.algorithms.base.Estimator`; None where the policy is not trained at all."""
    settings: str | None = None
    """``module:class``; they stand in the section of `algorithm` that has its name."""
    critics: tuple[str, ...] = ("none",)
    """Values of ``critic.kind`` that it works with."""
    least_responses: int = 1
    """Smallest ``train.responses_per_prompt``."""
    most_responses: int | None = None
    """Largest ``train.responses_per_prompt``; None: any number."""
    varies: bool = False
    """True where the tokens of a response have different advantages, wherever the KL penalty is."""
    greedy: bool = False
    """True where a rollout also samples the greedy response to each of its prompts."""
    replay: bool = False
    """True where states of the rollout are sampled onwards."""
    values: bool = False
    """True where scored samples of the reference are needed for every prompt: the stage `values`."""


@dataclass(frozen=True)
class TrustRegion:
    """A value of ``algorithm.trust_region``."""

    words: str
    code: str
    """``module:name`` of its `pipeline.algorithms.base.Surrogate`; for a loss of pairs, of its
    `pipeline.algorithms.mathematics.preference.PairLoss`."""
    settings: str | None = None
    """``module:class``; they stand in the section of `algorithm` that has its name."""
    learner: str = "pipeline.training.update:Learner"
    """``module:class`` of what takes the steps of an update."""
    pairwise: bool = False
    """True for a loss of pairs of responses."""


@dataclass(frozen=True)
class PartKind:
    """A part of training, which acts on a trial beside the gradient of surrogate and critic."""

    code: str
    """``module:class`` of its `pipeline.training.part.Part`."""
    settings: str | None = None
    """``module:class`` of its `pipeline.config.base.PartSettings`, which stand in the section that has its name."""
    section: str = ""
    """Key of the section that a part without its own reads."""


ADVANTAGES: dict[str, Advantage] = {
    "gae": Advantage(
        "GAE from a learned critic", "pipeline.algorithms.gae:by_critic", critics=("shared", "separate"), varies=True
    ),
    "reinforce": Advantage("score minus the mean score of the rollout", "pipeline.algorithms.baselines:batch_mean"),
    "rloo": Advantage(
        "score minus the mean of the other responses to the prompt",
        "pipeline.algorithms.baselines:rloo",
        least_responses=2,
    ),
    "group_mean": Advantage(
        "score minus the mean of the responses to the prompt",
        "pipeline.algorithms.baselines:group_mean",
        least_responses=2,
    ),
    "group_norm": Advantage(
        "the same, divided by the standard deviation of the responses to the prompt",
        "pipeline.algorithms.baselines:group_norm",
        least_responses=2,
    ),
    "group_mean_batch_std": Advantage(
        "the same, divided by the standard deviation of all scores of the rollout",
        "pipeline.algorithms.baselines:group_mean_batch_std",
        least_responses=2,
    ),
    "remax": Advantage(
        "rewards from a token to the end of its response, minus the reward of the greedy response to the prompt",
        "pipeline.algorithms.baselines:remax",
        varies=True,
        greedy=True,
    ),
    "reinforce_pp": Advantage(
        "rewards from a token to the end of its response", "pipeline.algorithms.baselines:rewards_to_go", varies=True
    ),
    "replay": Advantage(
        "GAE between states of the response that are sampled onwards and scored",
        "pipeline.algorithms.replay:by_replay",
        varies=True,
        replay=True,
    ),
    "none": Advantage("no gradient step is taken, so the policy is the reference", None),
    "v_star": Advantage(
        "score minus V* of the prompt, the soft maximum of the scores of samples of the reference",
        "pipeline.algorithms.baselines:against_v_star",
        "pipeline.algorithms.settings:VStarSettings",
        values=True,
    ),
    "preference": Advantage(
        "1 for the better of the two responses to a prompt, -1 for the other, 0 for equal ones",
        "pipeline.algorithms.baselines:preference",
        least_responses=2,
        most_responses=2,
    ),
}

TRUST_REGIONS: dict[str, TrustRegion] = {
    "clip": TrustRegion(
        "no gain from a ratio beyond the clip range",
        "pipeline.algorithms.surrogates:clipped",
        "pipeline.algorithms.settings:ClipSettings",
    ),
    "cispo": TrustRegion(
        "the ratio, capped at cispo.cap, is a constant weight",
        "pipeline.algorithms.surrogates:capped",
        "pipeline.algorithms.settings:CispoSettings",
    ),
    "none": TrustRegion("no bound", "pipeline.algorithms.surrogates:unbounded"),
    "kl_penalty": TrustRegion(  # the penalty is a part: `old_kl`
        "adaptive penalty on the KL from the rollout's policy",
        "pipeline.algorithms.surrogates:unbounded",
        "pipeline.algorithms.settings:KlPenaltySettings",
    ),
    "trpo": TrustRegion(  # the step is bounded, not the loss
        "one natural-gradient step per rollout, with a bound on the exact KL",
        "pipeline.algorithms.surrogates:unbounded",
        "pipeline.algorithms.settings:TrpoSettings",
        learner="pipeline.training.natural_step:NaturalLearner",
    ),
    "dpo": TrustRegion(
        "no bound, the logistic loss of the margin between the two responses to a prompt",
        "pipeline.algorithms.mathematics.preference:DPO",
        learner="pipeline.training.pairs:PairLearner",
        pairwise=True,
    ),
    "ipo": TrustRegion(
        "no bound, the squared distance of that margin from 1 / (2 beta)",
        "pipeline.algorithms.mathematics.preference:IPO",
        learner="pipeline.training.pairs:PairLearner",
        pairwise=True,
    ),
}

PARTS: dict[str, PartKind] = {
    "kl": PartKind("pipeline.training.parts.kl:KlToReference", section="kl"),
    "entropy": PartKind(
        "pipeline.training.parts.entropy:EntropyBonus", "pipeline.training.parts.entropy_settings:EntropyConfig"
    ),
    "floor": PartKind("pipeline.training.parts.floor:Floor", "pipeline.training.parts.floor_settings:FloorConfig"),
    "warm_up": PartKind("pipeline.training.parts.brakes:WarmUp", section="critic"),
    "guard": PartKind("pipeline.training.parts.brakes:Guard", section="optimiser"),
    "hinge": PartKind("pipeline.training.parts.brakes:Hinge", section="kl"),
    "old_kl": PartKind("pipeline.training.parts.old_kl:OldKl", section="algorithm.kl_penalty"),
    "target_kl": PartKind("pipeline.training.parts.brakes:TargetKl", section="algorithm"),
    "stop": PartKind("pipeline.training.parts.stop:StopRules", section="train"),
}
"""Parts of training, in the order of their factors on the learning rate and of their terms in the loss."""
