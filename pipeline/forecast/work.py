"""The time that the stages of a trial take on a T4: (FLOPs, bytes) of each phase, counted from shapes.

Assumed: responses of full length, the mean prompt. Only linear maps, attention, optimiser, logits and checkpoints are
counted; attention is left out of texts and of a reward's pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.algorithms.kinds import ADVANTAGES
from pipeline.config.effects import value_at
from pipeline.config.model import SftConfig
from pipeline.config.train import has_replay, only_watched
from pipeline.config.trial import TrialConfig
from pipeline.forecast.memory import checkpoint_bytes
from pipeline.forecast.shapes import ForecastSubject, Shape, Trained
from pipeline.models.chunking import chunk_tokens, ranking_rows, text_rows
from pipeline.resources import roofline as t4
from pipeline.rewards.learned_settings import JUDGE, is_judged

DISK_BYTES = 200e6
"""Bytes per second of copying a checkpoint from the card, hashing and writing it; assumed of a cloud machine's disk."""
CLASSIFIER_MAPS = 0.68
"""Share of a base classifier's parameters that are no embeddings."""


@dataclass(frozen=True)
class Work:
    """Arithmetic and memory traffic."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, factor: float) -> Work:
        return Work(factor * self.flops, factor * self.bytes)

    def hours(self, phase: str) -> float:
        """Hours on a T4."""
        return t4.t4_seconds(phase, self.flops, self.bytes) / 3600


# --- the parts that everything is made of ---


def trunk(
    shape: Shape, tokens: float, span: float, calls: float, trained: Trained | None = None, *, again: bool = False
) -> Work:
    """A forward of so many positions, each of which attends to `span`; with `trained` forth and back, `again` where
    activations are recomputed."""
    attended, forth = 4.0 * shape.attention * shape.layers * tokens * span, shape.blocks * t4.BYTES_READ_CAST
    if trained is None:
        return Work(2.0 * tokens * shape.maps + attended, calls * forth)
    back = shape.blocks * t4.BYTES_BACKWARD + trained.maps * t4.BYTES_GRADIENT
    multiplied = 2.0 * tokens * (trained.forward * (2 + again) + trained.maps)
    return Work(multiplied + attended * (3 + again), calls * (forth + back))


def head(shape: Shape, tokens: float, calls: float, read: int = t4.BYTES_READ_CAST) -> Work:
    """A forward through the language-modelling head."""
    return Work(2.0 * tokens * shape.head_map, calls * shape.head_map * read + tokens * shape.vocab * t4.BYTES_LOGIT)


def head_and_back(shape: Shape, tokens: float, calls: float, trained: bool) -> Work:
    """Through the head forth and back."""
    gradient = t4.BYTES_BACKWARD + t4.BYTES_HEAD_GRADIENT * trained
    back = calls * shape.head_map * gradient + tokens * shape.vocab * t4.BYTES_LOGIT
    forth = head(shape, tokens, calls, t4.BYTES_READ_HALF if trained else t4.BYTES_READ_CAST)
    return forth + Work(2.0 * tokens * shape.head_map * (1 + trained), back)


def sampling(trial: ForecastSubject, rows: int, maps: float, read: int, each: int = 1) -> Work:
    """`rows` responses of full length by a network of `maps` weights in linear maps, each read with `read` bytes.

    A prompt is read once for its `each` responses. The static sampler counts as the eager one.
    """
    shape, prompt, response = trial.shape, trial.mean_prompt, trial.config.train.response_length
    batches, prompts = -(-rows // trial.config.runtime.rollout_batch_size), rows // each
    keys = response * (prompt + response / 2)
    attended = 4.0 * shape.attention * shape.layers * (prompts * prompt**2 + rows * keys)
    multiplied = 2.0 * (prompts * prompt + rows * (response - 1)) * maps
    moved = batches * response * shape.blocks * read + rows * keys * shape.kv * t4.BYTES_CACHE
    return head(shape, rows * response, batches * response, read) + Work(multiplied + attended, moved)


def measured(trial: ForecastSubject, rows: int, span: float, read: float, trunks: float = 1, heads: float = 1) -> Work:
    """A forward over `rows` of `span` tokens, of which `read` go through the head."""
    calls, chunks = -(-rows // trial.config.runtime.rollout_batch_size), _chunks(trial.shape, rows * read)
    return trunk(trial.shape, rows * span, span, calls) * trunks + head(trial.shape, rows * read, chunks) * heads


def _chunks(shape: Shape, tokens: float) -> float:
    """Times that the head is read for so many tokens."""
    return -(-tokens // chunk_tokens(shape.vocab, True))


def _scored(trial: ForecastSubject, rows: int, learned: int, classifiers: int = 0) -> Work:
    """Scores of `rows` responses by so many learned rewards, and by classifiers of so many parameters together."""
    span, calls = trial.episode, -(-rows // trial.config.runtime.rollout_batch_size)
    maps = CLASSIFIER_MAPS * classifiers
    classified = Work(2.0 * rows * span * maps, calls * maps * t4.BYTES_READ_CAST)
    return trunk(trial.reward_shape, rows * span, span, calls) * learned + classified


# --- training ---


def update_work(trial: ForecastSubject) -> dict[str, Work]:
    """One update, by phase; rollouts only where they teach or steer the policy."""
    shape, cfg, runtime = trial.shape, trial.config, trial.config.runtime
    rows, response, again = cfg.train.batch_size, trial.learned_response, runtime.gradient_checkpointing
    span, tokens = trial.mean_prompt + response - 1, rows * response
    size = shape, rows * span, span, -(-rows // min(runtime.micro_batch_size, cfg.train.mini_batch_size))
    policy = trunk(*size, trial.policy, again=again)
    policy += head_and_back(shape, tokens, _chunks(shape, tokens), trial.policy.head)
    stepped = cfg.train.num_mini_batches * (trial.policy.parameters + trial.critic.parameters)
    critic = trunk(*size, trial.critic, again=again) * (cfg.critic.kind == "separate")
    critic += Work(bytes=stepped * t4.BYTES_STEP)
    forward, logits = trunk(*size), head(shape, tokens, _chunks(shape, tokens))
    work = {} if only_watched(cfg) else rollout_work(trial)
    if cfg.train.data == "pairs":  # the reference's log-probs
        work["score"] = work.get("score", Work()) + measured(trial, rows, span, response)
    if cfg.algorithm.trust_region == "trpo":
        # A product with Fisher's matrix is a forward with tangents, three times as much as without, and a pass forth
        # and back, in fp32. A point of the line search is a forward by the old and by the new weights; two are tried.
        flops = ((forward + logits) * 3 + policy).flops * t4.T4_FLOPS / t4.T4_FP32_FLOPS
        product = Work(flops, (logits * 2 + policy).bytes)
        products = value_at(cfg, "algorithm.trpo.cg_iterations") + 1
        work["natural step"] = policy + product * products + (forward + logits) * 4
        epoch = critic
    else:
        # A loss of several tokens together needs their log-probs beforehand: the head once more, and for pairs, which
        # may be in two micro-batches, the trunk too.
        twice = cfg.algorithm.by_sequence or cfg.kl.grouped_in("loss")
        epoch = policy + critic + logits * twice + forward * cfg.algorithm.by_pairs
    return {**work, "train": epoch * cfg.train.num_epochs}


def rollout_work(trial: ForecastSubject) -> dict[str, Work]:
    """Sampling one rollout, and scoring and measuring it."""
    cfg, rows, each = trial.config, trial.config.train.batch_size, trial.config.train.responses_per_prompt
    read = t4.BYTES_READ_CAST if cfg.adapter.kind == "lora" else t4.BYTES_READ_HALF
    # The KL to the policy that a later round began with is one more network, and goes through two heads.
    started, separate = 1 - 1 / cfg.rounds, cfg.critic.kind == "separate"
    score = measured(trial, rows, trial.episode, cfg.train.response_length, 2 + separate + started, 2 + 2 * started)
    score += _scored(trial, rows, cfg.learned_rewards, trial.judging + trial.rewarding)
    sampled, scored = _rollouts(cfg)
    return {"generate": sampling(trial, rows, trial.policy.forward, read, each) * sampled, "score": score * scored}


def _rollouts(cfg: TrialConfig) -> tuple[float, float]:
    """Tokens that an update samples, and episodes that it scores, as multiples of a rollout's: with the greedy response
    to each prompt, and with replayed states."""
    once = 1.0 + ADVANTAGES[cfg.algorithm.advantage].greedy / cfg.train.responses_per_prompt
    each, longest = cfg.replay.share * cfg.replay.continuations * has_replay(cfg), cfg.train.response_length
    starts = range(0, longest, cfg.replay.every)
    return once + each * sum(1 - start / longest for start in starts), once + each * len(starts)


def training_hours(trial: ForecastSubject) -> dict[str, float]:
    """Hours by phase."""
    cfg, updates = trial.config, trial.config.train.updates
    hours = {phase: updates * work.hours(phase) for phase, work in update_work(trial).items()}
    if only_watched(cfg):  # no cost of the algorithm, but of the wall clock
        hours["watch"] = updates * sum(work.hours(phase) for phase, work in rollout_work(trial).items())
    if cfg.rounds > 1:  # later rewards: their pairs and opponents are sampled, and they are trained
        later, pairs = range(2, cfg.rounds + 1), cfg.reward.learned.pairs // cfg.rounds
        drawn = 2 * (pairs + cfg.reward.learned.heldout_pairs) + cfg.reward.calibration_samples
        work = sampling(trial, drawn, trial.shape.maps, t4.BYTES_READ_CAST) * len(later)
        for number in later:
            work += reward_work(trial, pairs * (number if cfg.reward.learned.keep_pairs == "all" else 1))
        hours["reward"] = work.hours("reward") + len(later) * opponents_hours(trial)
    each, share = checkpoint_bytes(trial) / DISK_BYTES / 3600, cfg.runtime.checkpoint_share
    wanted = updates // cfg.runtime.checkpoint_updates * each
    hours["checkpoint"] = wanted if share is None else min(wanted, share * sum(hours.values()))
    return {phase: spent for phase, spent in hours.items() if spent}


# --- the other stages ---


def other_hours(trial: ForecastSubject) -> dict[str, float]:
    """Hours of the other stages."""
    cfg, best_of, prompts = trial.config, trial.config.evaluate.best_of, trial.config.evaluate.prompts
    pairs, draws = cfg.reward.learned.pairs // cfg.rounds, cfg.evaluate.reference_draws * prompts
    length, texts = cfg.sft.max_tokens - 1, min(cfg.evaluate.texts, cfg.data.heldout_prompts)
    measuring = measured(trial, prompts, trial.episode, cfg.train.response_length) * 2  # drift from the reference
    measuring += measured(trial, texts, length, length) * 2  # perplexity
    learning = texts_work(trial, trial.shape, cfg.sft) + measured(trial, cfg.data.heldout_prompts, length, length)
    hours = {
        "sft": learning.hours("train"),
        "reward": reward_work(trial, pairs).hours("train") + drawn_for_reward(trial) + opponents_hours(trial),
        "reference": asked_hours(trial, draws, draws, draws),
        "evaluate": asked_hours(trial, best_of * prompts, best_of * prompts, prompts) + measuring.hours("score"),
    }
    if cfg.needs_samples:
        values = cfg.values.samples * cfg.data.train_prompts
        hours["values"] = asked_hours(trial, values, values)
    if cfg.pretrains_critic:
        hours["critic"] = critic_work(trial).hours("train")
    return hours


def drawn_for_reward(trial: ForecastSubject) -> float:
    """Hours of sampling and scoring what the rewards learn from and are calibrated on."""
    cfg, learned = trial.config, trial.config.reward.learned
    preferences = [part.preferences for part in cfg.reward.trained().values()]
    judged, kept, samples = sum(map(is_judged, preferences)), 2 * learned.heldout_pairs, cfg.reward.calibration_samples
    answers = learned.rankings * learned.ranked if learned.ranked > 2 else 2 * (learned.pairs // cfg.rounds)
    scored = samples + kept * (bool(preferences) + (JUDGE in preferences))
    drawn = samples + judged * (answers + kept)
    return asked_hours(trial, drawn, scored, drawn + kept * (len(preferences) - judged))


def opponents_hours(trial: ForecastSubject) -> float:
    """Hours of sampling and scoring the opponents of every prompt."""
    reward, data = trial.config.reward, trial.config.data
    drawn = reward.opponents * (data.train_prompts + data.heldout_prompts) * (reward.against != "none")
    return asked_hours(trial, drawn, drawn)


def asked_hours(trial: ForecastSubject, drawn: int, rewarded: int, judged: int = 0) -> float:
    """Hours of sampling so many responses of full length, and of scoring so many by every reward and by the judges."""
    score = _scored(trial, rewarded, trial.config.learned_rewards, trial.rewarding)
    score += _scored(trial, judged, 0, trial.judging)
    sample = sampling(trial, drawn, trial.shape.maps, t4.BYTES_READ_CAST)
    return sample.hours("generate") + score.hours("score")


def texts_work(trial: ForecastSubject, shape: Shape, sft: SftConfig) -> Work:
    """Training a network on texts."""
    positions = sft.steps * sft.batch_size * sft.max_tokens
    calls = sft.steps * -(-sft.batch_size // text_rows(sft.batch_size, sft.max_tokens, shape.vocab, trial.on_card))
    again, whole = trial.config.runtime.gradient_checkpointing, Trained(shape.parameters, shape.maps, shape.maps)
    passes = trunk(shape, positions, 0, calls, whole, again=again) + head_and_back(shape, positions, calls, True)
    return passes + Work(bytes=sft.steps * shape.parameters * t4.BYTES_STEP)


def reward_work(trial: ForecastSubject, pairs: int) -> Work:
    """Training the learned rewards on so many pairs."""
    shape, cfg, learned, work = trial.reward_shape, trial.config, trial.config.reward.learned, Work()
    rankings = pairs // learned.comparisons
    in_step = min(learned.rankings_in_step, rankings)
    for part in cfg.reward.trained().values():
        tokens = trial.episode + 1 if is_judged(part.preferences) else learned.max_tokens
        steps = learned.epochs * (rankings // in_step)
        calls = -(-in_step // ranking_rows(in_step, learned.ranked, int(tokens), trial.on_card)) * learned.ranked
        again, whole = cfg.runtime.gradient_checkpointing, Trained(shape.trunk, shape.maps, shape.maps)
        each = trunk(shape, in_step * learned.ranked * tokens, 0, calls, whole, again=again)
        work += (each + Work(bytes=shape.trunk * t4.BYTES_STEP)) * steps
    return work


def critic_work(trial: ForecastSubject) -> Work:
    """Value pre-training. Only a trunk of its own is trained; a shared one is read. Held-out states are left out."""
    shape, cfg, part, span = trial.shape, trial.config, trial.critic, trial.episode
    steps, calls = cfg.critic.pretraining_steps, -(-cfg.train.batch_size // cfg.runtime.micro_batch_size)
    size = shape, steps * cfg.train.batch_size * span, span, steps * calls
    return trunk(*size, part if part.parameters else None) + Work(bytes=steps * part.parameters * t4.BYTES_STEP)
