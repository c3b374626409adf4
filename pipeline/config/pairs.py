"""Needs of a loss of pairs, and effects of stored pairs."""

from __future__ import annotations

from pipeline.algorithms.kinds import TRUST_REGIONS
from pipeline.config.base import refuse
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
    """Raise `ValueError` where a loss of pairs lacks what it needs, or something else needs what only it has."""
    algorithm, kl, stored = config.algorithm, config.kl, config.train.data == "pairs"
    region = f"algorithm.trust_region is '{algorithm.trust_region}'"
    if algorithm.by_pairs:
        _check_loss(config)
    refuse({
        f"kl.place 'margin' is the beta of a loss of pairs, and {region}; use {PAIRWISE}, or kl.place: reward, score"
        " or loss": not algorithm.by_pairs and kl.place == "margin",
        f"train.data 'pairs' needs a loss of pairs, and {region}; use {PAIRWISE}, or train.data: rollouts": (
            not algorithm.by_pairs and stored
        ),
        f"train.data 'pairs' are those that a reward was learned from, and reward.kind is '{config.reward.kind}'; use"
        f" {' or '.join(TRAINED)}, or train.data: rollouts": stored and config.reward.kind not in TRAINED,
    })  # fmt: skip
    for key, value in (("algorithm.target_kl", algorithm.target_kl), ("kl.hinge", kl.hinge)):
        if stored and value is not None:
            raise ValueError(
                f"{key} {value:g} bounds what is measured on rollouts, and train.data is 'pairs': it would freeze the"
                " policy near the reference; leave it out"
            )


def _check_loss(config: Config) -> None:
    algorithm, kl = config.algorithm, config.kl
    name, loss = algorithm.trust_region, f"algorithm.trust_region '{algorithm.trust_region}'"
    needed = {
        "algorithm.advantage": (algorithm.advantage, "preference"),
        "kl.place": (kl.place, "margin"),
        "algorithm.aggregation": (algorithm.aggregation, "seq_mean_token_mean"),
    }
    refuse({
        **{
            f"{loss} is a loss of pairs, averaged over pairs: {key} '{value}' does not fit; use {key}: {right}, or"
            f" algorithm: {name}, which sets all of them": value != right
            for key, (value, right) in needed.items()
        },
        f"{loss} needs to know which response is the better one, and algorithm.whiten_advantages destroys these signs;"
        " use false": algorithm.whiten_advantages,
        f"{loss} weighs its margin by kl.beta, which must stay above 0; it goes through"
        f" {', '.join(f'{beta:g}' for beta in kl.extremes)}": not all(kl.extremes),
        f"{loss} keeps pairs together, and a mini-batch has {config.train.mini_batch_size} episodes (train.batch_size /"
        " train.num_mini_batches); use an even number": bool(config.train.mini_batch_size % 2),
    })  # fmt: skip
