"""What it takes to sample responses, in training, for the stage `values` and to choose among several answers: (FLOPs,
bytes), and hours on a T4."""

from __future__ import annotations

from pipeline.forecast.subject import ForecastSubject
from pipeline.models import buckets
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
    prompts, calls = rows // each + sum(n * together % each > 0 for n in range(1, batches)), batches * response
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


def values_hours(trial: ForecastSubject) -> float:
    """Hours on a T4 of the stage `values`."""
    return _scored_hours(trial, trial.config.values.samples * trial.config.data.train_prompts)


def opponents_hours(trial: ForecastSubject) -> float:
    """Hours on a T4 of drawing and scoring the opponents of a reward, within the stage `reward`; 0 without any."""
    reward, data = trial.config.reward, trial.config.data
    if reward.against == "none":
        return 0.0
    return _scored_hours(trial, reward.opponents * (data.train_prompts + data.heldout_prompts))


def answering_hours(trial: ForecastSubject) -> float:
    """Hours on a T4 of answering the held-out prompts with the best of several samples; 0 with one sample each."""
    cfg = trial.config.evaluate
    return cfg.best_of * _scored_hours(trial, cfg.prompts) if cfg.best_of > 1 else 0.0


def _scored_hours(trial: ForecastSubject, rows: int) -> float:
    """Hours on a T4 of `rows` responses that are sampled, and scored by learned rewards and classifiers."""
    shape, cfg = trial.shape, trial.config
    span = trial.mean_prompt + cfg.train.response_length - 1
    tokens, scorers = rows * span, sum(scorer.maps for scorer in trial.scorers)
    reward = trial.reward_shape
    forward = 2.0 * tokens * reward.maps + 4.0 * reward.attention * reward.layers * tokens * span
    calls = -(-rows // cfg.runtime.rollout_batch_size)
    scored = (
        trial.learned * forward + 2.0 * tokens * scorers,
        (trial.learned * reward.blocks + scorers) * calls * BYTES_READ_CAST,
    )
    sampled = sampling(trial, rows, shape.maps, BYTES_READ_CAST)
    return (t4_seconds("generate", *sampled) + t4_seconds("score", *scored)) / 3600
