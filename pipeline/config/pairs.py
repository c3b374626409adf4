"""What a loss of pairs needs, and what stored pairs change."""

from __future__ import annotations

from pipeline.algorithms.kinds import TRUST_REGIONS
from pipeline.config.effects import Config
from pipeline.rewards.kinds import TRAINED
from pipeline.rewards.learned_settings import is_judged

PAIRWISE = " or ".join(name for name, region in TRUST_REGIONS.items() if region.pairwise)


def only_watched(config: Config) -> bool:
    """Return whether rollouts neither teach nor steer the policy: then they are no cost of the algorithm."""
    steered = config.optimiser.guard or "adaptive" in (config.kl.control, config.entropy.control)
    return bool(config.train.data == "pairs" and not steered)


def given(config: Config) -> bool:
    """Return whether the stored pairs are texts that the user gave, and not samples of the reference."""
    return bool(config.train.data == "pairs" and not is_judged(config.reward.preferences))


def check_pairs(config: Config) -> None:
    """Raise `ValueError` where a loss of pairs lacks what it needs, or something else asks for what only it has."""
    if config.algorithm.by_pairs:
        _check_loss(config)
    elif config.kl.place == "margin":
        raise ValueError(
            "kl.place 'margin' is the beta of a loss of pairs, and algorithm.trust_region is"
            f" '{config.algorithm.trust_region}'; use {PAIRWISE}, or kl.place: reward, score or loss"
        )
    elif config.train.data == "pairs":
        raise ValueError(
            "train.data 'pairs' needs a loss of pairs, and algorithm.trust_region is"
            f" '{config.algorithm.trust_region}'; use {PAIRWISE}, or train.data: rollouts"
        )
    if config.train.data == "pairs":
        _check_stored(config)


def _check_loss(config: Config) -> None:
    loss, algorithm = config.algorithm.trust_region, config.algorithm
    for key, value, needed in (
        ("algorithm.advantage", algorithm.advantage, "preference"),
        ("kl.place", config.kl.place, "margin"),
        ("algorithm.aggregation", algorithm.aggregation, "seq_mean_token_mean"),
    ):
        if value != needed:
            raise ValueError(
                f"algorithm.trust_region '{loss}' is a loss of pairs, averaged over pairs: {key} '{value}' does not"
                f" fit; use {key}: {needed}, or algorithm: {loss}, which sets all of them"
            )
    if algorithm.whiten_advantages:
        raise ValueError(
            f"algorithm.trust_region '{loss}' needs to know which response is the better one, and"
            " algorithm.whiten_advantages destroys these signs; use false"
        )
    betas = config.kl.extremes
    if not all(betas):
        raise ValueError(
            f"algorithm.trust_region '{loss}' weighs its margin by kl.beta, which must stay above 0; it goes through"
            f" {', '.join(f'{beta:g}' for beta in betas)}"
        )
    if config.train.mini_batch_size % 2:
        raise ValueError(
            f"algorithm.trust_region '{loss}' keeps pairs together, and a mini-batch has"
            f" {config.train.mini_batch_size} episodes (train.batch_size / train.num_mini_batches); use an even number"
        )


def _check_stored(config: Config) -> None:
    if config.reward.kind not in TRAINED:
        raise ValueError(
            "train.data 'pairs' are those that a reward was learned from, and reward.kind is"
            f" '{config.reward.kind}'; use {' or '.join(TRAINED)}, or train.data: rollouts"
        )
    for key, value in (("algorithm.target_kl", config.algorithm.target_kl), ("kl.hinge", config.kl.hinge)):
        if value is not None:
            raise ValueError(
                f"{key} {value:g} bounds what is measured on rollouts, and train.data is 'pairs': it would freeze the"
                " policy near the reference; leave it out"
            )
