"""What stands beside an algorithm's surrogate in the policy's loss, token by token, whatever the algorithm is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.algorithms.base import Behaviour
from pipeline.algorithms.mathematics.kl import k2, k3, limited
from pipeline.algorithms.mathematics.losses import kl_loss
from pipeline.config.kl import KlConfig


@dataclass(frozen=True)
class Tokens:
    """The valid tokens of some rows of a rollout, row by row; each (N,)."""

    logprobs: Tensor
    """Of the behaviour policy, nats; as those of the reference."""
    ref_logprobs: Tensor
    advantages: Tensor
    values: Tensor | None
    """Of the rollout's critic, score units, as the returns; None without a critic."""
    returns: Tensor | None

    def behaviour(self, tokens: slice = slice(None)) -> Behaviour:
        """What a surrogate of token scope compares with."""
        return Behaviour(self.logprobs[tokens], self.advantages[tokens])


def kl_penalty(batch: Tokens, tokens: slice, new_logprobs: Tensor, kl_coef: float, kl: KlConfig) -> Tensor | None:
    """beta times the KL estimator of some tokens, (n,); None where the penalty is not in the loss, or on groups of
    tokens."""
    if kl.place != "loss" or kl.grouped_in("loss"):
        return None
    return kl_coef * kl_loss(new_logprobs, batch.ref_logprobs[tokens], batch.logprobs[tokens], kl.loss_estimator)


def step_metrics(batch: Tokens, new_logprobs: Tensor) -> dict[str, Tensor]:
    """How far the policy has moved from the one that sampled, and from the reference; (N,) each."""
    log_ratio = new_logprobs - batch.logprobs
    ratio = limited(log_ratio).exp()
    return {
        "policy/approxkl": k2(log_ratio),
        "policy/approxkl_k3": k3(-log_ratio),
        "policy/ratio": ratio,
        "policy/kl_ref_per_token": ratio * (new_logprobs - batch.ref_logprobs),
    }
