"""Per-token rewards: the KL penalty on every token and the score on the last one."""

from __future__ import annotations

from typing import Literal, assert_never

import torch
from torch import Tensor

from pipeline.algorithms.mathematics.token_groups import Credit, credited, group_sums


def handle_missing_eos(
    scores: Tensor, ended: Tensor, how: Literal["replace", "subtract", "none"], penalty: float
) -> Tensor:
    """Return the scores, changed for responses that were cut before their EOS.

    scores (B,); ended (B,) bool, True where the response ended by EOS; `penalty` in score units, as is the result (B,).
    ``replace``: -penalty instead of the score (a fixed score, as Ziegler 2019's code gives it); ``subtract``: score -
    penalty (as TRL's `missing_eos_penalty`); ``none``: the score.
    """
    match how:
        case "none":
            return scores
        case "replace":
            return torch.where(ended, scores, torch.full_like(scores, -penalty))
        case "subtract":
            return torch.where(ended, scores, scores - penalty)
        case _:
            assert_never(how)


def overlong(scores: Tensor, lengths: Tensor, ended: Tensor, longest: int, share: float, penalty: float) -> Tensor:
    """Scores less a penalty that grows with the length over the last `share` of the `longest` response, in tokens.

        score - penalty · clip((n - (1 - share) longest) / (share longest), 0, 1),  and score - penalty where cut

    scores (B,) in score units, as are `penalty` and the result; lengths (B,); ended (B,) bool. Yu 2025 (DAPO, arXiv
    2503.14476), eq. 13.
    """
    width = share * longest
    if not width:
        return scores
    near = ((lengths - (longest - width)) / width).clamp(0, 1).to(scores.dtype)
    return scores - penalty * torch.where(ended, near, torch.ones_like(near))


def beta_in_reward(kl_coef: float, place: Literal["reward", "score", "loss", "margin"]) -> float:
    """The beta of the rewards: all of it, or 0 where the penalty is in the loss (`pipeline.training.parts.kl`) or beta
    weighs margins."""
    match place:
        case "reward" | "score":
            return kl_coef
        case "loss" | "margin":
            return 0.0
        case _:
            assert_never(place)


def non_score_reward(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """-β (log π - log ref) on valid tokens, 0 elsewhere.

    logprobs, ref_logprobs (B, T) in nats, anything on invalid tokens; mask (B, T) True on valid ones; returns (B, T) in
    score units, so β is score units per nat. Ziegler 2019 (arXiv 1909.08593), eq. 2, split over tokens.
    """
    penalty = -kl_coef * (logprobs - ref_logprobs)
    return torch.where(mask, penalty, torch.zeros_like(penalty))


def group_non_score_reward(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, groups: Tensor, kl_coef: float, credit: Credit
) -> Tensor:
    """-β D of each group of tokens, with D = Σ (log π - log ref) over it, put on its tokens by `credit`
    (`pipeline.algorithms.mathematics.token_groups.credited`).

    Shapes and units as `non_score_reward`, groups (B, T) as `group_numbers` gives them. The sum over a response does
    not depend on the groups.
    """
    whole = -kl_coef * group_sums(logprobs - ref_logprobs, groups, mask)
    return credited(whole, groups, mask, credit)


def token_rewards(scores: Tensor, non_score: Tensor, mask: Tensor) -> Tensor:
    """Put each score on the *last valid token* of its response.

    scores (B,) in score units; non_score (B, T), 0 on invalid tokens; mask (B, T) True on valid ones, a prefix of each
    row; returns (B, T) in score units and the dtype of `non_score`. The last valid token is EOS, or the last one when
    the response was cut. TRL and others put it on the slot after; with λ < 1 that changes what λ means.
    Raises `ValueError` for an empty response.
    """
    lengths = mask.sum(1)
    if bool((lengths == 0).any()):
        raise ValueError("token_rewards: a response has no valid token")
    last = (lengths - 1).unsqueeze(1)
    return non_score.scatter_add(1, last, scores.unsqueeze(1).to(non_score.dtype))


def with_floor(proxy: Tensor, part: Tensor, weight: float) -> Tensor:
    """(proxy + λ part) / (1 + λ): the reward of a rollout in which one part has the weight λ; all (B,), score units.

    The division keeps the reward from growing with λ. Its spread shrinks: parts of standard deviation 1 and correlation
    ρ give sqrt(1 + λ² + 2ρλ) / (1 + λ), at λ = 1 and ρ = 0 0.71, so a beta weighs more. The Lagrangian of Dai et al.
    2023 (arXiv 2310.12773), eq. 10, with a cost of minus the part.

    >>> with_floor(torch.tensor([1.0]), torch.tensor([-3.0]), 1.0).tolist()
    [-1.0]
    """
    return (proxy + weight * part) / (1 + weight)
