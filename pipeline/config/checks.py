"""Combinations of settings of several sections that are refused: the first of them, with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.algorithms.kinds import ADVANTAGES, TRUST_REGIONS
from pipeline.config.base import refuse
from pipeline.config.effects import Config
from pipeline.data.settings import longest_response
from pipeline.rewards.kinds import DENSE, TRAINED
from pipeline.rewards.settings import check_rankings, check_scorers, check_sources


def check_combinations(config: Config) -> None:
    """Raise `ValueError` with the first fault."""
    for check in CHECKS:
        check(config)


def _sizes(config: Config) -> None:
    """More is asked for than there is, processes cannot share a mini-batch, or one rollout could take an adaptive
    coefficient to 0 or below."""
    first, prompts, there = config.evaluate.first_prompt, config.evaluate.prompts, config.data.heldout_prompts
    train, processes = config.train, config.runtime.processes
    asked = f"evaluate.first_prompt {first} + " * bool(first)
    least = 0.2 * train.batch_size  # `pipeline.training.parts.coefficients` clips errors at 0.2
    refuse({
        f"{asked}evaluate.prompts {prompts} is more than data.heldout_prompts {there}; raise the latter to at least"
        f" {first + prompts}": first + prompts > there,
        f"runtime.processes {processes} does not divide a mini-batch of {train.mini_batch_size} episodes"
        " (train.batch_size / train.num_mini_batches)": bool(train.mini_batch_size % processes),
        **{
            f"{name}.adaptive.horizon {moving.adaptive.horizon:g} lets one rollout take {coefficient} to 0 or below;"
            f" above 0.2 x train.batch_size = {least:g}": (
                moving.control == "adaptive" and moving.adaptive.horizon <= least
            )
            for name, coefficient, moving in (("kl", "beta", config.kl), ("entropy", "entropy.coef", config.entropy))
        },
    })  # fmt: skip


def _chains(config: Config) -> None:
    """Chains have a vocabulary of their own, or their workings do not fit."""
    longest, room = longest_response(config.data.chains.lengths[1]), config.train.response_length
    refuse({
        f"model.base '{config.model.base}' has words of its own, and so has data.source 'chains'; leave it out": (
            config.model.base is not None
        ),
        f"train.response_length {room} cuts a working of {config.data.chains.lengths[1]} elements, which has {longest}"
        " tokens; raise it, or lower data.chains.lengths": longest > room,
    } if config.data.source == "chains" else {
        f"algorithm.tokens 'forks' are known of chains alone, data.source is '{config.data.source}'; use another": (
            config.algorithm.tokens == "forks"
        ),
    })  # fmt: skip


def _advantage(config: Config) -> None:
    """An advantage lacks what it needs, or has a critic that it does not use."""
    critic, responses = config.critic.kind, config.train.responses_per_prompt
    need, advantage = ADVANTAGES[config.algorithm.advantage], f"advantage '{config.algorithm.advantage}'"
    given = f"train.responses_per_prompt {responses}: {advantage}"
    refuse({
        f"critic.kind '{critic}' is not for {advantage}: use {' or '.join(need.critics)}": critic not in need.critics,
        f"{given} compares the responses to one prompt with each other, so it needs at least {need.least_responses}": (
            responses < need.least_responses
        ),
        f"{given} is of pairs; use {need.most_responses}": responses > (need.most_responses or responses),
        f"algorithm.{advantage} needs values in every episode, and replay.share is {config.replay.share:g}; use 1, or"
        " a critic with critic.target: replay": need.replay and config.replay.share < 1,
    })  # fmt: skip


def _dense(config: Config) -> None:
    """A dense reward has no points before the end, or is one for an advantage of whole responses."""
    reward, advantage = config.reward, config.algorithm.advantage
    steps = config.critic.pretraining_steps
    fitting = [name for name, one in ADVANTAGES.items() if one.varies and not one.greedy]
    refuse({
        f"reward.dense pays single tokens, and algorithm.advantage '{advantage}' compares whole responses; use"
        f" {' or '.join(fitting)}, or dense: false": advantage not in fitting,
        f"reward.dense needs points that are earned before the end, and reward.kind '{reward.kind}' has none; use"
        f" {' or '.join(DENSE)}, or dense: false": reward.kind not in DENSE,
        "reward.dense needs points that are earned before the end, and reward.verifier.sound_steps is 0; use more, or"
        " dense: false": reward.kind == "verifier" and not reward.verifier.sound_steps,
        f"reward.dense pays the points of one answer, and reward.against is '{reward.against}'; use none, or dense:"
        " false": reward.against != "none",
        f"reward.dense: critic.pretraining_steps {steps} fit the critic to whole scores; use 0, or dense: false":
            config.pretrains_critic,
    } if reward.dense else {})  # fmt: skip


def _pairs(config: Config) -> None:
    """A loss of pairs lacks what it needs, or something else needs what only it has."""
    algorithm, kl, stored = config.algorithm, config.kl, config.train.data == "pairs"
    by_pairs = algorithm.by_pairs
    name, loss = algorithm.trust_region, f"algorithm.trust_region '{algorithm.trust_region}'"
    region = f"algorithm.trust_region is '{name}'"
    pairwise = " or ".join(name for name, region in TRUST_REGIONS.items() if region.pairwise)
    needed = {
        "algorithm.advantage": (algorithm.advantage, "preference"),
        "kl.place": (kl.place, "margin"),
        "algorithm.aggregation": (algorithm.aggregation, "seq_mean_token_mean"),
    }
    bounds = (("algorithm.target_kl", algorithm.target_kl), ("kl.hinge", kl.hinge))
    refuse({
        **{
            f"{loss} is a loss of pairs, averaged over pairs: {key} '{value}' does not fit; use {key}: {right}, or"
            f" algorithm: {name}, which sets all of them": by_pairs and value != right
            for key, (value, right) in needed.items()
        },
        f"{loss} needs to know which response is the better one, and algorithm.whiten_advantages destroys these signs;"
        " use false": by_pairs and algorithm.whiten_advantages,
        f"{loss} needs both responses of a pair in full; leave algorithm.tokens and algorithm.signs out": (
            by_pairs and (algorithm.tokens, algorithm.signs) != ("all", "both")
        ),
        f"{loss} weighs its margin by kl.beta, which must stay above 0; it goes through"
        f" {', '.join(f'{beta:g}' for beta in kl.extremes)}": by_pairs and not all(kl.extremes),
        f"{loss} keeps pairs together, and a mini-batch has {config.train.mini_batch_size} episodes (train.batch_size /"
        " train.num_mini_batches); use an even number": by_pairs and bool(config.train.mini_batch_size % 2),
        f"kl.place 'margin' is the beta of a loss of pairs, and {region}; use {pairwise}, or kl.place: reward, score"
        " or loss": not by_pairs and kl.place == "margin",
        f"train.data 'pairs' needs a loss of pairs, and {region}; use {pairwise}, or train.data: rollouts": (
            not by_pairs and stored
        ),
        f"train.data 'pairs' are those that a reward was learned from, and reward.kind is '{config.reward.kind}'; use"
        f" {' or '.join(TRAINED)}, or train.data: rollouts": stored and config.reward.kind not in TRAINED,
        **{
            f"{key} {value:g} bounds what is measured on rollouts, and train.data is 'pairs': it would freeze the"
            " policy near the reference; leave it out": stored
            for key, value in bounds
            if value is not None
        },
    })  # fmt: skip


def _rounds(config: Config) -> None:
    """Rounds do not divide what they split, or a setting depends on there being one reward."""
    count = config.rounds
    if count == 1:
        return
    rounds, pairs, train = f"reward.learned.rounds {count}", config.reward.learned.pairs, config.train
    values = "algorithm.advantage 'v_star'"
    if not config.algorithm.needs_values:
        values = f"critic.pretraining_steps {config.critic.pretraining_steps}"
    refuse({
        f"{rounds} does not divide reward.learned.pairs {pairs}, which are the pairs of all rounds; use a multiple": (
            bool(pairs % count)
        ),
        f"{rounds} does not divide the {train.updates} updates of train.steps {train.steps}, which are those of all"
        f" rounds; use a multiple of {count * train.steps_per_update} steps": bool(train.updates % count),
        f"{values} needs samples that one reward has scored, and reward.learned.rounds is {count}, each with a reward"
        " of its own; use rounds: 1, or do without": config.needs_samples,
        f"critic.init 'reward' needs one reward for the whole training, and reward.learned.rounds is {count}; use"
        " reference, or rounds: 1": config.critic.starts_as_reward,
    })  # fmt: skip


def _ratio(config: Config) -> None:
    """A ratio does not fit the passes over a rollout, or the place of the KL penalty."""
    algorithm, kl, epochs = config.algorithm, config.kl, config.train.num_epochs
    unless = ", or a kl.beta above 0 in every update" * kl.by_sequence
    refuse({
        f"algorithm.ratio 'none' does not correct a second pass over a rollout, and train.num_epochs is {epochs}; use"
        f" 1, or ratio: token{unless}": algorithm.ratio == "none" and epochs > 1 and not kl.squares_throughout,
        f"algorithm.ratio '{algorithm.ratio}' needs one advantage for a whole response, and a KL penalty in the reward"
        " gives every token its own; use kl.place: score or loss": algorithm.by_sequence and kl.place == "reward",
    })  # fmt: skip


def _critic(config: Config) -> None:
    """A critic lacks a source, or never leaves the policy a step."""
    critic, reward, starts = config.critic, config.reward, config.critic.starts_as_reward
    refuse({
        f"critic.warmup_steps {critic.warmup_steps} leaves the policy none of train.steps {config.train.steps}; use"
        " fewer": critic.warmup_steps >= config.train.steps,
        f"critic.init 'reward' needs a reward that is a network with a score, reward.kind is '{reward.kind}'; use"
        " learned": starts and reward.kind != "learned",
        f"critic.init 'reward' starts the critic at the reward model's score, and with reward.against"
        f" '{reward.against}' the reward is this score less that of opponents; use critic.init: reference, or against:"
        " none": starts and reward.against != "none",
        f"critic.init 'reward' needs a reward model of the policy's shape, reward.learned.trunk is"
        f" '{reward.learned.trunk}'; use critic.init: reference": starts and reward.learned.trunk != "reference",
    })  # fmt: skip


def _natural_step(config: Config) -> None:
    """TRPO cannot take its step, or leaves the optimiser nothing to do."""
    if config.algorithm.trust_region != "trpo":
        return
    critic, quantize, kl = config.critic, config.adapter.quantize, config.kl
    refuse({
        "trust_region 'trpo' takes one step of the policy per rollout, and the other gradient steps train a critic;"
        " critic.kind is 'none'; use advantage: gae and critic.kind: separate": critic.kind == "none",
        "trust_region 'trpo' moves the policy's trunk by a natural-gradient step, which would move the values of a"
        " shared critic too; use critic.kind: separate": critic.kind == "shared",
        "trust_region 'trpo' leaves the optimiser the critic alone, and critic.vf_coef 0 does not train it; use"
        " critic.vf_coef above 0": not critic.vf_coef,
        f"trust_region 'trpo' needs forward-mode derivatives, which adapter.quantize '{quantize}' does not have; use"
        " quantize: none": quantize != "none",
        f"trust_region 'trpo' measures its objective token by token, and kl.group '{kl.group}' in the loss is of"
        " several; use kl.group: token, or kl.place: reward": kl.grouped_in("loss"),
    })  # fmt: skip


CHECKS: tuple[Callable[[Any], None], ...] = (
    _sizes, _chains, _advantage, _dense, _pairs, _rounds, check_rankings, _ratio, _critic, _natural_step, check_scorers,
    check_sources,
)  # fmt: skip
"""In the order in which faults are reported."""
