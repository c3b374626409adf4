"""What the rewards and judges of a configuration need of its other sections."""

from __future__ import annotations

from typing import Any

from pipeline.config.names import nearest
from pipeline.config.rewards import FURTHER, OF_GRAMMAR, OF_INSULTS, part_key

Config = Any
"""A `pipeline.config.trial.TrialConfig`, which is made in the layer above."""


def check_scorers(config: Config) -> None:
    """Refuse what understands built-in reviews or insults alone where there are none, and pairs that nobody labels.

    Raises `ValueError`.
    """
    for key, kind in _kinds(config).items():
        if kind in OF_GRAMMAR and config.data.source != "builtin":
            raise ValueError(
                f"{key} '{kind}' understands only built-in reviews, data.source is '{config.data.source}'; use lexicon"
                " or classifier"
            )
        if kind in OF_INSULTS and not config.data.insults:
            raise ValueError(f"{key} '{kind}' is about insults, and data.insults is 0; use a share above 0")
    for name, part in config.reward.scorers().items():
        judge = part.preferences.removeprefix(FURTHER)
        if part.preferences.startswith(FURTHER) and judge not in config.judge.also:
            key = part_key(name, config.reward.kind == "composite")
            there = ", ".join(config.judge.also) or "none"
            raise ValueError(
                f"{key}.preferences '{part.preferences}': judge.also has no '{judge}'"
                f"{nearest(judge, config.judge.also)}; there are: {there}"
            )


def _kinds(config: Config) -> dict[str, str]:
    """The kind of every scorer, by its key."""
    composite = config.reward.kind == "composite"
    rewards = {
        part_key(name, composite) if composite else "reward.kind": part.kind
        for name, part in config.reward.scorers().items()
    }
    further = {f"judge.also.{name}": also.kind for name, also in config.judge.also.items()}
    return {**rewards, "judge.kind": config.gold.kind, **further}


def check_floor(config: Config) -> None:
    """Refuse a floor of a part that is not there, and one where scores are not those of a rollout.

    Raises `ValueError`.
    """
    part, parts = config.floor.part, config.reward.parts
    if part is None:
        return
    if part not in parts:
        there = ", ".join(parts) or "none, since reward.kind is not composite"
        raise ValueError(
            f"floor.part '{part}': reward.parts has none of that name{nearest(part, parts)}; there are: {there}"
        )
    if len(parts) == 1:
        raise ValueError(
            f"floor.part '{part}' is the only part of the reward, so its weight changes nothing; add another part, or"
            " leave floor.part out"
        )
    if config.floor.weight > config.floor.max_weight:
        raise ValueError(
            f"floor.weight {config.floor.weight:g} is above floor.max_weight {config.floor.max_weight:g}; lower it"
        )
    if config.needs_samples:
        raise ValueError(
            "floor.part: the weight of the part moves in training, and algorithm.advantage v_star and"
            " critic.pretraining_steps use scores that were made before it; leave one of them out"
        )
    if config.train.data == "pairs":
        raise ValueError("floor.part acts on the scores of rollouts, and train.data is 'pairs'; use rollouts")
