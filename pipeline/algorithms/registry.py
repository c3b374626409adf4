"""The values of ``algorithm.advantage`` and ``algorithm.trust_region``; named algorithms are presets of them
(`pipeline.config.presets`)."""

from __future__ import annotations

from pipeline.algorithms import baselines, surrogates
from pipeline.algorithms.base import Estimator, Surrogate
from pipeline.algorithms.gae import by_critic
from pipeline.algorithms.replay import by_replay

ESTIMATORS: dict[str, Estimator] = {
    "gae": by_critic,
    "reinforce": baselines.batch_mean,
    "rloo": baselines.rloo,
    "group_mean": baselines.group_mean,
    "group_norm": baselines.group_norm,
    "group_mean_batch_std": baselines.group_mean_batch_std,
    "remax": baselines.remax,
    "reinforce_pp": baselines.rewards_to_go,
    "v_star": baselines.against_v_star,
    "replay": by_replay,
    "preference": baselines.preference,
}

# dpo and ipo have none: their losses are of pairs (`pipeline.training.pairs`)
SURROGATES: dict[str, Surrogate] = {
    "clip": surrogates.clipped,
    "cispo": surrogates.capped,
    "none": surrogates.unbounded,
    "kl_penalty": surrogates.unbounded,  # the penalty stands beside it: `pipeline.training.parts.old_kl`
    "trpo": surrogates.unbounded,  # the step is bounded, not the loss: `pipeline.training.natural_step`
}
