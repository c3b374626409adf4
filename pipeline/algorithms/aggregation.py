"""How the losses of tokens become one number: the weight of a response in the mini-batch."""

from __future__ import annotations

from typing import assert_never

from torch import Tensor

from pipeline.config.algorithm import AlgorithmConfig


def response_weights(lengths: Tensor, tokens: Tensor, sequences: int, longest: int, cfg: AlgorithmConfig) -> Tensor:
    """Summed weight of a response's tokens, times the mini-batch's number of tokens; (B,).

    lengths (B,) valid tokens of some responses, `tokens` () and `sequences` of the whole mini-batch, `longest` tokens
    that a response can have. A token has this divided by its response's length: 1 for ``token_mean``. The weights of
    ``seq_mean_token_sum`` and ``constant`` differ by a factor that does not vary, which Adam divides out again.
    """
    match cfg.aggregation:
        case "token_mean":
            return lengths.to(tokens.dtype)
        case "seq_mean_token_mean":
            return (tokens / sequences).expand(len(lengths))
        case "seq_mean_token_sum":
            return lengths * (tokens / sequences)
        case "constant":
            return lengths * (tokens / (sequences * longest))
        case _:
            assert_never(cfg.aggregation)
