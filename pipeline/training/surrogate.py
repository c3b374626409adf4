"""The surrogate of an algorithm as a term of the loss: of each token, or of each response.

A surrogate of whole responses depends on the network through their sums S of log-probs alone. Its gradient is that of
``dL/dS x log-prob``, summed over tokens: one pass through the head without gradients measures S and the slopes dL/dS, a
second one is the usual backward with these slopes as weights. Exact, and nothing of size (tokens, vocabulary) is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.algorithms.base import surrogate_of
from pipeline.config.algorithm import AlgorithmConfig
from pipeline.config.trial import TrialConfig
from pipeline.models.policy import to_grid
from pipeline.training.experience import LossTerm, Rows, summed


def surrogate_term(rows: Rows, tokens: Tensor, sequences: int, cfg: TrialConfig) -> LossTerm:
    """Build the term of some rows of a mini-batch with so many valid `tokens` () and responses; sets their weight."""
    algorithm, lengths = cfg.algorithm, rows.mask.sum(1)
    if algorithm.by_sequence:
        weights = response_weights(lengths, tokens, sequences, cfg.train.response_length, algorithm)
        return _of_responses(rows, weights, tokens / sequences, cfg)
    if algorithm.aggregation != "token_mean":  # whose weights are 1
        weights = response_weights(lengths, tokens, sequences, cfg.train.response_length, algorithm)
        rows.weight = rows.to_tokens(weights / lengths)
    surrogate = surrogate_of(algorithm)

    def loss(tokens: slice, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        losses, metrics = surrogate(logprobs, rows.old_logprobs[tokens], rows.advantages[tokens])
        return rows.weighted(tokens, losses), metrics

    def sums(logprobs: Tensor) -> dict[str, Tensor]:
        losses, metrics = loss(slice(None), logprobs)
        return {**metrics, "policy/pg_loss": losses}

    return LossTerm(lambda tokens, logprobs, entropy: loss(tokens, logprobs)[0], sums)


def _of_responses(rows: Rows, weight: Tensor, per_sequence: Tensor, cfg: TrialConfig) -> LossTerm:
    """Every response as a whole; weight (b,) of a response in the loss.

    `per_sequence` () is valid tokens / responses of the mini-batch: it turns a mean over tokens into a mean over
    responses.
    """
    algorithm, mask, now = cfg.algorithm, rows.mask, rows.now()
    lengths = mask.sum(1)
    share = torch.ones_like(lengths, dtype=now.dtype)
    if algorithm.ratio == "sequence_mean":
        share = share / lengths
    # In fp64, so that the columns of padding, which go with the micro-batch, do not move the last digit.
    old, level = ((to_grid(flat, mask).double().sum(1) * share).to(flat.dtype) for flat in (rows.old_logprobs, now))
    advantages = to_grid(rows.advantages, mask)[:, 0]
    level.requires_grad_()
    with torch.enable_grad():
        losses, metrics = surrogate_of(algorithm)(level, old, advantages)
        (slope,) = torch.autograd.grad(losses.sum(), level)
    slopes = rows.to_tokens(slope * weight * share)
    rows.weight = rows.to_tokens(weight * share)
    sums = {name: value * per_sequence for name, value in summed(metrics).items()}
    sums |= summed({"policy/pg_loss": losses * weight})
    return LossTerm(lambda tokens, logprobs, entropy: slopes[tokens] * logprobs, lambda logprobs: sums)


def response_weights(lengths: Tensor, tokens: Tensor, sequences: int, longest: int, cfg: AlgorithmConfig) -> Tensor:
    """Summed weight of a response's tokens, times the mini-batch's number of tokens; (B,).

    lengths (B,) valid tokens of some responses, `tokens` () and `sequences` of the whole mini-batch, `longest` tokens
    that a response can have. A token has this divided by its response's length: 1 for ``token_mean``. The weights of
    ``seq_mean_token_sum`` and ``constant`` differ by a factor that does not vary, which Adam divides out again.
    """
    if cfg.aggregation == "token_mean":
        return lengths.to(tokens.dtype)
    if cfg.aggregation == "seq_mean_token_mean":
        return (tokens / sequences).expand(len(lengths))
    return lengths * (tokens / (sequences * (longest if cfg.aggregation == "constant" else 1)))
