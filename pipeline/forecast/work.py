"""The time that the stages of a trial take on a T4: (FLOPs, bytes) of each phase, counted from shapes.

Assumed: responses of full length, the mean prompt. Only linear maps, attention, optimiser, logits and checkpoints are
counted; attention is left out of texts and of a reward's pairs. Classifiers and value pre-training are left out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.algorithms.settings import CG_ITERATIONS
from pipeline.config.effects import value_at
from pipeline.config.train import has_replay, only_watched
from pipeline.data.settings import MEASURED_TEXTS
from pipeline.forecast.memory import ForecastSubject, Shape, Trained
from pipeline.models.out_of_memory import chunk_tokens, ranking_rows, text_rows
from pipeline.resources import ledger
from pipeline.rewards.settings import OPPONENTS, is_judged

Work = NDArray[np.float64]


def work(flops: float, bytes_: float) -> Work:
    """Arithmetic and memory traffic as a vector: (FLOPs, bytes)."""
    return np.array([flops, bytes_], dtype=np.float64)


def hours(phase: str, spent: Work) -> float:
    """Hours on a T4."""
    return ledger.t4_seconds(phase, *map(float, spent)) / 3600


def trunk(
    shape: Shape, tokens: float, span: float, calls: float, trained: Trained | None = None, *, again: bool = False
) -> Work:
    """A forward of so many positions, each of which attends to `span`; with `trained` forth and back, `again` where
    activations are recomputed."""
    attended, forth = 4.0 * shape.attention * shape.layers * tokens * span, shape.maps * ledger.BYTES_READ_CAST
    if trained is None:
        return work(2.0 * tokens * shape.maps + attended, calls * forth)
    back = shape.maps * ledger.BYTES_BACKWARD + trained.maps * ledger.BYTES_GRADIENT
    multiplied = 2.0 * tokens * (trained.forward * (2 + again) + trained.maps)
    return work(multiplied + attended * (3 + again), calls * (forth + back))


def head(shape: Shape, tokens: float, calls: float | None = None, *, trained: bool = False, back: bool = False) -> Work:
    """A forward through the language-modelling head, `calls` times or by chunks, and `back`; of a `trained` one a copy
    in half precision is kept."""
    calls = math.ceil(tokens / chunk_tokens(shape.vocab, True)) if calls is None else calls
    read = ledger.BYTES_READ_HALF if trained else ledger.BYTES_READ_CAST
    read += (ledger.BYTES_BACKWARD + ledger.BYTES_HEAD_GRADIENT * trained) * back
    logits = tokens * shape.vocab * ledger.BYTES_LOGIT * (1 + back)
    return work(2.0 * tokens * shape.head_map * (1 + back * (1 + trained)), calls * shape.head_map * read + logits)


def sampling(trial: ForecastSubject, rows: int, maps: float, *, half: bool = False, each: int = 1) -> Work:
    """`rows` responses of full length by a network of `maps` weights in linear maps, of which `half` precision copies
    are kept. A prompt is read once for its `each` responses. The static sampler counts as the eager one."""
    shape, prompt, response = trial.shape, trial.mean_prompt, trial.config.train.response_length
    steps, prompts = _batches(trial, rows) * response, rows // each
    keys = response * (prompt + response / 2)
    attended = 4.0 * shape.attention * shape.layers * (prompts * prompt**2 + rows * keys)
    multiplied = 2.0 * (prompts * prompt + rows * (response - 1)) * maps
    read = ledger.BYTES_READ_HALF if half else ledger.BYTES_READ_CAST
    moved = steps * shape.maps * read + rows * keys * shape.kv * ledger.BYTES_CACHE
    return head(shape, rows * response, steps, trained=half) + work(multiplied + attended, moved)


def measured(trial: ForecastSubject, rows: int, span: float, read: float, trunks: float = 1, heads: float = 1) -> Work:
    """A forward over `rows` of `span` tokens, of which `read` go through the head."""
    body = trunk(trial.shape, rows * span, span, _batches(trial, rows))
    return body * trunks + head(trial.shape, rows * read) * heads


def scored(trial: ForecastSubject, rows: int) -> Work:
    """Scores of `rows` responses by every learned reward."""
    span = trial.episode
    return trunk(trial.reward_shape, rows * span, span, _batches(trial, rows)) * len(trial.config.reward.trained())


def fitted(trial: ForecastSubject, shape: Shape, parameters: int, steps: float, positions: float, calls: float) -> Work:
    """Training all weights of a network, by so many positions and calls at each step."""
    again, whole = trial.config.runtime.gradient_checkpointing, Trained(parameters, shape.maps, shape.maps)
    return (trunk(shape, positions, 0, calls, whole, again=again) + work(0, parameters * ledger.BYTES_STEP)) * steps


def _batches(trial: ForecastSubject, rows: int) -> int:
    return -(-rows // trial.config.runtime.rollout_batch_size)


def update_work(trial: ForecastSubject) -> dict[str, Work]:
    """One update, by phase; rollouts only where they teach or steer the policy."""
    shape, cfg, runtime = trial.shape, trial.config, trial.config.runtime
    rows, response, again = cfg.train.batch_size, trial.learned_response, runtime.gradient_checkpointing
    span, tokens = trial.mean_prompt + response - 1, rows * response
    size = shape, rows * span, span, -(-rows // min(runtime.micro_batch_size, cfg.train.mini_batch_size))
    policy = trunk(*size, trial.policy, again=again) + head(shape, tokens, trained=trial.policy.head, back=True)
    stepped = cfg.train.num_mini_batches * (trial.policy.parameters + trial.critic.parameters)
    critic = trunk(*size, trial.critic, again=again) * (cfg.critic.kind == "separate")
    critic += work(0, stepped * ledger.BYTES_STEP)
    forward, logits = trunk(*size), head(shape, tokens)
    found = {} if only_watched(cfg) else rollout_work(trial)
    if cfg.train.data == "pairs":  # the reference's log-probs
        found["score"] = found.get("score", 0) + measured(trial, rows, span, response)
    if cfg.algorithm.trust_region == "trpo":
        # A product with Fisher's matrix is a forward with tangents, three times as much as without, and a pass forth
        # and back, in fp32. The line search and the gradient are left out.
        products = CG_ITERATIONS + 1
        found["natural step"] = ((forward + logits) * 3 + policy) * (products * ledger.T4_FLOPS / ledger.T4_FP32_FLOPS)
        epoch = critic
    else:
        # A loss of several tokens together needs their log-probs beforehand: the head once more, and for pairs, which
        # may be in two micro-batches, the trunk too.
        twice = cfg.algorithm.by_sequence or cfg.kl.grouped_in("loss")
        epoch = policy + critic + logits * twice + forward * cfg.algorithm.by_pairs
    return {**found, "train": epoch * cfg.train.num_epochs}


def rollout_work(trial: ForecastSubject) -> dict[str, Work]:
    """Sampling one rollout, and scoring and measuring it."""
    cfg, rows, response = trial.config, trial.config.train.batch_size, trial.config.train.response_length
    each = cfg.train.responses_per_prompt
    # The KL to the policy that a later round began with is one more network, and goes through two heads.
    # So is a policy that samples in the place of the trained one, through one head.
    started, separate, apart = 1 - 1 / cfg.rounds, cfg.critic.kind == "separate", value_at(cfg, "rollout").acts
    networks, heads = 2 + separate + started + apart, 2 + 2 * started + apart
    score = measured(trial, rows, trial.episode, response, networks, heads)
    sample = sampling(trial, rows, trial.policy.forward, half=cfg.adapter.kind == "none", each=each)
    # As multiples of a rollout's: with the greedy response to each prompt, and continuations of replayed states.
    once, states = 1.0 + ADVANTAGES[cfg.algorithm.advantage].greedy / each, -(-response // cfg.replay.every)
    replayed = cfg.replay.share * cfg.replay.continuations * has_replay(cfg)
    scores = (score + scored(trial, rows)) * (once + replayed * states)
    return {"generate": sample * (once + replayed * (states + 1) / 2), "score": scores}


def training_hours(trial: ForecastSubject) -> dict[str, float]:
    """Hours by phase."""
    cfg, updates, learned = trial.config, trial.config.train.updates, trial.config.reward.learned
    spent = {phase: updates * hours(phase, each) for phase, each in update_work(trial).items()}
    # No cost of the algorithm, but of the wall clock.
    spent["watch"] = updates * sum(hours(*each) for each in rollout_work(trial).items()) * only_watched(cfg)
    if cfg.rounds > 1:  # each later reward is trained on its own pairs, or on those of all rounds so far
        kept = (cfg.rounds + 2) / 2 if learned.keep_pairs == "all" else 1
        spent["reward"] = (cfg.rounds - 1) * reward_hours(trial, kept)
    # Trained weights and Adam's two moments in fp32, hashed and written at 200 MB/s, assumed of a cloud machine's disk.
    each = 12.0 * (trial.policy.parameters + trial.critic.parameters) / 200e6 / 3600
    share = cfg.runtime.checkpoint_share or 1.0
    spent["checkpoint"] = min(updates // cfg.runtime.checkpoint_updates * each, share * sum(spent.values()))
    return {phase: one for phase, one in spent.items() if one}


def other_hours(trial: ForecastSubject) -> dict[str, float]:
    """Hours of the other stages."""
    shape, cfg, sft, best_of = trial.shape, trial.config, trial.config.sft, trial.config.evaluate.best_of
    prompts, draws = cfg.evaluate.prompts, cfg.evaluate.reference_draws * cfg.evaluate.prompts
    length, texts = sft.max_tokens - 1, min(MEASURED_TEXTS, cfg.data.heldout_prompts)
    measuring = measured(trial, prompts, trial.episode, cfg.train.response_length) * 2  # drift from the reference
    measuring += measured(trial, texts, length, length) * 2  # perplexity
    positions = sft.batch_size * sft.max_tokens
    calls = -(-sft.batch_size // text_rows(sft.batch_size, sft.max_tokens, shape.vocab, trial.on_card))
    learning = fitted(trial, shape, shape.parameters, sft.steps, positions, calls)
    learning += head(shape, positions, calls, trained=True, back=True) * sft.steps
    spent = {
        "sft": hours("train", learning + measured(trial, cfg.data.heldout_prompts, length, length)),
        "reward": reward_hours(trial),
        "reference": asked_hours(trial, draws, draws),
        "evaluate": asked_hours(trial, best_of * prompts, best_of * prompts) + hours("score", measuring),
    }
    if cfg.needs_samples:
        values = cfg.values.samples * cfg.data.train_prompts
        spent["values"] = asked_hours(trial, values, values)
    return spent


def reward_hours(trial: ForecastSubject, kept: float = 1.0) -> float:
    """Hours of a round's rewards: sampling and scoring what they learn from and are calibrated on, sampling the
    opponents of every prompt, and training on `kept` times the pairs of a round."""
    shape, cfg, reward, learned = trial.reward_shape, trial.config, trial.config.reward, trial.config.reward.learned
    rankings = learned.rankings // cfg.rounds
    in_step, training = min(learned.rankings_in_step, rankings), work(0, 0)
    preferences = [part.preferences for part in reward.trained().values()]
    for tokens in (trial.episode + 1 if is_judged(given) else learned.max_tokens for given in preferences):
        calls = -(-in_step // ranking_rows(in_step, learned.ranked, int(tokens), trial.on_card)) * learned.ranked
        steps, positions = learned.epochs * (int(kept * rankings) // in_step), in_step * learned.ranked * tokens
        training += fitted(trial, shape, shape.trunk, steps, positions, calls)
    heldout, samples = 2 * learned.heldout_pairs, reward.calibration_samples
    opponents = OPPONENTS * (cfg.data.train_prompts + cfg.data.heldout_prompts) * (reward.against != "none")
    drawn = samples + sum(map(is_judged, preferences)) * (learned.ranked * rankings + heldout)
    asked = samples + heldout * bool(preferences)
    return hours("train", training) + asked_hours(trial, drawn + opponents, asked + opponents)


def asked_hours(trial: ForecastSubject, drawn: int, rewarded: int) -> float:
    """Hours of sampling so many responses of full length, and of scoring so many by every reward."""
    sample = sampling(trial, drawn, trial.shape.maps)
    return hours("generate", sample) + hours("score", scored(trial, rewarded))
