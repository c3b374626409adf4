"""Per-token rewards: the KL penalty on every token or on groups of them (clauses, sentences, the whole response), and
the score on the last one.

Grids are (B, T); mask is True on valid tokens, a prefix of each row. A group is known by its number, which counts the
groups that end before it in its row. What stands on invalid tokens is never read; results are 0 there.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Credit = Literal["shared", "last"]


def group_numbers(closes: Tensor) -> Tensor:
    """Number of tokens before each one that close a group: (B, T) bool to (B, T) int64.

    The last valid token of a row closes its group whatever `closes` holds, since no valid token follows it.

    >>> group_numbers(torch.tensor([[False, True, False, True, False]])).tolist()
    [[0, 0, 1, 1, 2]]
    """
    return closes.cumsum(1) - closes.long()


def group_sums(x: Tensor, groups: Tensor, mask: Tensor) -> Tensor:
    """Σ x over the valid tokens of its group, on each of them; (B, T) in the units and the dtype of x.

    >>> x, groups = torch.tensor([[1.0, 2.0, 4.0, 9.0]]), torch.tensor([[0, 0, 1, 1]])
    >>> group_sums(x, groups, torch.tensor([[True, True, True, False]])).tolist()
    [[3.0, 3.0, 4.0, 0.0]]
    """
    # In fp64, so that the columns of padding, which go with the micro-batch, do not move the last digit.
    valid = torch.where(mask, x, torch.zeros_like(x)).double()
    sums = torch.zeros_like(valid).scatter_add(1, groups, valid).gather(1, groups)
    return torch.where(mask, sums, 0.0).to(x.dtype)


def credited(whole: Tensor, groups: Tensor, mask: Tensor, credit: Credit) -> Tensor:
    """Spread the worth of a group over its tokens: whole (B, T), equal on the tokens of a group, to (B, T).

        shared: whole / n on each of its n valid tokens;  last: whole on the last valid one, 0 on the others

    Σ over a response is that of its groups, in the units and the dtype of `whole`.
    """
    if credit == "last":
        return torch.where(group_ends(groups, mask), whole, torch.zeros_like(whole))
    sizes = torch.zeros_like(groups).scatter_add(1, groups, mask.long()).gather(1, groups)
    return torch.where(mask, whole / sizes.clamp(min=1), torch.zeros_like(whole))


def group_ends(groups: Tensor, mask: Tensor) -> Tensor:
    """True on the last valid token of each group; (B, T) bool.

    >>> group_ends(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[True, True, True, False]])).tolist()
    [[False, True, True, False]]
    """
    behind = torch.ones_like(mask[:, :1])
    other = torch.cat([groups[:, 1:] != groups[:, :-1], behind], dim=1)
    return mask & (other | ~torch.cat([mask[:, 1:], ~behind], dim=1))


def handle_missing_eos(scores: Tensor, ended: Tensor, how: Literal["replace", "none"], penalty: float) -> Tensor:
    """Return the scores, changed for responses that were cut before their EOS.

    scores (B,); ended (B,) bool, True where the response ended by EOS; `penalty` in score units, as is the result (B,).
    ``replace``: -penalty instead of the score (a fixed score, as Ziegler 2019's code gives it); ``none``: the score.
    """
    return scores if how == "none" else torch.where(ended, scores, torch.full_like(scores, -penalty))


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
    (`pipeline.algorithms.mathematics.shaping.credited`).

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
