"""What it takes to sample responses and to score them, in training and in every other stage: rows, (FLOPs, bytes), and
hours on a T4."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.config.rewards import JUDGE, LEARNED, is_judged
from pipeline.config.trial import TrialConfig
from pipeline.forecast.subject import ForecastSubject
from pipeline.models import buckets
from pipeline.resources.chunking import chunk_tokens
from pipeline.resources.roofline import (
    BYTES_CACHE,
    BYTES_CACHE_STATIC,
    BYTES_COPY,
    BYTES_LOGIT,
    BYTES_READ_CAST,
    BYTES_READ_HALF,
    t4_seconds,
)


def sampling(trial: ForecastSubject, rows: int, maps: float, bytes_read: float, each: int = 1) -> tuple[float, float]:
    """(FLOPs, bytes) of `rows` responses of full length by a network of `maps` weights in linear maps, each read with
    `bytes_read`. A prompt is read once for its `each` responses, or once in every batch that has some of them."""
    shape, cfg = trial.shape, trial.config
    prompt, response, head = trial.mean_prompt, cfg.train.response_length, shape.vocab * shape.hidden
    together = cfg.runtime.rollout_batch_size
    batches, mean_keys = -(-rows // together), prompt + response / 2
    whole = (batches - 1) // (each // math.gcd(together, each))  # borders of batches that part no prompt's responses
    prompts, calls = rows // each + batches - 1 - whole, batches * response
    attended = 4.0 * shape.attention * shape.layers * (prompts * prompt**2 + rows * response * mean_keys)
    return (
        2.0 * (prompts * prompt + rows * (response - 1)) * maps + attended + 2.0 * rows * response * head,
        calls * (shape.blocks + head) * bytes_read
        + rows * response * (mean_keys * shape.kv * BYTES_CACHE + shape.vocab * BYTES_LOGIT),
    )


def sampling_statically(trial: ForecastSubject, rows: int, each: int = 1) -> tuple[float, float]:
    """(FLOPs, bytes) of the same by the static sampler, apart from making its copy.

    Every step reads the copy's weights in half precision, adapter merged, and all columns of its bucket of a static
    cache, C_t >= P + t, where the eager sampler copies the P + t that are filled. Assumed, as for all of the roofline:
    launches cost nothing, which captured steps come nearest to; no bucket of fewer rows, since responses are of full
    length; and no attention kernel that copies the cache.
    """
    shape, response = trial.shape, trial.config.train.response_length
    flops, moved = sampling(trial, rows, shape.maps, BYTES_READ_HALF, each)
    context = int(trial.longest_prompt)
    spans = buckets.column_buckets(context + response)
    columns = sum(min(span for span in spans if span >= context + t) for t in range(1, response))
    filled = response * (trial.mean_prompt + response / 2)  # as `sampling` counts them
    return (
        flops + 4.0 * shape.attention * shape.layers * rows * (columns - filled),
        moved + rows * shape.kv * (columns * BYTES_CACHE_STATIC - filled * BYTES_CACHE),
    )


def copying(trial: ForecastSubject) -> tuple[float, float]:
    """(FLOPs, bytes) of bringing the static sampler's copy up to date once, without an adapter's products."""
    return 0.0, BYTES_COPY * (trial.shape.maps + trial.shape.vocab * trial.shape.hidden)


@dataclass(frozen=True)
class Asked:
    """Responses of full length that a stage samples, scores by the rewards, and judges by the gold judges."""

    drawn: int
    rewarded: int
    judged: int = 0


def asked_of_reward(cfg: TrialConfig) -> Asked:
    """By the first reward: samples that set its scales, and the pairs or rankings that it learns from."""
    reward = cfg.reward
    learned = [part for part in reward.scorers().values() if part.kind in LEARNED]
    judged = sum(is_judged(part.preferences) for part in learned)
    answers = reward.rankings * reward.ranked if reward.ranked > 2 else 2 * (reward.pairs // cfg.rounds)
    drawn = reward.calibration_samples + judged * (answers + 2 * reward.heldout_pairs)
    # An ensemble's samples are scored again for the scale of each model, and for what the models disagree about.
    scales = reward.calibration_samples * (3 if reward.ensemble > 1 else 1)
    # Held-out answers are scored for the accuracy; those of the gold judge once more, beside the samples.
    shown = any(part.preferences == JUDGE for part in learned)
    given = len(learned) - judged
    kept = 2 * reward.heldout_pairs
    return Asked(drawn, scales + kept * (bool(learned) + shown), drawn + kept * given)


def asked_of_reference(cfg: TrialConfig) -> Asked:
    """By the stage `reference`."""
    answers = cfg.evaluate.reference_draws * cfg.evaluate.prompts
    return Asked(answers, answers, answers)


def asked_of_evaluate(cfg: TrialConfig) -> Asked:
    """By the stage `evaluate`; of several samples for a prompt only the chosen one is judged."""
    answers = cfg.evaluate.best_of * cfg.evaluate.prompts
    return Asked(answers, answers, cfg.evaluate.prompts)


def asked_of_values(cfg: TrialConfig) -> Asked:
    """By the stage `values`."""
    answers = cfg.values.samples * cfg.data.train_prompts
    return Asked(answers, answers)


def asked_of_opponents(cfg: TrialConfig) -> Asked:
    """By the stage `reward` for its opponents; nothing without any."""
    answers = cfg.reward.opponents * (cfg.data.train_prompts + cfg.data.heldout_prompts)
    return Asked(answers, answers) if cfg.reward.against != "none" else Asked(0, 0)


def asked_hours(trial: ForecastSubject, asked: Asked) -> float:
    """Hours on a T4 of sampling and scoring so many responses."""
    return sum(t4_seconds(phase, *work) for phase, work in asked_work(trial, asked).items()) / 3600


def asked_work(trial: ForecastSubject, asked: Asked) -> dict[str, tuple[float, float]]:
    """(FLOPs, bytes) of sampling and of scoring so many responses; nothing where none is sampled."""
    if not asked.drawn:
        return {}
    reward, judges = trial.reward_shape, trial.scorers[: len(trial.scorers) - len(trial.rewarding)]
    span = trial.mean_prompt + trial.config.train.response_length - 1
    flops = moved = 0.0
    for rows, learned, scorers in ((asked.rewarded, trial.learned, trial.rewarding), (asked.judged, 0, judges)):
        tokens, maps = rows * span, sum(scorer.maps for scorer in scorers)
        calls = -(-rows // trial.config.runtime.rollout_batch_size)
        forward = 2.0 * tokens * reward.maps + 4.0 * reward.attention * reward.layers * tokens * span
        flops += learned * forward + 2.0 * tokens * maps
        moved += (learned * reward.blocks + maps) * calls * BYTES_READ_CAST
    return {"generate": sampling(trial, asked.drawn, trial.shape.maps, BYTES_READ_CAST), "score": (flops, moved)}


def drift_work(trial: ForecastSubject) -> tuple[float, float]:
    """(FLOPs, bytes) of measuring the KL of the policy's answers to the reference, in the stage `evaluate`."""
    cfg = trial.config
    span = trial.mean_prompt + cfg.train.response_length - 1
    flops, moved = _read(trial, cfg.evaluate.prompts, span, cfg.train.response_length)
    return 2 * flops, 2 * moved


