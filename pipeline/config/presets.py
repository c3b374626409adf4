"""The algorithms by name, as settings of the knobs that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UserError

SHORT, NAME = "algorithm", "algorithm.name"
"""What users may write, and the key that it stands for."""


KNOBS = (
    "algorithm.advantage", "algorithm.ratio", "algorithm.trust_region", "algorithm.aggregation", "kl.place",
)  # fmt: skip
"""What tells one algorithm from another; the rest of a preset are settings that go with these."""


@dataclass(frozen=True)
class Preset:
    """An algorithm as settings. Whoever chooses it by name gets them, and may change each of them beside the name."""

    title: str
    summary: str
    settings: Mapping[str, Any]
    """On top of the profile."""


_NO_CRITIC = {"critic.kind": "none", "algorithm.whiten_advantages": False}
_NO_RATIO = {
    **_NO_CRITIC,
    "train.num_epochs": 1,  # without a ratio, a second pass would follow another policy's gradient
    "algorithm.ratio": "none",
    "algorithm.trust_region": "none",
    "algorithm.aggregation": "seq_mean_token_sum",
}
_GROUPS = {**_NO_CRITIC, "train.responses_per_prompt": 4}
_GRPO = {
    **_GROUPS,
    "algorithm.advantage": "group_norm",
    "algorithm.aggregation": "seq_mean_token_mean",
    "kl.place": "loss",
    "kl.loss_estimator": "k3",
}

_PAIRS = {
    **_NO_CRITIC,
    "train.responses_per_prompt": 2,
    "algorithm.advantage": "preference",
    "algorithm.ratio": "sequence_sum",
    "algorithm.trust_region": "dpo",
    "algorithm.aggregation": "seq_mean_token_mean",
    "kl.place": "margin",
}

PRESETS: dict[str, Preset] = {
    "ppo": Preset("PPO", "clipped ratio of every token, GAE from a learned critic", {}),  # the profiles are made for it
    "ppo_penalty": Preset(
        "PPO-penalty",
        "PPO with an adaptive penalty on the KL from the rollout's policy instead of the clip",
        {"algorithm.trust_region": "kl_penalty"},
    ),
    "trpo": Preset(
        "TRPO",
        "one natural-gradient step per rollout within a bound on the exact KL, GAE from a separate critic",
        {"algorithm.trust_region": "trpo", "critic.kind": "separate"},
    ),
    "reinforce": Preset(
        "REINFORCE",
        "gradient of the log-probability, score minus the mean of the rollout",
        {**_NO_RATIO, "algorithm.advantage": "reinforce", "kl.place": "score"},
    ),
    "remax": Preset(
        "ReMax",
        "gradient of the log-probability, reward minus that of the greedy response to the same prompt",
        {**_NO_RATIO, "algorithm.advantage": "remax"},
    ),
    "rloo": Preset(
        "RLOO",
        "clipped ratio of the whole response, score minus the mean of the other responses to the prompt",
        {
            **_GROUPS,
            "algorithm.advantage": "rloo",
            "algorithm.ratio": "sequence_sum",
            "algorithm.aggregation": "seq_mean_token_mean",
            "kl.place": "score",
        },
    ),
    "grpo": Preset("GRPO", "clipped ratio of every token, score standardised among the responses to the prompt", _GRPO),
    "dr_grpo": Preset(
        "Dr. GRPO",
        "GRPO without its two divisions: by the standard deviation and by the length",
        {**_GRPO, "algorithm.advantage": "group_mean", "algorithm.aggregation": "constant"},
    ),
    "lite_ppo": Preset(
        "Lite PPO",
        "clipped ratio of every token, group mean and the standard deviation of all scores",
        {**_GRPO, "algorithm.advantage": "group_mean_batch_std", "algorithm.aggregation": "token_mean"},
    ),
    "vine_ppo": Preset(
        "VinePPO",
        "clipped ratio of every token, values of states by sampling them onwards instead of a learned critic",
        {"critic.kind": "none", "algorithm.advantage": "replay", "algorithm.gae_lambda": 0.0},
    ),
    "reinforce_pp": Preset(
        "REINFORCE++",
        "clipped ratio of every token, rewards to the end of the response, whitened over all tokens",
        {"critic.kind": "none", "algorithm.advantage": "reinforce_pp", "algorithm.whiten_advantages": True},
    ),
    "gspo": Preset(
        "GSPO",
        "GRPO with the clipped geometric mean of a response's ratios",
        {
            **_GRPO,
            "algorithm.ratio": "sequence_mean",
            "algorithm.clip.epsilon": 3e-4,
            "algorithm.clip.epsilon_high": 4e-4,
        },
    ),
    "cispo": Preset(
        "CISPO",
        "GRPO with the capped ratio as a constant weight of the gradient, so that no token loses its gradient",
        {**_GRPO, "algorithm.trust_region": "cispo", "algorithm.aggregation": "token_mean"},
    ),
    "dapo": Preset(
        "DAPO",
        "GRPO with a larger clip range above 1, a mean over tokens, and a penalty on overlong responses",
        {
            **_GRPO,
            "algorithm.aggregation": "token_mean",
            "algorithm.clip.epsilon_high": 0.28,
            "train.missing_eos": "none",
            "train.overlong_share": 0.2,
        },
    ),
    "best_of_n": Preset(
        "best of n",
        "no training: the reference answers with the best of several samples by the training reward",
        {"critic.kind": "none", "algorithm.advantage": "none", "evaluate.best_of": 8},
    ),
    "a_star_po": Preset(
        "A*-PO",
        "least squares: beta times the log-ratio of the response to the reference is fitted to score minus V*",
        {
            **_NO_CRITIC,
            "train.num_epochs": 1,
            "train.responses_per_prompt": 1,
            "algorithm.advantage": "v_star",
            "algorithm.ratio": "none",
            "algorithm.trust_region": "none",
            "algorithm.aggregation": "seq_mean_token_sum",
            "kl.place": "loss",
            "kl.loss_estimator": "k2",
            "kl.group": "sequence",
        },
    ),
    "dpo": Preset(
        "DPO",
        "logistic loss of the margin between the two responses of a stored pair, no rollouts to learn from",
        {**_PAIRS, "train.data": "pairs"},
    ),
    "ipo": Preset(
        "IPO",
        "squared distance of a stored pair's margin per token from 1 / (2 beta), no rollouts to learn from",
        {
            **_PAIRS,
            "train.data": "pairs",
            "algorithm.ratio": "sequence_mean",
            "algorithm.trust_region": "ipo",
        },
    ),
    "online_dpo": Preset(
        "online DPO", "DPO on two fresh responses to each prompt, of which the reward prefers one", _PAIRS
    ),
}


def spelled_out(changes: Mapping[Any, Any]) -> dict[Any, Any]:
    """``algorithm: rloo`` as what it stands for, ``algorithm.name: rloo``. Raises `UserError` where both are given.

    >>> spelled_out({"algorithm": "rloo", "kl.beta": 0.1})
    {'algorithm.name': 'rloo', 'kl.beta': 0.1}
    """
    if SHORT in changes and NAME in changes:
        raise UserError(f"'{SHORT}' and '{NAME}' are the same key; give it once")
    return {NAME if key == SHORT else key: value for key, value in changes.items()}


def preset_of(steps_per_update: tuple[int, int], *changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the algorithm that the last of these changes names; nothing where none names one.

    They are applied to the profile first: whatever is set beside the name, or by ``--set``, wins. `steps_per_update`
    are the profile's epochs and mini-batches: an algorithm of one epoch takes as many, smaller steps on each rollout,
    so that all algorithms have as many gradient steps and episodes. An algorithm's ``kl.group`` goes with a penalty in
    the loss, and is left out where the changes put the penalty elsewhere.
    """
    named = [str(change[NAME]) for change in changes if NAME in change]
    preset = PRESETS.get(named[-1]) if named else None
    if preset is None:
        return {}
    settings = dict(preset.settings)
    places = [change["kl.place"] for change in (settings, *changes) if "kl.place" in change]
    if places and places[-1] != "loss":
        settings.pop("kl.group", None)  # it is part of a loss, and would group a penalty in the reward
    epochs, mini_batches = steps_per_update
    if (own := settings.get("train.num_epochs")) is not None:
        settings["train.num_mini_batches"] = epochs * mini_batches // own
    return settings