def text_work(trial: ForecastSubject, texts: int) -> tuple[float, float]:
    """(FLOPs, bytes) of the perplexity of one network on so many held-out texts, each as long as SFT reads."""
    span = trial.config.sft.max_tokens - 1
    return _read(trial, texts, span, span)


def _read(trial: ForecastSubject, rows: int, span: float, measured: int) -> tuple[float, float]:
    """(FLOPs, bytes) of a forward over `rows` of `span` tokens, of which `measured` go through the head."""
    shape, cfg = trial.shape, trial.config
    head, tokens, logits = shape.vocab * shape.hidden, rows * span, rows * measured
    calls = -(-rows // cfg.runtime.rollout_batch_size)
    chunks = max(-(-logits // chunk_tokens(shape.vocab, True)), calls)
    flops = 2.0 * tokens * shape.maps + 4.0 * shape.attention * shape.layers * tokens * span + 2.0 * logits * head
    moved = (calls * shape.blocks + chunks * head) * BYTES_READ_CAST + logits * shape.vocab * BYTES_LOGIT
    return flops, moved


def evaluating_hours(trial: ForecastSubject) -> float:
    """Hours on a T4 of the stage `evaluate`: the policy's answers, their drift, perplexities."""
    texts = text_work(trial, min(trial.config.evaluate.texts, trial.config.data.heldout_prompts))
    measured = sum(t4_seconds("score", *work) for work in (drift_work(trial), texts, texts)) / 3600
    return asked_hours(trial, asked_of_evaluate(trial.config)) + measured


def opponents_hours(trial: ForecastSubject) -> float:
    """Hours on a T4 of drawing and scoring the opponents of a reward, within the stage `reward`; 0 without any."""
    return asked_hours(trial, asked_of_opponents(trial.config))
